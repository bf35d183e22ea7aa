"""The last resort of a captured step: a child process that releases a launch whose descriptor was not sealed in time.

It needs neither the worker's interpreter lock nor its threads. It shares one page with the worker, which the GPU reads too: a line
of 64 bytes a launch in flight, and one for the pair of processes. It writes only flags. A launch that it releases finds no sealed
descriptor and holds every row; a release that comes late, by any interleaving, can make a launch hold, never act.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LINE = 64
PAGE_BYTES = 4096
POLL_S = 0.005
FLAG, ARMED, DONE, DEADLINE_NS = 0, 1, 2, 3
"""int64 columns of a launch's line. FLAG: 1 lets the GPU go on, which writes 0 again. ARMED and DONE: launch numbers."""
STOP_LINE = 63


class WatchedPage:
    """The shared page: ``lines`` int64 [64, 8]. The flag's address is ``address + line * 64``."""

    def __init__(self, handle: int) -> None:
        self._memory = mmap.mmap(handle, PAGE_BYTES, mmap.MAP_SHARED)
        self.lines: NDArray[np.int64] = np.frombuffer(self._memory, np.int64).reshape(PAGE_BYTES // LINE, LINE // 8)

    @property
    def address(self) -> int:
        return int(self.lines.ctypes.data)


class Watchdog:
    """The worker's side: owns the page and the child."""

    def __init__(self, ring: int, last_resort_s: float) -> None:
        self._handle = os.memfd_create("maskstream-flags", os.MFD_CLOEXEC)
        os.ftruncate(self._handle, PAGE_BYTES)
        self.page = WatchedPage(self._handle)
        self._last_resort_ns = int(last_resort_s * 1e9)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "gpu_worker.watchdog", str(self._handle), str(ring), str(os.getpid())], pass_fds=(self._handle,)
        )

    def arm(self, line: int, launch: int) -> None:
        """Before a launch is enqueued: clears a release that came too late for the line's last launch, and sets the deadline."""
        row = self.page.lines[line]
        row[DEADLINE_NS] = time.monotonic_ns() + self._last_resort_ns
        row[ARMED] = launch
        row[FLAG] = 0

    def release(self, line: int) -> None:
        """Lets the GPU go on."""
        self.page.lines[line, FLAG] = 1

    def done(self, line: int, launch: int) -> None:
        self.page.lines[line, DONE] = launch

    def close(self) -> None:
        self.page.lines[STOP_LINE, 0] = 1
        try:
            self._child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        os.close(self._handle)


def late_lines(lines: NDArray[np.int64], ring: int, now_ns: int) -> list[int]:
    """Lines whose launch is at work past its deadline with the flag down."""
    return [
        line
        for line in range(ring)
        if lines[line, ARMED] != lines[line, DONE] and lines[line, DEADLINE_NS] < now_ns and lines[line, FLAG] == 0
    ]


def main(argv: Sequence[str]) -> int:
    """The child: ends when told, or when the worker is gone."""
    handle, ring, parent = (int(text) for text in argv)
    lines = WatchedPage(handle).lines
    while not lines[STOP_LINE, 0] and os.getppid() == parent:
        for line in late_lines(lines, ring, time.monotonic_ns()):
            lines[line, FLAG] = 1
        time.sleep(POLL_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
