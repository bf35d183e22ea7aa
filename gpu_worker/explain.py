"""``maskstream explain FILE``: how a guide would be enforced: engine, rewrites, warnings, cost, or why it is refused."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import BadRequest, ConfigError, GuideError, MaskstreamError
from shared.flags import Flags

if TYPE_CHECKING:
    from shared.guide import Guide
    from shared.protocol import Compiled

DESCRIPTION = "Compiles one guide on a real grammar service and says what is enforced, by which engine, and what it costs."
KIND_OF_SUFFIX = {".json": "json_schema", ".ebnf": "ebnf", ".gbnf": "ebnf", ".lark": "lark", ".regex": "regex", ".txt": "regex"}
KINDS = ("json_schema", "regex", "choice", "ebnf", "lark", "structural_tag")


def main(argv: Sequence[str] | None = None, program: str = "maskstream explain") -> int:
    """0 if the guide can be enforced, 1 if it is refused, 2 for a wrong call."""
    try:
        arguments = _arguments(argv, program)
        guide = _guide(arguments)
        return _explain(arguments, guide)
    except (GuideError, BadRequest) as error:
        print(f"refused: {error}")
        return 1
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except MaskstreamError as error:
        print(f"explain failed: {error}", file=sys.stderr)
        return 1


def _arguments(argv: Sequence[str] | None, program: str) -> argparse.Namespace:
    flags = Flags(program, DESCRIPTION, "MASKSTREAM_EXPLAIN")
    flags.positional("file", "the guide: a JSON schema, a regex, a grammar; - reads standard input", metavar="FILE")
    flags.add("--kind", "kind of the guide; without it by the file's suffix", default="", choices=KINDS)
    flags.add("--engine", "engine", default="auto", choices=("auto", "xgrammar", "llguidance"))
    flags.add("--max-whitespace", "most whitespace characters in a row in JSON", type=int, default=8, metavar="N")
    flags.add("--tokenizer", "model folder, tokenizer.json or .tiktoken file, or bytes", default="", metavar="PATH")
    flags.add("--bind", "start no grammar service: wait here for one", default="", metavar="ADDRESS")
    flags.add("--insecure", "allow --bind to an address that other hosts reach", default=False, action="store_true")
    flags.add("--compile-timeout-s", "patience with the guide", type=float, default=30.0, metavar="SECONDS")
    flags.add("--grammar", "print the text that the engine is fed", default=False, action="store_true")
    flags.add("--json", "print one JSON object", default=False, action="store_true")
    return flags.parse(argv)


def _guide(arguments: argparse.Namespace) -> Guide:
    from shared.guide import make_guide

    kind = arguments.kind or KIND_OF_SUFFIX.get(Path(arguments.file).suffix, "")
    if not kind:
        raise ConfigError(f"the suffix of {arguments.file} says no kind; add --kind", field="kind")
    try:
        text = sys.stdin.read() if arguments.file == "-" else Path(arguments.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{arguments.file} cannot be read: {error}", field="file") from error
    value: Any = _choices(text) if kind == "choice" else text.rstrip("\n") if kind == "regex" else text
    return make_guide(kind, value, engine=arguments.engine, max_whitespace=arguments.max_whitespace)


def _choices(text: str) -> Any:
    """A JSON list, or one choice a line."""
    try:
        return json.loads(text)
    except ValueError:
        return text.splitlines()


def _explain(arguments: argparse.Namespace, guide: Guide) -> int:
    from gpu_worker.checking.encoders import load_encoder
    from gpu_worker.checking.own_services import linked
    from shared import log

    log.configure("explain", "warning")
    encoder = load_encoder(arguments.tokenizer)
    with linked(encoder.vocabulary, services=1, bind=arguments.bind, insecure=arguments.insecure) as link:
        deadline_s = arguments.compile_timeout_s
        compiled = link.compile(guide, client="explain", deadline_s=deadline_s).result(deadline_s + 10)
    found = _facts(compiled, encoder.vocabulary.size)
    if not arguments.grammar:
        found.pop("grammar")
    print(json.dumps(found, ensure_ascii=False, indent=2) if arguments.json else _lines(found))
    return 0


def _facts(compiled: Compiled, vocab_size: int) -> dict[str, Any]:
    """What there is to say of an enforceable guide."""
    plan = compiled.plan
    if plan is None:
        raise MaskstreamError("a compilation ended without a plan")
    enforced = "by the mask, then by the validator" if plan.validate_after else "exactly, by the mask"
    return {
        "guide": plan.guide_kind, "key": compiled.key, "engine": f"{plan.engine} {plan.engine_version}",
        "fed_as": plan.grammar_kind, "enforced": enforced,
        "after_guide": plan.after_guide, "options": plan.options, "rewrites": plan.rewrites, "warnings": plan.warnings,
        "compile_ms": round(compiled.compile_ms, 3), "grammar_bytes": compiled.grammar_bytes,
        "first_row_share": compiled.first_row_share, "first_row_tokens": round(compiled.first_row_share * vocab_size),
        "grammar": plan.text,
    }  # fmt: skip


def _lines(facts: dict[str, Any]) -> str:
    lines = []
    for name, value in facts.items():
        if isinstance(value, list):
            lines += [f"{name:<16} {entry}" for entry in value] or [f"{name:<16} none"]
        else:
            lines.append(f"{name:<16} {json.dumps(value) if isinstance(value, dict) else value}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
