"""A real grammar service process on a driver's address; its last line of output is read so that its port is known."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Self

from shared.tokenizer import Vocabulary
from tests.grammar_driver import Driver


class ServiceProcess:
    """``python -m grammar_service`` with flags; killed when the context is left."""

    def __init__(self, address: str, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "grammar_service", "--workers", address, "--metrics-port", "0", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()
        self.metrics_port = int(self.ready_line.rsplit(" ", 1)[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            self.process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of the metrics endpoint."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def resident_bytes(self) -> int:
        """Resident memory of the step process, its children apart."""
        with open(f"/proc/{self.step_pid()}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def step_pid(self) -> int:
        """The process that holds the sockets and matchers."""
        return self.process.pid

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.step_pid()}/fd"))


@contextlib.contextmanager
def serving(vocabulary: Vocabulary, *flags: str, lease_s: float = 60.0) -> Iterator[tuple[Driver, ServiceProcess]]:
    """A driver and a service that is ready for it; drained at once when the context is left."""
    with Driver(vocabulary) as driver:
        driver.lease_s = lease_s
        with ServiceProcess(driver.address, "--drain-s", "0", *flags) as service:
            assert driver.wait_ready().error is None
            yield driver, service
