"""The ``maskstream`` command: a table of subcommands; each loads only what it needs, so that every --help is instant."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

# name: (module with main(argv, program) -> exit status, one line)
COMMANDS: dict[str, tuple[str, str]] = {
    "generate": ("shared.commands.generate", "send one request to a worker and print the answer"),
    "worker": ("gpu_worker.__main__", "run a GPU worker"),
    "grammar-service": ("grammar_service.__main__", "run a grammar service"),
    "demo": ("shared.commands.demo", "run a worker, two grammar services and four requests, and judge the answers"),
    "health": ("shared.commands.health", "ask a worker or a grammar service whether it is well"),
    "explain": ("gpu_worker.explain", "say how a guide would be enforced"),
    "check": ("gpu_worker.check", "run a file of guides and texts through a grammar service"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; 2 for a wrong call."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version", "version"):
        from importlib.metadata import version

        print(f"maskstream {version('maskstream')}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"error: unknown command {name!r}; one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    module = importlib.import_module(COMMANDS[name][0])
    status: int = module.main(rest, program=f"maskstream {name}")
    return status


def _usage() -> str:
    lines = ["usage: maskstream COMMAND [--help] ...", "", "Guided decoding and sampling for LLM serving.", "", "commands:"]
    return "\n".join(lines + [f"  {name:<16} {text}" for name, (_, text) in COMMANDS.items()])


if __name__ == "__main__":
    sys.exit(main())
