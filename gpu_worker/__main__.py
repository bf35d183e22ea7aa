"""``python -m gpu_worker``: one worker. Heavy imports wait until the settings are known to be good, so that --help is instant."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence

from gpu_worker.config import PREFIX, WorkerSettings
from shared.config import load
from shared.errors import ConfigError


def main(argv: Sequence[str] | None = None, program: str = "python -m gpu_worker") -> int:
    """Runs until SIGTERM or SIGINT. Exit 2 where a setting is wrong."""
    try:
        settings = load(WorkerSettings, PREFIX, argv, description="The GPU worker: model, sampling, front door.", program=program)
        return _serve(settings)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _serve(settings: WorkerSettings) -> int:
    from gpu_worker import environment  # noqa: F401  before torch
    from gpu_worker.worker import Worker
    from shared import log
    from shared.processes import share_interpreter

    share_interpreter()
    log.configure(settings.name, settings.log_level)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    worker = Worker(settings)
    worker.start()
    stop.wait()
    worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
