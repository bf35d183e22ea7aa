"""Tables in Markdown and results in JSON; where and with what a figure was measured."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("torch", "xgrammar", "llguidance", "pyzmq", "msgspec", "numpy")


def machine() -> dict[str, str]:
    """Date, processor, cores and the versions that matter."""
    found = {name: _version(name) for name in PACKAGES}
    return {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "processor": _processor(), "cores": str(os.cpu_count())} | found


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; floats with three significant digits."""
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(_show(row[name]) for name in head) + " |" for row in rows])


def _show(value: Any) -> str:
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )


def save(name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes ``benchmarks/results/NAME.json`` and returns its path."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), "rows": list(rows)}, indent=1) + "\n")
    return path


def publish(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the table with the machine above it, and writes the JSON."""
    print(
        f"\n## {name}\n\n{', '.join(f'{key} {value}' for key, value in machine().items())}\n\n{table(rows)}\n\n{save(name, rows)}"
    )
