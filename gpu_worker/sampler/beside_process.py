"""The process of ``SamplerBeside``: ``python -m gpu_worker.sampler.beside_process FD PARENT``. It ends when the engine does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np

from gpu_worker.sampler.beside import Admit, Answer, Enqueued, Launch, Question, Refused, Release, Share, Shared, Tokens
from gpu_worker.sampler.shared_logits import make
from gpu_worker.sampler.slot_sampler import SlotSampler
from shared.errors import BadRequest, MaskstreamError
from shared.protocol import WireError

_questions: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Question)


class Desk:
    """Answers the engine's questions over one buffer."""

    def __init__(self, share: Share) -> None:
        self._shared = make(share.shape, share.device, share.handle)
        self._shared.watch(share.event)
        self._sampler = SlotSampler(share.shape.rows, share.vocab_size, share.device)
        self.event = self._shared.event

    def answer(self, question: Question) -> Iterator[Answer]:
        """The answers to a question, each to be sent before the next is asked for."""
        try:
            yield from self._work(question)
        except MaskstreamError as error:
            yield Refused(WireError.of(error))
        except ValueError as error:
            yield Refused(WireError.of(BadRequest(str(error))))

    def _work(self, question: Question) -> Iterator[Answer]:
        if isinstance(question, Launch):
            yield from self._launch(question)
            return
        if isinstance(question, Admit):
            asked = {"prompt": question.prompt, "end_ids": question.end_ids, "guided": question.guided}
            self._sampler.admit(question.slot, question.params, **asked)  # type: ignore[arg-type]
        elif isinstance(question, Release):
            self._sampler.release(question.slot)
        yield Enqueued()

    def _launch(self, question: Launch) -> Iterator[Answer]:
        count = len(question.slots)
        rows = {slot: np.frombuffer(words, np.int32) for slot, words in question.rows.items()}
        self._shared.wait()
        tokens = self._sampler.launch(self._shared.logits[:count], question.slots, rows)
        self._shared.tokens[:count] = tokens
        self._shared.record()
        yield Enqueued()
        sampled = self._sampler.take()
        yield Tokens(sampled.token_ids, [int(status) for status in sampled.statuses])

    def close(self) -> None:
        self._shared.close()


def main(argv: Sequence[str]) -> int:
    pipe, parent = Connection(int(argv[0])), int(argv[1])
    desk: Desk | None = None
    while os.getppid() == parent:
        try:
            question = _questions.decode(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            break
        if isinstance(question, Share):
            desk = Desk(question)
            pipe.send_bytes(msgspec.msgpack.encode(Shared(desk.event)))
        elif desk is not None:
            for answer in desk.answer(question):
                pipe.send_bytes(msgspec.msgpack.encode(answer))
    if desk is not None:
        desk.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
