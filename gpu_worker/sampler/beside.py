"""SamplerBeside: a sampler in a process of its own, beside an engine that owns the logits, on the same device.

The engine writes logits into ``logits`` (device memory that both processes see) and calls ``launch``: the sampler waits on the
device for what was enqueued until then, samples, and the engine's stream waits for it before the next forward reads ``tokens`` or
writes logits. Messages go over a pair of sockets as MessagePack; each question has its answers before the next is asked.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from gpu_worker.sampler.shared_logits import SharedShape, make
from gpu_worker.sampler.slot_sampler import Sampled
from kernels.reference import SampleStatus
from shared.bitmask import Words
from shared.errors import WorkerLost
from shared.protocol import WireError
from shared.sampling_params import SamplingParams

PATIENCE_S = 60.0


class Share(msgspec.Struct, frozen=True, tag="share"):
    """The first question: the buffer and the engine's event. Answer: Shared."""

    shape: SharedShape
    vocab_size: int
    device: str
    handle: bytes
    event: bytes


class Admit(msgspec.Struct, frozen=True, tag="admit"):
    slot: int
    params: SamplingParams
    prompt: list[int]
    end_ids: list[int]
    guided: bool


class Release(msgspec.Struct, frozen=True, tag="release"):
    slot: int


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """Row i of the logits is that of ``slots[i]``; ``rows``: int32 words by slot. Answers: Enqueued, then Tokens."""

    slots: list[int]
    rows: dict[int, bytes]


class Shared(msgspec.Struct, frozen=True, tag="shared"):
    event: bytes


class Enqueued(msgspec.Struct, frozen=True, tag="enqueued"):
    """The work is on its way: the sampler's event is recorded; or an admission or release has been done."""


class Tokens(msgspec.Struct, frozen=True, tag="tokens"):
    token_ids: list[int]
    statuses: list[int]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    error: WireError


Question = Share | Admit | Release | Launch
Answer = Shared | Enqueued | Tokens | Refused
_answers: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Answer)


class SamplerBeside:
    """The engine's side. ``slots`` rows of ``columns`` logits of ``dtype`` (float32, float16, bfloat16) on ``device`` (cpu, cuda).

    Raises what ``SlotSampler`` raises, by its wire code, and WorkerLost where the process is gone or says nothing.
    """

    def __init__(
        self, slots: int, vocab_size: int, device: str = "cpu", *, columns: int | None = None, dtype: str = "float32",
        patience_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        shape = SharedShape(slots, columns or vocab_size, dtype)
        self._shared, self._patience_s = make(shape, device), patience_s
        self.logits, self.tokens = self._shared.logits, self._shared.tokens
        ours, theirs = socket.socketpair()
        with theirs:
            passed = (theirs.fileno(), *((int(self._shared.handle),) if device == "cpu" else ()))
            command = [sys.executable, "-m", "gpu_worker.sampler.beside_process", str(theirs.fileno()), str(os.getpid())]
            self._child = subprocess.Popen(command, pass_fds=passed)
        self._pipe = Connection(ours.detach())
        shared = self._ask(Share(shape, vocab_size, device, self._shared.handle, self._shared.event))
        self._shared.watch(shared.event)

    def admit(
        self, slot: int, params: SamplingParams, *, prompt: Sequence[int] = (), end_ids: Iterable[int] = (), guided: bool = False
    ) -> None:
        """As ``SlotSampler.admit``."""
        self._ask(Admit(slot, params, list(prompt), list(end_ids), guided))

    def release(self, slot: int) -> None:
        self._ask(Release(slot))

    def launch(self, slots: Sequence[int], rows: Mapping[int, Words] | None = None) -> None:
        """Samples the first rows of ``logits``; what the current stream does next waits for it."""
        self._shared.record()
        self._ask(Launch(list(slots), {slot: words.tobytes() for slot, words in (rows or {}).items()}))
        self._shared.wait()

    def take(self) -> Sampled:
        """The tokens of the last launch, once."""
        told = self._hear()
        return Sampled(told.token_ids, [SampleStatus(status) for status in told.statuses])

    def sample(self, slots: Sequence[int], rows: Mapping[int, Words] | None = None) -> Sampled:
        """``launch`` and ``take``."""
        self.launch(slots, rows)
        return self.take()

    def close(self) -> None:
        """Ends the process."""
        self._pipe.close()
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._shared.close()
        self.logits, self.tokens = self._shared.logits, self._shared.tokens

    def _ask(self, question: Question) -> Any:
        try:
            self._pipe.send_bytes(msgspec.msgpack.encode(question))
        except OSError as error:
            raise WorkerLost(f"the sampler's process is gone: {error}") from error
        return self._hear()

    def _hear(self) -> Any:
        try:
            if not self._pipe.poll(self._patience_s):
                raise WorkerLost(f"the sampler's process said nothing for {self._patience_s:g} s")
            answer = _answers.decode(self._pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerLost("the sampler's process ended") from error
        if isinstance(answer, Refused):
            raise answer.error.exception()
        return answer
