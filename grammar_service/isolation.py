"""The service's side of the zygote: sends it vocabularies and guides, and turns a child's end into an answer or an error."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from typing import BinaryIO, NamedTuple

import msgspec

from grammar_service.compile import Task, plan_of
from grammar_service.limits import GuideLimits, check, is_trivially_safe
from grammar_service.trial import RESULT_HEADER, Request, TrialLimits, TrialResult
from grammar_service.watch import BusyMark
from grammar_service.zygote import DROP, HEADER, LOAD, TRY, Ending
from shared import log, metrics
from shared.errors import CompileCrashed, CompileTimeout, MaskstreamError
from shared.guide import Guide
from shared.protocol import Plan

MAX_RESULT_BYTES = 64 << 20
GRACE_S = 10.0  # beyond the child's deadline: the zygote itself may be loading a vocabulary


class Attempt(NamedTuple):
    """What came back of a child: its result, or how it ended without one (None: the zygote died)."""

    result: bytes | None
    ending: Ending | None = None


class Isolation:
    """Starts the zygote, and again if it dies. Safe for several threads.

    ``kill_s`` is for the loop that ``busy`` tells of; ``num_spares`` children are forked ahead.
    """

    def __init__(self, limits: TrialLimits, guide: GuideLimits, busy: BusyMark, kill_s: float, num_spares: int) -> None:
        self._limits = limits
        self._guide_limits = guide
        self._num_spares = num_spares
        self._busy = busy
        self._kill_s = kill_s
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._vocabularies: dict[str, bytes] = {}
        self._log = log.get("isolation")

    def load(self, fingerprint: str, data: bytes) -> None:
        """Gives the zygote a vocabulary; kept, compressed by nothing, for a zygote that must be replaced."""
        with self._lock:
            self._vocabularies[fingerprint] = data
            self._send(LOAD, fingerprint.encode() + data)

    def drop(self, fingerprint: str) -> None:
        """The vocabulary is no longer held."""
        with self._lock:
            self._vocabularies.pop(fingerprint, None)
            self._send(DROP, fingerprint.encode())

    def attempt(self, task: Task) -> Plan:
        """The plan of a task that is safe to compile here. Raises MaskstreamError."""
        work = task.work
        if isinstance(work, Guide):
            check(work, self._guide_limits)
            if is_trivially_safe(work):
                return plan_of(work, {name: engine.version for name, engine in task.loaded.engines.items()})
        request = Request(
            task.key[0], self._limits, work if isinstance(work, Guide) else None, work if isinstance(work, Plan) else None
        )
        return self._judge(self._run(msgspec.msgpack.encode(request)))

    def _run(self, body: bytes) -> Attempt:
        result_in, result_out = os.pipe()
        verdict, verdict_out = socket.socketpair()
        with open(result_in, "rb") as result, verdict:
            try:
                with self._lock:
                    self._send(TRY, body, [result_out, verdict_out.fileno()])
            finally:
                os.close(result_out)
                verdict_out.close()
            if (data := _whole_result(result)) is not None:
                return Attempt(data)  # the child is on its way out: that takes 5 ms, and the zygote sees to it
            verdict.settimeout(self._limits.wall_s + GRACE_S)
            try:
                ending = verdict.recv(1024)
            except TimeoutError:
                ending = b""
        return Attempt(None, msgspec.msgpack.decode(ending, type=Ending) if ending else None)

    def _judge(self, attempt: Attempt) -> Plan:
        if attempt.result is None:
            raise self._ended(attempt.ending)
        result = msgspec.msgpack.decode(attempt.result, type=TrialResult)
        if result.out_of_memory:
            raise self._killed("oom", CompileCrashed(f"more than {self._limits.memory_bytes >> 20} MiB are needed"))
        for text in result.notes:
            self._log.debug("an engine refused", text=text)
        if result.error is not None:
            raise result.error.exception()
        if result.plan is None:
            raise MaskstreamError("the child gave neither a plan nor an error")
        return result.plan

    def _ended(self, ending: Ending | None) -> MaskstreamError:
        if ending is None:
            return self._killed("lost", CompileCrashed("the process that tries guides went away; try again"))
        if ending.late or ending.signal == signal.SIGXCPU:
            return self._killed("timeout", CompileTimeout(f"no result within {self._limits.wall_s:g} s"))
        memory = ending.peak_bytes > self._limits.memory_bytes // 2
        what = "needed too much memory" if memory else f"ended the process (signal {ending.signal}, status {ending.status})"
        return self._killed("oom" if memory else "crashed", CompileCrashed(f"compiling the guide {what}"))

    def _killed(self, reason: str, error: MaskstreamError) -> MaskstreamError:
        metrics.compile_killed_total.labels(reason).inc()
        return error

    def _send(self, kind: bytes, body: bytes, descriptors: list[int] | None = None) -> None:
        """One message to the zygote; a dead one is replaced and told the vocabularies first."""
        for _ in range(2):
            control = self._control or self._start()
            try:
                socket.send_fds(control, [HEADER.pack(kind, len(body))], descriptors or [])
                control.sendall(body)
                return
            except OSError as error:
                self._log.warning("zygote lost", error=str(error))
                self._stop()
        raise CompileCrashed("the process that tries guides cannot be reached")

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            passed = [theirs.fileno(), self._busy.descriptor]
            numbers = [*map(str, passed), str(self._kill_s), str(self._num_spares)]
            command = [sys.executable, "-m", "grammar_service.zygote", *numbers]
            self._process = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL)
        self._control = ours
        for fingerprint, data in self._vocabularies.items():
            body = fingerprint.encode() + data
            socket.send_fds(ours, [HEADER.pack(LOAD, len(body))], [])
            ours.sendall(body)
        return ours

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        """Ends the zygote; its children end with it."""
        with self._lock:
            self._stop()


def _whole_result(pipe: BinaryIO) -> bytes | None:
    """What the child wrote, once it is complete; None where it ended before, or wrote more than any plan of ours is."""
    head = pipe.read(RESULT_HEADER.size)
    length = RESULT_HEADER.unpack(head)[0] if len(head) == RESULT_HEADER.size else MAX_RESULT_BYTES + 1
    data = pipe.read(length) if length <= MAX_RESULT_BYTES else b""
    return data if len(data) == length else None
