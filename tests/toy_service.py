"""A small grammar service for tests of the link: speaks the whole protocol over a toy language, in a thread.

Language: after token t the tokens t + 1 and t + 2 (mod the stop id) and the stop token are allowed; first 0 and 1. Rows are a
function of the prefix alone, so every service gives the same.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable

import numpy as np
import zmq

from shared import protocol
from shared.bitmask import RowKind, pack
from shared.digest import chain, of_walk
from shared.protocol import (
    Close,
    Compile,
    Compiled,
    Drain,
    Hello,
    HelloAgain,
    Open,
    Opened,
    Ping,
    Plan,
    Pong,
    Ready,
    Step,
    StepAnswer,
    StepAnswerEntry,
    StepEntry,
    StepStatus,
    VocabularyChunk,
    VocabularyRequest,
    Welcome,
    WireError,
    WireRow,
)
from shared.sockets import connect_dealer
from shared.tokenizer import Vocabulary, from_wire

HELLO_AFTER_S = 0.4  # the link pings more often than that: silence means a new connection
STOP = 99
VOCAB_SIZE = 100
ENGINES = {"toy": "1"}


def vocabulary() -> Vocabulary:
    return Vocabulary(token_bytes=[b"%d," % i for i in range(STOP)] + [b""], special_ids=[STOP], stop_ids=[STOP])


def toy_plan(text: str = "") -> Plan:
    return Plan(engine="toy", engine_version="1", guide_kind="regex", grammar_kind="toy", text=text)


def allowed_after(prefix: list[int], stop_ids: list[int]) -> list[int]:
    """The language."""
    if not prefix:
        return [0, 1]
    return sorted({(prefix[-1] + 1) % STOP, (prefix[-1] + 2) % STOP, *stop_ids})


class ToySession:
    """History of one session, rows of its walks."""

    def __init__(self, message: Open, plan: Plan) -> None:
        self.epoch, self.plan, self.stop_ids = message.epoch, plan, list(message.stop_ids)
        self.history = list(message.committed)

    def step(self, entry: StepEntry, frames: list[bytes]) -> StepAnswerEntry:
        base = entry.base_length - len(entry.committed)
        history = self.history[:base] + list(entry.committed)
        prefix_digest = chain(self.plan.digest, history)[-1]
        if len(history) != entry.base_length or prefix_digest != entry.prefix_digest:
            return _entry(entry, b"", StepStatus.RESYNC)
        self.history = history + list(entry.path)
        rows, advanced, status = self._walk(history, entry, frames)
        digest = of_walk(prefix_digest, entry.path, entry.parents)
        return StepAnswerEntry(entry.handle, entry.epoch, entry.sequence_number, digest, status, advanced, len(rows), rows)

    def _walk(self, history: list[int], entry: StepEntry, frames: list[bytes]) -> tuple[list[WireRow], int, StepStatus]:
        prefix = list(history)
        rows = [] if entry.path else [self._row(prefix, frames)]
        for index, token in enumerate(entry.path):
            if token not in allowed_after(prefix, self.stop_ids):
                return rows, index, StepStatus.OK if index else StepStatus.REFUSED
            prefix.append(token)
            if token in self.stop_ids:
                return rows, index + 1, StepStatus.TERMINATED
            rows.append(self._row(prefix, frames))
        return rows, len(entry.path), StepStatus.OK

    def _row(self, prefix: list[int], frames: list[bytes]) -> WireRow:
        """Dense and sparse in turn."""
        ids = allowed_after(prefix, self.stop_ids)
        if len(prefix) % 2:
            return WireRow(RowKind.SPARSE, ids=np.asarray(ids, dtype="<i4").tobytes())
        frames.append(pack(ids, VOCAB_SIZE).tobytes())
        return WireRow(RowKind.DENSE, len(frames) - 1)


def _entry(entry: StepEntry, digest: bytes, status: StepStatus) -> StepAnswerEntry:
    return StepAnswerEntry(entry.handle, entry.epoch, entry.sequence_number, digest, status, 0, 0, [])


class ToyService(threading.Thread):
    """Connects, registers, answers. Between ``silence`` and ``speak`` it reads and answers nothing."""

    def __init__(self, address: str, name: str = "toy", *, engines: dict[str, str] | None = None, credit: int = 8) -> None:
        super().__init__(name=name, daemon=True)
        self._address, self._engines, self._credit = address, engines or ENGINES, credit
        self._stop_event, self.drain_event = threading.Event(), threading.Event()
        self._mute, self._is_mute = threading.Event(), threading.Event()
        self.sessions: dict[int, ToySession] = {}
        self.plans: dict[bytes, Plan] = {}
        self.compiles: list[Compile] = []
        self.closed: list[tuple[int, int]] = []
        self.num_steps = 0
        self.copies = 1  # of each answer to a step
        self.on_compile: Callable[[Compile], Compiled | None] | None = None
        self._table: list[bytes] = []

    def stop(self) -> None:
        self._stop_event.set()
        self.join()

    def silence(self) -> None:
        self._mute.set()
        self._is_mute.wait(5)

    def speak(self) -> None:
        self._is_mute.clear()
        self._mute.clear()

    def run(self) -> None:
        context = zmq.Context()
        self._socket = connect_dealer(context, self._address)
        self._heard_s, self._instance = time.monotonic(), uuid.uuid4().hex
        self._socket.poll(1_000, zmq.POLLOUT)
        self._hello()
        try:
            while not self._stop_event.is_set():
                if self.drain_event.is_set():
                    self.drain_event.clear()
                    self._send(Drain())
                if self._mute.is_set():
                    self._is_mute.set()
                    self._stop_event.wait(0.01)
                elif self._socket.poll(10):
                    self._heard_s = time.monotonic()
                    self._act(protocol.decode_worker(self._socket.recv_multipart()[0]))
                elif time.monotonic() - self._heard_s > HELLO_AFTER_S:
                    self._heard_s = time.monotonic()
                    self._hello()
        finally:
            self._socket.close(0)
            context.term()

    def _hello(self) -> None:
        self._send(Hello(service=self.name, instance=self._instance, engines=self._engines, max_outstanding_steps=self._credit))

    def _send(self, message: protocol.Message, frames: list[bytes] | None = None) -> None:
        with contextlib.suppress(zmq.Again):  # not connected: what it would have said is asked for again
            self._socket.send_multipart([protocol.encode(message), *(frames or [])], zmq.NOBLOCK)

    def _act(self, message: protocol.WorkerMessage) -> None:
        if isinstance(message, Welcome):
            self._welcome, self._table = message, []
            self._send(VocabularyRequest(fingerprint=message.fingerprint, chunk=0))
        elif isinstance(message, VocabularyChunk):
            self._take_chunk(message)
        elif isinstance(message, Compile):
            self._compile(message)
        elif isinstance(message, Open):
            self._open(message)
        elif isinstance(message, Step):
            self._step(message)
        elif isinstance(message, Close):
            self.closed += message.sessions
            for handle, epoch in message.sessions:
                if handle in self.sessions and self.sessions[handle].epoch == epoch:
                    del self.sessions[handle]
        elif isinstance(message, Ping):
            self._send(Pong(nonce=message.nonce))
        elif isinstance(message, HelloAgain):
            self._hello()

    def _take_chunk(self, message: VocabularyChunk) -> None:
        self._table.append(message.data)
        if len(self._table) < self._welcome.num_chunks:
            self._send(VocabularyRequest(fingerprint=message.fingerprint, chunk=len(self._table)))
            return
        if from_wire(b"".join(self._table), message.fingerprint).size == self._welcome.vocab_size:
            self._send(Ready(fingerprint=message.fingerprint))

    def _compile(self, message: Compile) -> None:
        self.compiles.append(message)
        plan = toy_plan(message.guide.text)
        self.plans[plan.digest] = plan
        answer = self.on_compile(message) if self.on_compile else Compiled(key=message.key, plan=plan)
        if answer is not None:
            self._send(answer)

    def _open(self, message: Open) -> None:
        plan = message.plan or self.plans.get(message.plan_digest)
        if plan is None:
            error = WireError(code="unknown_plan", message="send the plan")
            self._send(Opened(handle=message.handle, epoch=message.epoch, error=error))
            return
        self.plans[plan.digest] = plan
        self.sessions[message.handle] = ToySession(message, plan)
        self._send(Opened(handle=message.handle, epoch=message.epoch))

    def _step(self, message: Step) -> None:
        self.num_steps += 1
        entries: list[StepAnswerEntry] = []
        frames: list[bytes] = []
        for entry in message.entries:
            session = self.sessions.get(entry.handle)
            if session is None or session.epoch != entry.epoch:
                entries.append(_entry(entry, b"", StepStatus.RESYNC))
            else:
                entries.append(session.step(entry, frames))
        for _ in range(self.copies):
            self._send(StepAnswer(step=message.step, entries=entries), frames)
