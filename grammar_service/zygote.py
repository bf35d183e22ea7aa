"""The process whose forked children try guides: ``python -m grammar_service.zygote FD PAGE LIMIT``. One thread, no ZMQ.

It holds the tokenizer tables, which its children share copy-on-write. A request comes with two descriptors: a pipe for the child's
result and a socket on which the zygote says how the child ended. Only our own service writes to the control socket.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import NamedTuple

import msgspec

from grammar_service import engines
from grammar_service.trial import Trial, TrialLimits, run_trial
from grammar_service.vocabularies import Loaded
from grammar_service.watch import CHECK_S, Watcher
from shared.errors import MaskstreamError
from shared.guide import Guide
from shared.protocol import Plan
from shared.tokenizer import from_wire

HEADER = struct.Struct("<cI")  # kind, length of the body that follows
TRY, LOAD, DROP = b"t", b"l", b"d"


class Request(msgspec.Struct, frozen=True, array_like=True):
    """A guide to try (or the plan of one) on a vocabulary."""

    fingerprint: str
    limits: TrialLimits
    guide: Guide | None = None
    plan: Plan | None = None


class Ending(msgspec.Struct, frozen=True, array_like=True):
    """How a child ended: its exit status or signal, whether it passed its deadline, the most memory it held."""

    status: int
    signal: int
    late: bool
    peak_bytes: int


class _Child(NamedTuple):
    pid: int
    pidfd: int
    verdict: int
    deadline_s: float
    late: bool = False


class Zygote:
    """The loop: requests in, children out, late ones killed, all of them reaped."""

    def __init__(self, control: socket.socket, watcher: Watcher) -> None:
        self._watcher = watcher
        self._control = control
        self._loaded: dict[str, Loaded] = {}
        self._children: dict[int, _Child] = {}

    def run(self) -> None:
        """Returns when the service closes the control socket."""
        while True:
            watched = [self._control.fileno(), *self._children]
            ready, _, _ = select.select(watched, [], [], self._patience_s())
            for descriptor in ready:
                if descriptor in self._children:
                    self._reap(self._children.pop(descriptor))
                elif not self._serve():
                    return
            self._kill_late()
            self._watcher.look()

    def _patience_s(self) -> float:
        deadlines = [child.deadline_s for child in self._children.values() if not child.late]
        return min([CHECK_S, *(max(0.0, deadline_s - time.monotonic()) for deadline_s in deadlines)])

    def _serve(self) -> bool:
        head, descriptors, _, _ = socket.recv_fds(self._control, HEADER.size, 2)
        if len(head) < HEADER.size:
            return False
        kind, length = HEADER.unpack(head)
        body = receive_exactly(self._control, length)
        if kind == LOAD:
            self._load(body)
        elif kind == DROP:
            self._loaded.pop(body.decode(), None)
        else:
            self._fork(msgspec.msgpack.decode(body, type=Request), *descriptors)
        return True

    def _load(self, body: bytes) -> None:
        fingerprint = body[:32].decode()
        try:
            vocabulary = from_wire(body[32:], fingerprint)
            self._loaded[fingerprint] = Loaded(fingerprint, vocabulary.size, engines.load(vocabulary), None)
            gc.collect()
            gc.freeze()  # a collection in a child would touch, and so copy, every page
        except MaskstreamError as error:  # the service met the same error and told the worker
            sys.stderr.write(f"zygote: vocabulary {fingerprint}: {error}\n")

    def _fork(self, request: Request, result: int, verdict: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._control.close()
            os.close(verdict)
            for child in self._children.values():
                os.close(child.verdict)
            run_trial(Trial(request.guide, request.plan, self._loaded.get(request.fingerprint)), request.limits, result)
        os.close(result)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = _Child(pid, pidfd, verdict, time.monotonic() + request.limits.wall_s)

    def _kill_late(self) -> None:
        now_s = time.monotonic()
        for pidfd, child in self._children.items():
            if not child.late and now_s >= child.deadline_s:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                self._children[pidfd] = child._replace(late=True)

    def _reap(self, child: _Child) -> None:
        _, status, usage = os.wait4(child.pid, 0)
        died_of = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        ending = Ending(os.WEXITSTATUS(status) if not died_of else -1, died_of, child.late, usage.ru_maxrss * 1024)
        try:
            os.write(child.verdict, msgspec.msgpack.encode(ending))
        except BrokenPipeError:
            sys.stderr.write("zygote: nobody waits for a child any more\n")
        os.close(child.verdict)
        os.close(child.pidfd)


def receive_exactly(control: socket.socket, length: int) -> bytes:
    """``length`` bytes. Raises EOFError where the other side went away in the middle."""
    parts = bytearray()
    while len(parts) < length:
        piece = control.recv(min(1 << 20, length - len(parts)))
        if not piece:
            raise EOFError("the control socket was closed inside a message")
        parts += piece
    return bytes(parts)


def main() -> int:
    """Serves the control socket inherited as descriptor ``argv[1]``, and watches the parent by ``argv[2]`` and ``argv[3]``."""
    import grammar_service.plan  # noqa: F401 - once, here: each child would pay for it

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service decides when we end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        Zygote(control, Watcher(int(sys.argv[2]), os.getppid(), float(sys.argv[3]))).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
