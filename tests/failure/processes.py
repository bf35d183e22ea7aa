"""Other processes, as Linux shows them: children, states, what they hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def children(pid: int) -> list[int]:
    """Process ids of the children of all threads."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def state(pid: int) -> str:
    """S where it sleeps, Z where only its parent has not noticed that it is gone; empty where it is."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Returns once it holds; fails after ``timeout_s``."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "did not come to pass"
        time.sleep(0.01)
