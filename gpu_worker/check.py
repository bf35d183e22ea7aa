"""``maskstream check FILE.jsonl``: guides and texts of a file, token by token through a grammar service. Exit 1 if any is wrong."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from shared.errors import ConfigError, MaskstreamError
from shared.flags import Flags

DESCRIPTION = "Says for each guide of a file whether its texts can be produced: accepted, refused (code and pointer) or wrong."


def main(argv: Sequence[str] | None = None, program: str = "maskstream check") -> int:
    """0 if every guide is right, 1 if any is wrong, 2 for a wrong call."""
    try:
        arguments = _arguments(argv, program)
        return _check(arguments)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except MaskstreamError as error:
        print(f"check failed: {error}", file=sys.stderr)
        return 1


def _arguments(argv: Sequence[str] | None, program: str) -> argparse.Namespace:
    flags = Flags(program, DESCRIPTION, "MASKSTREAM_CHECK")
    flags.positional("file", "one guide a line: id, kind, guide, accept, reject, must_refuse, may_refuse", metavar="FILE.jsonl")
    flags.add("--tokenizer", "model folder, tokenizer.json or .tiktoken file, or bytes; without it the demo model's, or Qwen's",
              default="", metavar="PATH")  # fmt: skip
    flags.add("--jobs", "grammar services to start", type=int, default=min(4, os.cpu_count() or 1), metavar="N")
    flags.add("--bind", "start none: wait here for the grammar services of an address", default="", metavar="ADDRESS")
    flags.add("--insecure", "allow --bind to an address that other hosts reach", default=False, action="store_true")
    flags.add("--text-timeout-s", "patience with a text that gets no answer", type=float, default=20.0, metavar="SECONDS")
    flags.add("--compile-timeout-s", "patience with one guide", type=float, default=30.0, metavar="SECONDS")
    flags.add("--only", "check just the guide of this id", default="", metavar="ID")
    flags.add("--json", "one JSON object a line", default=False, action="store_true")
    arguments = flags.parse(argv)
    if arguments.jobs < 1:
        raise ConfigError(f"--jobs has value {arguments.jobs}; it must be at least 1", field="jobs")
    return arguments


def _check(arguments: argparse.Namespace) -> int:
    import time
    from pathlib import Path

    from gpu_worker.checking.cases import read_cases
    from gpu_worker.checking.encoders import load_encoder
    from gpu_worker.checking.own_services import linked
    from gpu_worker.checking.report import summarise
    from gpu_worker.checking.runner import Runner
    from shared import log

    log.configure("check", "warning")
    cases = [case for case in read_cases(Path(arguments.file)) if arguments.only in ("", case.id)]
    encoder = load_encoder(arguments.tokenizer)
    with linked(encoder.vocabulary, services=arguments.jobs, bind=arguments.bind, insecure=arguments.insecure) as link:
        timeouts = {"text_timeout_s": arguments.text_timeout_s, "compile_timeout_s": arguments.compile_timeout_s}
        runner = Runner(link, encoder, **timeouts)
        started_s, results = time.monotonic(), []
        for result in runner.run(cases, compiles_at_once=4 * arguments.jobs):
            results.append(result)
            _say(result, arguments.json)
        summary = summarise(results, time.monotonic() - started_s, encoder.name)
    _say(summary, arguments.json)
    return 1 if summary.wrong else 0


def _say(thing: object, as_json: bool) -> None:
    import msgspec

    line = getattr(thing, "line", None)
    print(msgspec.json.encode(thing).decode() if as_json or line is None else line(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
