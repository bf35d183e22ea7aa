"""The worker's Python in one step, by part, without a device: the real step loop, grammar link and front door on one thread, tokens
of documents in place of samples, grammar services in the same process (their time and the client's do not count). CPU time.

    python -m benchmarks.worker_step [SEQUENCES [SERVICES]]
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from benchmarks import report
from benchmarks.serving import VOCAB_SIZE, vocabulary_file
from benchmarks.step_path import StepPath, Walker
from gpu_worker.config import WorkerSettings
from gpu_worker.descriptor import Descriptor, LaunchResult, SlotAction
from gpu_worker.engine import Engine
from gpu_worker.front_door import FrontDoor
from gpu_worker.grammar_link import GrammarLink, LinkSettings, StepTicket
from gpu_worker.grammar_link.pump import Pump
from gpu_worker.grammar_link.router import Router
from gpu_worker.grammar_link.settings import VocabularyInfo
from gpu_worker.models.chat import TableChat
from gpu_worker.models.vocabulary import vocabulary_of_tiktoken
from gpu_worker.outcomes import Outcomes
from gpu_worker.pipeline import MAX_IN_FLIGHT, Pipeline
from gpu_worker.request import Model
from gpu_worker.requests import Requests
from gpu_worker.scheduler import Scheduler
from gpu_worker.sequence import Sequence as Text
from grammar_service import engines
from grammar_service.peer import Peer
from shared.bitmask import num_words
from shared.clock import Clock, MonotonicClock
from shared.guide import Guide
from shared.protocol import (
    Close,
    Compiled,
    Generate,
    HealthReply,
    Hello,
    Open,
    Ping,
    Pong,
    Ready,
    Step,
    Welcome,
    decode_worker,
    encode,
)  # fmt: skip
from shared.sockets import connect_dealer

SEQUENCES, SERVICES, STEPS, WARM_UP = (64, 256), 8, 40, 10
PARTS = (
    "turn", "submit", "link: walks out", "link: answers in", "take", "descriptor", "commit", "front door",
)  # fmt: skip


class Parts:
    """CPU seconds of each part of a step; what is measured inside another part is not counted there."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._running: list[str] = []
        self._since_s = time.thread_time()

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        self._switch()
        self._running.append(name)
        try:
            yield
        finally:
            self._switch()
            self._running.pop()

    def _switch(self) -> None:
        now_s = time.thread_time()
        if self._running:
            self.seconds[self._running[-1]] += now_s - self._since_s
        self._since_s = now_s

    def around(self, owner: object, method: str, name: str) -> None:
        """Counts a method of an object as a part."""
        inner: Callable[..., Any] = getattr(owner, method)

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.of(name):
                return inner(*args, **kwargs)

        setattr(owner, method, counted)


class Script(Pipeline):
    """A device that samples what is written down: the next token of a slot's document where the slot may act."""

    def __init__(self, documents: Sequence[Sequence[int]]) -> None:
        slots = len(documents)
        self._documents, self._slots = documents, slots
        self._buffers = [np.zeros((slots, num_words(VOCAB_SIZE)), np.int32) for _ in range(MAX_IN_FLIGHT)]
        self._at, self._launched = [0] * slots, 0
        self._sealed: deque[Descriptor] = deque()

    def attach(self) -> None: ...

    def row_buffers(self) -> list[NDArray[np.int32]]:
        return self._buffers

    def prefill(self, slot: int, token_ids: Sequence[int], start_position: int) -> None: ...

    def admit(self, slot: int, epoch: int, golden_token: int, position: int, *, plain: bool = False) -> None: ...

    def release(self, slot: int) -> None: ...

    def close(self) -> None: ...

    def launch(self) -> int:
        self._launched += 1
        return self._launched

    def seal(self, descriptor: Descriptor) -> bool:
        self._sealed.append(descriptor)
        return True

    def collect(self, timeout_s: float) -> LaunchResult | None:
        descriptor = self._sealed.popleft()
        token = np.full(self._slots, -1, np.int32)
        for slot in np.flatnonzero(descriptor.action < SlotAction.HOLD):
            token[slot] = self._documents[slot][self._at[slot]]
            self._at[slot] += 1
        status = np.zeros(self._slots, np.int32)
        return LaunchResult(descriptor.launch, token, status, descriptor.epoch, descriptor.action)


class Frame:
    """A received frame."""

    def __init__(self, data: bytes) -> None:
        self.bytes, self.buffer = data, memoryview(data)


class Wire:
    """In the place of the link's socket: what the worker sends waits until the services work on it."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes]] = []

    def send_multipart(self, parts: Sequence[bytes], flags: int = 0) -> None:
        self.sent.append((parts[0], parts[1]))

    def close(self, linger: int = 0) -> None: ...


class InlineLink(GrammarLink):
    """The grammar link with its thread's work done on the caller's, between a submit and its rows."""

    def __init__(self, bench: StepPath, walkers: Sequence[Walker], services: int, parts: Parts, clock: Clock) -> None:
        super().__init__()
        self.vocab_size, self._wire, self._parts = VOCAB_SIZE, Wire(), parts
        info = VocabularyInfo(fingerprint="f" * 32, vocab_size=VOCAB_SIZE, num_bytes=1, num_chunks=1)
        self._pump = self.pump = Pump(self._wire, Router(LinkSettings(), info), [], clock)  # type: ignore[arg-type]
        self._grammars = {walker.grammar.plan.digest: walker.grammar for walker in walkers}
        self._plans = deque(walker.grammar.plan for walker in walkers)
        self._services = {b"%d" % number: bench.peer() for number in range(services)}
        for peer in self._services:
            self._hear(peer, [encode(Hello(service=peer.decode(), instance=peer.decode(), engines=engines.versions()))])
            self._hear(peer, [encode(Ready(fingerprint="f" * 32))])
        self.work()

    def compile(self, guide: Guide, *, client: str = "", deadline_s: float = 30.0) -> Future[Compiled]:
        future: Future[Compiled] = Future()
        future.set_result(Compiled(key=guide.text, plan=self._plans.popleft()))
        return future

    def work(self) -> None:
        """Carries what was posted to the services and their answers back."""
        with self._parts.of("link: walks out"):
            self.pump._take_inbox()
        while self._wire.sent:
            sent, self._wire.sent = self._wire.sent, []
            answers: list[tuple[bytes, list[bytes]]] = []
            with self._parts.of("services"):
                for name, frame in sent:
                    answers += [(name, frames) for frames in self._serve(self._services[name], decode_worker(frame))]
            for name, frames in answers:
                self._hear(name, frames)

    def _hear(self, peer: bytes, frames: list[bytes]) -> None:
        parts: Any = [Frame(peer), *map(Frame, frames)]
        with self._parts.of("link: answers in"):
            self.pump._received(parts)

    def _serve(self, peer: Peer, message: Any) -> Iterator[list[bytes]]:
        if isinstance(message, Step):
            yield from peer.step(message, time.monotonic())
        elif isinstance(message, Open):
            opened = peer.open(message, self._grammars[message.plan_digest], time.monotonic())
            yield [encode(opened)] if opened is not None else []
        elif isinstance(message, Welcome):
            peer.grant(message)
        elif isinstance(message, Ping):
            yield [encode(Pong(nonce=message.nonce))]
        elif isinstance(message, Close):
            peer.close(message.sessions)


class InlineEngine(Engine):
    """The step loop where the wait for rows is the link's work."""

    def _wait(self, ticket: StepTicket, batch: list[Text]) -> None:
        link: Any = self._link
        link.work()
        super()._wait(ticket, batch)


class Worker:
    """Everything of a worker but its threads and its device."""

    def __init__(self, bench: StepPath, count: int, services: int, *, guided: bool) -> None:
        walkers = bench.walkers(count)
        clock, self.parts = MonotonicClock(), Parts()
        settings = WorkerSettings(
            max_slots=count, max_waiting=count, client_bind="tcp://127.0.0.1:*", max_requests_per_client=count
        )
        self.link = InlineLink(bench, walkers, services, self.parts, clock)
        self._outcomes = Outcomes(lambda replies: self.door.reply_all(replies), clock, VOCAB_SIZE)
        documents = [walker.tokens[walker.start :] if not guided else walker.tokens for walker in walkers]
        self.engine = InlineEngine(
            settings, Script(documents), self.link, Scheduler(count, 64), Requests(bench.vocabulary), self._outcomes, clock
        )
        model = Model("script", bench.vocabulary, TableChat(bench.vocabulary), 1 << 14)
        self.door = FrontDoor(settings, model, self.engine, clock, _health)
        self.guided, self.count = guided, count
        self._context: zmq.Context[Any] = zmq.Context()
        self._client = connect_dealer(self._context, self.door.address, insecure=True)

    def start(self) -> None:
        guide: dict[str, Any] = {"structured_outputs": {"regex": "x"}} if self.guided else {}
        for number in range(self.count):
            params = {"max_tokens": 4096} | ({} if self.guided else {"ignore_eos": True})
            self._client.send(
                encode(Generate(request_id=f"r{number}", prompt="a", sampling_params=params, deadline_s=600.0, **guide))
            )
        while self.door._clients.total < self.count:
            self.door._receive_some()
        for name in ("submit", "take", "descriptor"):
            self.parts.around(self.engine._rows, name, name)
        self.parts.around(self.engine, "_commit", "commit")
        self.parts.around(self.door, "_send_all", "front door")
        self.parts.around(self.engine._pipeline, "collect", "device")

    def step(self) -> dict[str, float]:
        """Milliseconds of each part."""
        self.parts.seconds.clear()
        with self.parts.of("turn"):
            self.engine._turn()
            self._outcomes.flush()
            self.door._send_all()
        while self._client.poll(0):
            self._client.recv()
        return {name: 1e3 * self.parts.seconds[name] for name in PARTS}

    def close(self) -> None:
        self._outcomes.close()
        self.door._socket.close(0)
        self.door._context.term()
        self._client.close(0)
        self._context.term()


def _health() -> HealthReply:
    return HealthReply(
        live=True, ready=True, model="", vocab_size=1, num_slots=1, active=0, waiting=0, grammar_services=[], version=""
    )


def measure(bench: StepPath, count: int, services: int, *, guided: bool) -> dict[str, float]:
    """Median milliseconds of each part over STEPS steps."""
    worker = Worker(bench, count, services, guided=guided)
    worker.start()
    for _ in range(WARM_UP):
        worker.step()
    gc.collect()
    steps = [worker.step() for _ in range(STEPS)]
    decoding = worker.engine.scheduler.decoding
    if len(decoding) != count or any(len(text.tokens) < STEPS for text in decoding):
        raise SystemExit("a text of the benchmark did not go on")
    worker.close()
    return {name: statistics.median(step[name] for step in steps) for name in PARTS}


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    counts, services = numbers[:1] or SEQUENCES, numbers[1] if len(numbers) > 1 else SERVICES
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, vocabulary_file(Path(folder)) as file:
        bench = StepPath(vocabulary_of_tiktoken(file, VOCAB_SIZE))
        for count in counts:
            for guided in (True, False):
                parts = measure(bench, count, services, guided=guided)
                rows.append({"sequences": count, "guided": str(guided), "ms a step": sum(parts.values())} | parts)
    report.publish("worker-step", rows)


if __name__ == "__main__":
    main()
