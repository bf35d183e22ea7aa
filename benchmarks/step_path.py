"""The service's step path without sockets, beside the bare engines in the same run: rows/s of decode, accept, fill, hash, encode
as a share of the engines' own consume and batch fill; bytes a row from an empty pool and once warm. Times are of the CPU: what else
runs on the machine takes no part."""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import report
from benchmarks.documents import schemas
from benchmarks.serving import VOCAB_SIZE, vocabulary_file
from gpu_worker.models.chat import TableChat
from gpu_worker.models.vocabulary import vocabulary_of_tiktoken
from grammar_service import engines
from grammar_service.cache import CompiledGrammar
from grammar_service.compile import build, plan_of
from grammar_service.peer import Peer
from grammar_service.row_pool import RowPool
from grammar_service.rows import RowStore
from grammar_service.service import COLLECT_AFTER
from grammar_service.sessions import Sessions
from grammar_service.stepper import Budget, Stepper
from grammar_service.vocabularies import Loaded
from grammar_service.walks import walk
from shared import digest
from shared.bitmask import num_words
from shared.guide import make_guide
from shared.protocol import Open, Step, StepEntry, StepStatus, decode_service, decode_worker, encode
from shared.tokenizer import Vocabulary

SESSIONS, STEPS, POOL_ROWS, REPEATS = (1, 8, 64, 256), 60, 1024, 5


class Walker(NamedTuple):
    """A session's grammar, the tokens of its document, and how many of them are committed when it opens."""

    grammar: CompiledGrammar
    tokens: list[int]
    start: int = 0

    def token(self, step: int) -> int:
        """What step ``step`` walks."""
        return self.tokens[self.start + step - 1]


class Run(NamedTuple):
    """Microseconds a row of the bare engines and of the service, bytes a row, median of a step."""

    bare_us: float
    service_us: float
    num_bytes: float
    p50_ms: float

    @property
    def ratio(self) -> float:
        return self.bare_us / self.service_us


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, vocabulary_file(Path(folder)) as file:
        bench = StepPath(vocabulary_of_tiktoken(file, VOCAB_SIZE))
        report.publish("grammar-step-path", [bench.measure(sessions) for sessions in SESSIONS])


class StepPath:
    """One vocabulary, its engines with one thread, compiled grammars and documents."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._step = 0
        gc.set_threshold(*COLLECT_AFTER)
        self.vocabulary = vocabulary
        self.size, self.stop_ids = vocabulary.size, list(vocabulary.stop_ids)
        self.engines = engines.load(vocabulary, threads=1)
        self.loaded = Loaded("", vocabulary.size, self.engines, RowStore(vocabulary.size, 64 << 20))
        chat = TableChat(vocabulary)
        self._walkers = [
            Walker(
                build(plan_of(make_guide("json_schema", schema), engines.versions()), self.loaded),
                chat.encode(json.dumps(value, separators=(", ", ": "), ensure_ascii=False)),
            )
            for schema, value in schemas()
        ]

    def walkers(self, count: int) -> list[Walker]:
        """Sessions of one schema begin at different places of its document."""
        found = []
        for number in range(count):
            walker = self._walkers[number % len(self._walkers)]
            found.append(walker._replace(start=number // len(self._walkers) * 7 % (len(walker.tokens) - STEPS)))
        return found

    def measure(self, sessions: int) -> dict[str, Any]:
        walkers, peer = self.walkers(sessions), self.peer()
        empty = self.run(peer, walkers)
        warm = sorted((self.run(peer, walkers) for _ in range(REPEATS)), key=lambda run: run.ratio)[REPEATS // 2]
        return {
            "sessions": sessions, "bare rows/s": 1e6 / warm.bare_us, "service rows/s": 1e6 / warm.service_us, "ratio": warm.ratio,
            "empty pool": empty.ratio, "python us/row": warm.service_us - warm.bare_us,
            "bytes/row, empty pool": empty.num_bytes, "warm": warm.num_bytes, "p50 ms": warm.p50_ms,
        }  # fmt: skip

    def peer(self) -> Peer:
        """A connection as the service has it after its Welcome, with an empty pool."""
        rows = RowStore(self.size, 64 << 20)
        peer = Peer(1)
        peer.loaded, peer.sessions = self.loaded._replace(rows=rows), Sessions(rows, walk)
        peer.pool = RowPool(0, POOL_ROWS)
        peer.stepper = Stepper(self.engines, rows, Budget(5.0, 5.0))
        return peer

    def run(self, peer: Peer, walkers: Sequence[Walker]) -> Run:
        """Every step of the documents, first by the bare engines, then by the service: other loads hit both."""
        bare, service = _Bare(self, walkers), _Service(self, peer, walkers)
        gc.collect()
        for step in range(STEPS):
            self._step += 1
            bare.step(step)
            service.step(step, self._step)
        service.check()
        peer.close([(handle, 1 << 31) for handle in range(len(walkers))])
        rows = len(walkers) * STEPS
        return Run(
            1e6 * sum(bare.seconds) / rows, 1e6 * sum(service.seconds) / rows, service.num_bytes() / rows,
            1e3 * statistics.median(service.seconds),
        )  # fmt: skip


class _Bare:
    """The engines alone: consume the token, fill the batch natively."""

    def __init__(self, bench: StepPath, walkers: Sequence[Walker]) -> None:
        self._engines, self._walkers = bench.engines, walkers
        self._matchers = [walker.grammar.factory.create(bench.stop_ids).native for walker in walkers]
        self._by_engine: dict[str, list[int]] = {}
        for number, (walker, matcher) in enumerate(zip(walkers, self._matchers, strict=True)):
            self._by_engine.setdefault(matcher.engine, []).append(number)
            matcher.consume(walker.tokens[: walker.start])
        self._out = np.zeros((len(walkers), num_words(bench.size)), np.int32)
        self.seconds: list[float] = []

    def step(self, step: int) -> None:
        started_s = time.process_time()
        for name, members in self._by_engine.items():
            if step:
                for number in members:
                    self._matchers[number].consume((self._walkers[number].token(step),))
            self._engines[name].fill([self._matchers[number] for number in members], self._out)
        self.seconds.append(time.process_time() - started_s)


class _Service:
    """The whole path: what a worker sends, to what it is sent back."""

    def __init__(self, bench: StepPath, peer: Peer, walkers: Sequence[Walker]) -> None:
        self._peer, self._walkers = peer, walkers
        self._digests = [self._open(bench.stop_ids, handle, walker) for handle, walker in enumerate(walkers)]
        self._answers: list[list[bytes]] = []
        self.seconds: list[float] = []

    def step(self, step: int, number: int) -> None:
        entries = [self._entry(handle, walker, step) for handle, walker in enumerate(self._walkers)]
        frame = encode(Step(step=number, retired_step=max(number - 2, -1), entries=entries))
        started_s = time.process_time()
        message = decode_worker(frame)
        for frames in self._peer.step(message, time.monotonic()):  # type: ignore[arg-type]
            self._answers.append(frames)
        self.seconds.append(time.process_time() - started_s)

    def check(self) -> None:
        """Raises SystemExit where a row is missing."""
        decoded = [entry for frames in self._answers for entry in decode_service(frames[0]).entries]  # type: ignore[union-attr]
        if len(decoded) != len(self._walkers) * STEPS or any(entry.status != StepStatus.OK for entry in decoded):
            raise SystemExit("a document of the benchmark was refused")

    def num_bytes(self) -> int:
        return sum(len(part) for frames in self._answers for part in frames)

    def _open(self, stop_ids: list[int], handle: int, walker: Walker) -> bytes:
        plan, committed = walker.grammar.plan.digest, walker.tokens[: walker.start]
        message = Open(handle=handle, epoch=1, plan_digest=plan, stop_ids=stop_ids, committed=committed)
        self._peer.open(message, walker.grammar, time.monotonic())
        return digest.chain(plan, committed)[-1]

    def _entry(self, handle: int, walker: Walker, step: int) -> StepEntry:
        committed = [walker.token(step - 1)] if step > 1 else []
        for token in committed:
            self._digests[handle] = digest.extend(self._digests[handle], token)
        path = [walker.token(step)] if step else []
        return StepEntry(handle, 1, step, walker.start + max(step - 1, 0), self._digests[handle], committed, path)


if __name__ == "__main__":
    main()
