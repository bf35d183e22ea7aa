"""The worker's side of the grammar link, as small as it can be: one ROUTER that greets, hands out a vocabulary and asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import zmq

from shared import digest
from shared.bitmask import EncodedRow, RowKind, Words, decode, num_words
from shared.guide import Guide, key_of
from shared.protocol import (
    Close,
    Compile,
    Compiled,
    Hello,
    Open,
    Opened,
    Plan,
    Pong,
    Ready,
    Step,
    StepAnswer,
    StepAnswerEntry,
    StepEntry,
    VocabularyChunk,
    VocabularyRequest,
    Welcome,
    decode_service,
    encode,
)  # fmt: skip
from shared.sockets import bind_router, last_endpoint
from shared.tokenizer import Vocabulary, chunks, fingerprint_of, to_wire


class Driver:
    """Serves one grammar service (the last that greeted) with blocking calls and a deadline on each."""

    def __init__(self, vocabulary: Vocabulary, address: str = "tcp://127.0.0.1:*", *, timeout_s: float = 30.0) -> None:
        self.vocabulary = vocabulary
        self._timeout_s = timeout_s
        self._data = to_wire(vocabulary)
        self.fingerprint = fingerprint_of(self._data)
        self._context: zmq.Context[Any] = zmq.Context()
        self.socket = bind_router(self._context, address, insecure=True)
        self.address = last_endpoint(self.socket)
        self.identity = b""
        self.hello: Hello | None = None
        self.lease_s = 60.0
        self.log: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close(0)
        self._context.destroy(0)

    def send(self, message: Any) -> None:
        self.socket.send_multipart([self.identity, encode(message)])

    def send_raw(self, frames: Sequence[bytes]) -> None:
        self.socket.send_multipart([self.identity, *frames])

    def receive(self, timeout_s: float | None = None) -> tuple[Any, list[bytes]]:
        """The next message that is none of the greeting's."""
        deadline = time.monotonic() + (timeout_s or self._timeout_s)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not self.socket.poll(int(left * 1000) + 1):
                raise TimeoutError("the service did not answer")
            identity, first, *frames = self.socket.recv_multipart()
            message = decode_service(first)
            self.log.append(message)
            if not self._greet(identity, message):
                return message, frames

    def _greet(self, identity: bytes, message: Any) -> bool:
        if isinstance(message, Hello):
            self.identity, self.hello = identity, message
            self.send(Welcome(
                worker="driver", fingerprint=self.fingerprint, vocab_size=self.vocabulary.size,
                vocabulary_bytes=len(self._data), num_chunks=len(chunks(self._data)), lease_s=self.lease_s,
            ))  # fmt: skip
            return True
        if isinstance(message, VocabularyRequest):
            data = chunks(self._data)[message.chunk]
            self.send(VocabularyChunk(fingerprint=message.fingerprint, chunk=message.chunk, data=data))
            return True
        return False

    def expect(self, kind: type, accept: Callable[[Any], bool] = lambda _: True) -> tuple[Any, list[bytes]]:
        """The next message of a kind; others are dropped."""
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            message, frames = self.receive(max(0.001, deadline - time.monotonic()))
            if isinstance(message, kind) and accept(message):
                return message, frames
        raise TimeoutError(f"no {kind.__name__}")

    def wait_ready(self) -> Ready:
        ready: Ready = self.expect(Ready)[0]
        return ready

    def compile(self, kind: str, text: str = "", **options: Any) -> Compiled:
        guide = Guide(kind=kind, text=text, **options)  # type: ignore[arg-type]
        key = key_of(guide)
        self.send(Compile(key=key, guide=guide, client="test"))
        compiled: Compiled = self.expect(Compiled, lambda message: message.key == key)[0]
        return compiled

    def open(self, handle: int, pinned: Plan, *, epoch: int = 0, committed: Sequence[int] = (), **fields: Any) -> Opened:
        fields.setdefault("stop_ids", self.vocabulary.stop_ids)
        self.send(Open(handle=handle, epoch=epoch, plan_digest=pinned.digest, committed=list(committed), **fields))
        opened: Opened = self.expect(Opened, lambda message: message.handle == handle)[0]
        return opened

    def step(self, *entries: StepEntry, step: int = 1) -> dict[int, tuple[StepAnswerEntry, list[Words]]]:
        """One step; answers by handle, rows decoded."""
        self.send(Step(step=step, retired_step=0, entries=list(entries)))
        answers: dict[int, tuple[StepAnswerEntry, list[Words]]] = {}
        while len(answers) < len(entries):
            answer, frames = self.expect(StepAnswer)
            for entry in answer.entries:
                answers[entry.handle] = entry, [self.row(row, frames) for row in entry.rows]
        return answers

    def row(self, row: Any, frames: list[bytes]) -> Words:
        out = np.zeros(num_words(self.vocabulary.size), dtype=np.int32)
        kind = RowKind(row.kind)
        ids = (row.value,) if kind is RowKind.SINGLE else tuple(np.frombuffer(row.ids, dtype="<i4").tolist())
        words = np.frombuffer(frames[row.value], dtype=np.int32) if kind is RowKind.DENSE else None
        decode(EncodedRow(kind, ids, words), out, self.vocabulary.size, frozenset(self.vocabulary.stop_ids))
        return out

    def end(self, *handles: tuple[int, int]) -> None:
        self.send(Close(sessions=list(handles)))


class Sequence1:
    """One sequence's committed tokens and the entries that follow from them (no drafts)."""

    def __init__(self, driver: Driver, handle: int, plan: Plan, *, epoch: int = 0, committed: Sequence[int] = ()) -> None:
        self.driver = driver
        self.handle = handle
        self.plan = plan
        self.epoch = epoch
        self.tokens = list(committed)
        self.number = 0
        self._pending = 0

    def entry(self, path: Sequence[int] = (), *, committed: int | None = None, **fields: Any) -> StepEntry:
        """The next entry; ``committed`` tokens at the end of ``tokens`` are told again (default: those since the last one)."""
        self.number += 1
        new = self._pending if committed is None else committed
        self._pending = 0
        base = len(self.tokens)
        prefix = digest.chain(self.plan.digest, self.tokens)[-1]
        return StepEntry(self.handle, self.epoch, self.number, base, prefix, self.tokens[base - new :], list(path), **fields)

    def commit(self, *token_ids: int) -> None:
        self.tokens += token_ids
        self._pending += len(token_ids)


__all__ = ["Driver", "Pong", "Sequence1"]
