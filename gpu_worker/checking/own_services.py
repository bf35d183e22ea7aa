"""A grammar link with grammar services of its own, for as long as a context lasts."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_worker.grammar_link import GrammarLink, LinkSettings
from shared.errors import WorkerLost
from shared.processes import Processes
from shared.tokenizer import Vocabulary

START_S = 120.0


@contextmanager
def linked(vocabulary: Vocabulary, *, services: int, bind: str = "", insecure: bool = False) -> Iterator[GrammarLink]:
    """A link with ``services`` ready services: started here, or, with ``bind``, whichever connect to that address. Raises
    WorkerLost where none is ready in time."""
    link = GrammarLink(bind or "tcp://127.0.0.1:*", LinkSettings(), insecure=insecure, worker="check")
    link.start(vocabulary)
    try:
        with tempfile.TemporaryDirectory(prefix="maskstream-") as folder:
            log = Path(folder) / "services.log"
            with Processes(log) as processes:
                for number in range(0 if bind else services):
                    name = f"check-{number + 1}"
                    processes.start("grammar_service", "--workers", link.address, "--name", name, "--metrics-port", "0")
                _wait(link, 1 if bind else services, processes, log)
                yield link
    finally:
        link.close()


def _wait(link: GrammarLink, services: int, processes: Processes, log: Path) -> None:
    until_s = time.monotonic() + START_S
    while len(link.service_names) < services:
        if any(process.poll() is not None for process in processes.running) or time.monotonic() > until_s:
            told = log.read_text(errors="replace")[-2000:] if log.is_file() else ""
            raise WorkerLost(
                f"{services - len(link.service_names)} of {services} grammar services did not come up\n{told}".rstrip()
            )
        time.sleep(0.02)
