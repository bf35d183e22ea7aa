"""What a test may not leave behind: threads, child processes, open descriptors (sockets and ZMQ mailboxes among them)."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from typing import NamedTuple

import psutil

GRACE_S = 5.0  # a killed process or a closing socket needs a moment; most tests need none
# One thread or file of a process that a library makes at first use and keeps on purpose.
KEPT_THREADS = ("tqdm_monitor", "pytest_timeout")
KEPT_FILES = ("/dev/null", "/dev/urandom", "/dev/random", "/proc/", "/sys/")


class Held(NamedTuple):
    """What this process holds at one moment."""

    threads: frozenset[tuple[str, int]]
    children: frozenset[tuple[int, str]]
    files: frozenset[tuple[str, str]]

    def beyond(self, before: Held) -> list[str]:
        """One line for each thing that ``before`` did not hold."""
        threads = [f"thread {name}" for name, ident in sorted(self.threads - before.threads)]
        children = [f"child {pid} {name}" for pid, name in sorted(self.children - before.children)]
        files = [f"descriptor {number} -> {target}" for number, target in sorted(self.files - before.files)]
        return threads + children + files


def held() -> Held:
    """What this process holds now, without what libraries keep on purpose."""
    threads = {(t.name, t.ident or 0) for t in threading.enumerate() if not t.name.startswith(KEPT_THREADS)}
    return Held(frozenset(threads), frozenset(_children()), frozenset(_files()))


def leaks_since(before: Held, grace_s: float = GRACE_S) -> list[str]:
    """What is held beyond ``before`` once a grace has passed; empty as soon as nothing is."""
    found = held().beyond(before)
    deadline = time.monotonic() + grace_s
    while found and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
        found = held().beyond(before)
    return found


def _children() -> set[tuple[int, str]]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # quick where there is none; reaps nothing
    except ChildProcessError:
        return set()
    children = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            children.add((child.pid, child.name()))
    return children


def _files() -> set[tuple[str, str]]:
    files = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the descriptor of the listing itself
        if not target.startswith(KEPT_FILES):
            files.add((number, target))
    return files
