"""The process whose forked children try guides: ``python -m grammar_service.zygote FD PAGE LIMIT SPARES``. One thread, no ZMQ.

It holds the tokenizer tables, which its children share copy-on-write. A request comes with two descriptors: a pipe for the child's
result and a socket on which the zygote says how the child ended. Only our own service writes to the control socket.

Children are forked ahead while nothing else runs here: a guide that comes alone finds one waiting. Under a flood there is none to
find, and each guide costs one fork as before. A spare takes one guide and ends with it, like every child.
"""

from __future__ import annotations

import contextlib
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
from grammar_service.spare import Spare
from grammar_service.trial import Request, Trial, receive_exactly, run_child, run_trial
from grammar_service.vocabularies import Loaded
from grammar_service.watch import CHECK_S, Watcher
from shared import log
from shared.errors import MaskstreamError
from shared.tokenizer import from_wire

HEADER = struct.Struct("<cI")  # kind, length of the body that follows
TRY, LOAD, DROP = b"t", b"l", b"d"
NICE, NICE_AFTER_S = 5, 0.1  # an ordinary guide is as urgent as a step; one that takes long gives way
SETTLE_S = 0.005  # quiet for this long before a child is forked ahead: who asks for several guides in a row waits for no such fork


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
    started_s: float
    deadline_s: float
    late: bool = False
    nice: bool = False


class Zygote:
    """The loop: requests in, children out, late ones killed, all of them reaped."""

    def __init__(self, control: socket.socket, watcher: Watcher, num_spares: int = 0) -> None:
        self._num_spares = num_spares
        self._spares: dict[int, Spare] = {}
        self._fork_from_s = 0.0
        self._watcher = watcher
        self._control = control
        self._loaded: dict[str, Loaded] = {}
        self._children: dict[int, _Child] = {}

    def run(self) -> None:
        """Returns when the service closes the control socket."""
        while True:
            may_fork = self._may_fork_ahead()
            watched = [self._control.fileno(), *self._children, *self._spares]
            ready, _, _ = select.select(watched, [], [], SETTLE_S if may_fork else self._patience_s())
            for descriptor in ready:
                if descriptor in self._children:
                    self._reap(self._children.pop(descriptor))
                elif descriptor in self._spares:
                    self._spares.pop(descriptor).end()  # it died of itself: not at once again
                    self._fork_from_s = time.monotonic() + 1.0
                elif not self._serve():
                    return
            if may_fork and not ready:
                self._fork_ahead()
            self._slow_down()
            self._kill_late()
            self._watcher.look()

    def _patience_s(self) -> float:
        deadlines = [
            child.deadline_s if child.nice else child.started_s + NICE_AFTER_S
            for child in self._children.values()
            if not child.late
        ]
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
            self._try(body, *descriptors)
            return True
        while self._spares:  # they know other vocabularies
            self._spares.popitem()[1].end()
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

    def _try(self, body: bytes, result: int, verdict: int) -> None:
        request = msgspec.msgpack.decode(body, type=Request)
        pid = self._hand_over(body, result) or self._fork(request, result, verdict)
        os.close(result)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = _Child(pid, pidfd, verdict, now_s := time.monotonic(), now_s + request.limits.wall_s)

    def _hand_over(self, body: bytes, result: int) -> int:
        """The process id of the spare that took a request; 0 where none could."""
        while self._spares:
            _, spare = self._spares.popitem()
            if spare.take(body, result):
                return spare.pid
            spare.end()
        return 0

    def _fork(self, request: Request, result: int, verdict: int) -> int:
        pid = os.fork()
        if pid == 0:
            os.close(verdict)
            self._forget_others()
            run_child(
                lambda: run_trial(Trial(request.guide, request.plan, self._loaded.get(request.fingerprint)), request.limits, result)
            )
        return pid

    def _may_fork_ahead(self) -> bool:
        idle = bool(self._loaded) and not self._children and len(self._spares) < self._num_spares
        return idle and time.monotonic() >= self._fork_from_s

    def _fork_ahead(self) -> None:
        spare = Spare.fork(self._loaded, self._forget_others)
        self._spares[spare.pidfd] = spare

    def _forget_others(self) -> None:
        """In a child: closes what belongs to the zygote and to other children."""
        self._control.close()
        for child in self._children.values():
            os.close(child.verdict)
            os.close(child.pidfd)
        for spare in self._spares.values():
            spare.forget()

    def _slow_down(self) -> None:
        """From here, with all their threads: a child cannot be asked while an engine holds its lock."""
        now_s = time.monotonic()
        for pidfd, child in self._children.items():
            if not child.nice and now_s >= child.started_s + NICE_AFTER_S:
                self._children[pidfd] = child._replace(nice=True)
                with contextlib.suppress(OSError):  # it has just ended
                    for thread in os.listdir(f"/proc/{child.pid}/task"):
                        os.setpriority(os.PRIO_PROCESS, int(thread), NICE)

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
        with contextlib.suppress(BrokenPipeError):  # its result was complete: nobody needs to know how it ended
            os.write(child.verdict, msgspec.msgpack.encode(ending))
        os.close(child.verdict)
        os.close(child.pidfd)


def main() -> int:
    """Serves the control socket inherited as descriptor ``argv[1]``, and watches the parent by ``argv[2]`` and ``argv[3]``.

    ``argv[4]`` children are forked ahead.
    """
    import grammar_service.plan  # noqa: F401 - once, here: each child would pay for it

    log.configure("zygote", "warning")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service decides when we end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        Zygote(control, Watcher(int(sys.argv[2]), os.getppid(), float(sys.argv[3])), int(sys.argv[4])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
