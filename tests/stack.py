"""A whole system for a test: one worker and grammar services as processes, on free ports, with a client to talk to it."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from shared.client import AsyncClient
from shared.errors import WorkerLost
from shared.processes import Processes, free_port, stop

START_S = 90.0


class Stack:
    """``services`` grammar services beside one worker. Leave the context to end them all; a failed start shows their log."""

    def __init__(self, folder: Path, *, model: str, services: int = 1, worker_flags: tuple[str, ...] = ()) -> None:
        self.log = folder / "processes.log"
        self.processes = Processes(self.log)
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.grammar_address = f"tcp://127.0.0.1:{free_port()}"
        self.services: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self._flags = ("--model", model, "--metrics-port", "0", *worker_flags)
        self.worker = self.start_worker()
        for _ in range(services):
            self.start_service()

    def start_worker(self) -> subprocess.Popen[bytes]:
        binds = ("--client-bind", self.address, "--grammar-bind", self.grammar_address)
        self.worker = self.processes.start("gpu_worker", *binds, *self._flags)
        return self.worker

    def start_service(self, *flags: str) -> subprocess.Popen[bytes]:
        self._started += 1
        arguments = ("--workers", self.grammar_address, "--metrics-port", "0", "--name", f"grammar-{self._started}", *flags)
        service = self.processes.start("grammar_service", *arguments)
        self.services.append(service)
        return service

    def kill_service(self, index: int) -> None:
        """SIGKILL, reaped; the list gets shorter."""
        service = self.services.pop(index)
        service.send_signal(signal.SIGKILL)
        service.wait()

    async def ready(self, client: AsyncClient, services: int | None = None) -> None:
        """Waits until the worker is ready and sees that many grammar services (all that were started, unless told)."""
        wanted = len(self.services) if services is None else services
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s:
            try:
                health = await client.health(timeout_s=1.0)
            except WorkerLost:
                continue
            if health.ready and len(health.grammar_services) == wanted:
                return
        raise AssertionError(f"not ready within {START_S} s:\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-6000:] if self.log.exists() else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        stop(self.services)
        self.processes.stop_all()
