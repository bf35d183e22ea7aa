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


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, vocabulary_file(Path(folder)) as file:
        bench = StepPath(vocabulary_of_tiktoken(file, VOCAB_SIZE))
        report.publish("grammar-step-path", [bench.measure(sessions) for sessions in SESSIONS])


class StepPath:
    """One vocabulary, its engines with one thread, compiled grammars and documents."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._step = 0
        gc.set_threshold(*COLLECT_AFTER)
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
        walkers = self.walkers(sessions)
        peer = self.peer()
        empty, empty_bytes, _ = self.run(peer, walkers)
        pairs = [(self._bare(walkers), self.run(peer, walkers)) for _ in range(REPEATS)]  # in turn: other loads hit both
        bare = statistics.median(rows for rows, _ in pairs)
        warm, warm_bytes, step_s = sorted(run for _, run in pairs)[REPEATS // 2]
        return {
            "sessions": sessions, "bare rows/s": bare, "service rows/s": warm, "ratio": warm / bare, "empty pool": empty / bare,
            "python us/row": 1e6 / warm - 1e6 / bare, "bytes/row, empty pool": empty_bytes, "warm": warm_bytes,
            "p50 ms": 1e3 * statistics.median(step_s),
        }  # fmt: skip

    def peer(self) -> Peer:
        """A connection as the service has it after its Welcome, with an empty pool."""
        rows = RowStore(self.size, 64 << 20)
        peer = Peer(1)
        peer.loaded, peer.sessions = self.loaded._replace(rows=rows), Sessions(rows, walk)
        peer.pool = RowPool(0, POOL_ROWS)
        peer.stepper = Stepper(self.engines, rows, Budget(5.0, 5.0))
        return peer

    def _bare(self, walkers: Sequence[Walker]) -> float:
        """Rows a second of the engines alone: consume the token, fill the batch natively."""
        matchers = [walker.grammar.factory.create(self.stop_ids).native for walker in walkers]
        by_engine: dict[str, list[int]] = {}
        for number, matcher in enumerate(matchers):
            by_engine.setdefault(matcher.engine, []).append(number)
        for walker, matcher in zip(walkers, matchers, strict=True):
            matcher.consume(walker.tokens[: walker.start])
        out, rows, spent_s = np.zeros((len(walkers), num_words(self.size)), np.int32), 0, 0.0
        for step in range(STEPS):
            started_s = time.process_time()
            for name, members in by_engine.items():
                if step:
                    for number in members:
                        matchers[number].consume((walkers[number].token(step),))
                self.engines[name].fill([matchers[number] for number in members], out)
                rows += len(members)
            spent_s += time.process_time() - started_s
        return rows / spent_s

    def run(self, peer: Peer, walkers: Sequence[Walker]) -> tuple[float, float, list[float]]:
        """Rows a second of the whole path, bytes a row, seconds of each step."""
        digests = [self._open(peer, handle, walker) for handle, walker in enumerate(walkers)]
        answers: list[list[bytes]] = []
        seconds = []
        for step in range(STEPS):
            entries = [self._entry(handle, walker, step, digests) for handle, walker in enumerate(walkers)]
            self._step += 1
            frame = encode(Step(step=self._step, retired_step=max(self._step - 2, -1), entries=entries))
            started_s = time.process_time()
            message = decode_worker(frame)
            for frames in peer.step(message, time.monotonic()):  # type: ignore[arg-type]
                answers.append(frames)
            seconds.append(time.process_time() - started_s)
        decoded = [entry for frames in answers for entry in decode_service(frames[0]).entries]  # type: ignore[union-attr]
        if len(decoded) != len(walkers) * STEPS or any(entry.status != StepStatus.OK for entry in decoded):
            raise SystemExit("a document of the benchmark was refused")
        num_bytes = sum(len(part) for frames in answers for part in frames)
        peer.close([(handle, 1 << 31) for handle in range(len(walkers))])
        return len(walkers) * STEPS / sum(seconds), num_bytes / (len(walkers) * STEPS), seconds

    def _open(self, peer: Peer, handle: int, walker: Walker) -> bytes:
        plan, committed = walker.grammar.plan.digest, walker.tokens[: walker.start]
        message = Open(handle=handle, epoch=1, plan_digest=plan, stop_ids=self.stop_ids, committed=committed)
        peer.open(message, walker.grammar, time.monotonic())
        return digest.chain(plan, committed)[-1]

    @staticmethod
    def _entry(handle: int, walker: Walker, step: int, digests: list[bytes]) -> StepEntry:
        committed = [walker.token(step - 1)] if step > 1 else []
        for token in committed:
            digests[handle] = digest.extend(digests[handle], token)
        path = [walker.token(step)] if step else []
        return StepEntry(handle, 1, step, walker.start + max(step - 1, 0), digests[handle], committed, path)


if __name__ == "__main__":
    main()
