"""A step that never returns costs its process: a mark in a shared page says since when the loop is busy, and another process looks.

The watcher (in the zygote) needs no GIL of ours. It counts the CPU time that was spent since it first saw a mark, so that a
process that was stopped, or a machine that is busy with others, is not taken for a loop that hangs.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path

_MARK = struct.Struct("<d")
CHECK_S = 0.5


class BusyMark:
    """The service's side: ``descriptor`` is inherited by the watcher."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("busy-mark")
        os.ftruncate(self.descriptor, mmap.PAGESIZE)
        self._page = mmap.mmap(self.descriptor, mmap.PAGESIZE)

    def enter(self) -> None:
        """The loop begins to handle an event."""
        _MARK.pack_into(self._page, 0, time.monotonic())

    def leave(self) -> None:
        """The loop is free."""
        _MARK.pack_into(self._page, 0, 0.0)

    def close(self) -> None:
        self._page.close()
        os.close(self.descriptor)


class Watcher:
    """Kills ``pid`` once one event has cost it more than ``limit_s`` of CPU time."""

    def __init__(self, descriptor: int, pid: int, limit_s: float) -> None:
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ)
        os.close(descriptor)
        self._pid = pid
        self._limit_s = limit_s
        self._seen = (0.0, 0.0)

    def look(self) -> None:
        """To be called now and then."""
        (mark,) = _MARK.unpack_from(self._page, 0)
        if mark == 0.0:
            self._seen = (0.0, 0.0)
            return
        spent_s = cpu_s(self._pid)
        if mark != self._seen[0]:
            self._seen = (mark, spent_s)
        elif spent_s - self._seen[1] > self._limit_s:
            sys.stderr.write(f"grammar-service {self._pid}: one event took more than {self._limit_s:g} s of CPU time: killed\n")
            os.kill(self._pid, signal.SIGKILL)


def cpu_s(pid: int) -> float:
    """CPU time of a process; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
