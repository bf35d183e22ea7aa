"""``--supervise``: starts the service again when it dies (a container's restart policy does the same)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from grammar_service.config import PREFIX
from shared.config import environment_name

LEAST_LIFE_S = 1.0  # one that dies sooner is not started again at once


def supervise(argv: Sequence[str]) -> int:
    """Runs the service with the same flags until it ends by itself or by our signal; its exit code."""
    environment = {**os.environ, environment_name(PREFIX, "supervise"): "false"}
    command = [sys.executable, "-m", "grammar_service", *(flag for flag in argv if flag.split("=")[0] != "--supervise")]
    stopping = False
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, _: object) -> None:
        nonlocal stopping
        stopping = True
        if process is not None:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    while True:
        started_s = time.monotonic()
        process = subprocess.Popen([*command, "--parent", str(os.getpid())], env=environment)
        code = process.wait()
        if stopping or code in (0, 2):
            return code
        sys.stderr.write(f"grammar-service ended with {code}: started again\n")
        time.sleep(max(0.0, LEAST_LIFE_S - (time.monotonic() - started_s)))
