"""``python -m grammar_service``: settings, signals, one ready line. Heavy imports happen only once the settings are right."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from grammar_service.config import PREFIX, GrammarSettings
from shared.config import load
from shared.errors import ConfigError

STACK_BYTES = 64 << 20  # llguidance recurses over a grammar: a chain of 3,000 rules ends an 8 MB stack with SIGSEGV


def main(argv: Sequence[str] | None = None, program: str = "python -m grammar_service") -> int:
    """Runs a grammar service until SIGTERM or SIGINT. Exit codes: 0 drained, 2 a setting is wrong."""
    try:
        settings = load(GrammarSettings, PREFIX, argv, description=__doc__.split(":")[0], program=program)
        if settings.supervise:
            from grammar_service.supervise import supervise

            return supervise(sys.argv[1:] if argv is None else argv)
        return serve(settings)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def serve(settings: GrammarSettings) -> int:
    """Runs the service in a thread with a deep stack; this one waits for signals."""
    import os
    import signal
    import socket
    import threading

    import msgspec

    from grammar_service.service import Service
    from shared import log, metrics
    from shared.processes import share_interpreter

    if settings.parent:
        _end_with(settings.parent)
    if not settings.name:
        settings = msgspec.structs.replace(settings, name=f"{socket.gethostname()}-{os.getpid()}")
    log.configure("grammar-service", settings.log_level)
    threading.stack_size(STACK_BYTES)
    share_interpreter()
    service = Service(settings)
    endpoint = metrics.Endpoint(settings.metrics_host, settings.metrics_port, service.health)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    failure: list[BaseException] = []

    def run() -> None:
        try:
            service.run()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="work")
    thread.start()
    sys.stdout.write(f"grammar-service {settings.name} ready: workers {','.join(settings.workers)}, metrics port {endpoint.port}\n")
    sys.stdout.flush()
    while thread.is_alive():
        thread.join(0.5)
    endpoint.close()
    if failure:
        raise failure[0]
    return 0


def _end_with(parent: int) -> None:
    """A service whose supervisor was killed must not live on beside the next one."""
    import ctypes
    import os
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
