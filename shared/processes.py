"""Child processes of a command or a test: started on free ports, waited for, and ended in order."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def share_interpreter() -> None:
    """For processes whose threads hand work to each other: the thread that has the interpreter lock is asked for it after 0.1 ms,
    not after the default 5 ms, which is longer than a step."""
    sys.setswitchinterval(1e-4)


class Processes:
    """Python modules run as processes; all of them are ended, and reaped, when the context is left."""

    def __init__(self, log: Path | None = None) -> None:
        self._log = log
        self.running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop_all()

    def start(self, module: str, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """``python -m module arguments``; its output goes to the log file, or nowhere without one."""
        output = self._log.open("ab") if self._log else None
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=output or subprocess.DEVNULL, stderr=output or subprocess.DEVNULL,
                env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        finally:
            if output:
                output.close()
        self.running.append(process)
        return process

    def stop_all(self, patience_s: float = 10.0) -> None:
        stop(self.running, patience_s)
        self.running.clear()


def stop(processes: Sequence[subprocess.Popen[bytes]], patience_s: float = 10.0) -> None:
    """SIGTERM to all (SIGCONT first, a stopped one cannot end), SIGKILL to those that stay."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
    for process in processes:
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
