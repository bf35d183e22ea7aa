"""The zygote's side of a child that was forked ahead of its guide."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

from grammar_service.trial import RESULT_HEADER, run_child, run_spare
from grammar_service.vocabularies import Loaded

HAND_OVER_S = 1.0  # a body may be larger than a socket holds, and the child may be warming up


class Spare(NamedTuple):
    """A child that waits on ``control``. It has not seen a guide of anyone."""

    pid: int
    pidfd: int
    control: socket.socket

    @classmethod
    def fork(cls, loaded: Mapping[str, Loaded], forget: Callable[[], None]) -> Self:
        """Forks one; ``forget`` closes in it what is the zygote's."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            forget()
            run_child(lambda: run_spare(theirs, loaded))
        theirs.close()
        ours.settimeout(HAND_OVER_S)
        return cls(pid, os.pidfd_open(pid), ours)

    def take(self, body: bytes, result: int) -> bool:
        """Hands over a request and the descriptor of its result; False where the child is gone. It is a spare no more."""
        try:
            socket.send_fds(self.control, [RESULT_HEADER.pack(len(body))], [result])
            self.control.sendall(body)
        except OSError:
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Closes the descriptors."""
        self.control.close()
        os.close(self.pidfd)

    def end(self) -> None:
        """Kills the child, which may be dead already, and reaps it."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.forget()
