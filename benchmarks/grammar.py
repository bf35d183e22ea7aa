"""The grammar service beside its worker's link: step latency by sessions and services, bytes a row, memory, new and known guides.

Documents are real texts of 18 schemas, walked token by token as a worker would: one Step a service and step, one row a session.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import report, step_path
from benchmarks.documents import schemas
from benchmarks.serving import VOCAB_SIZE, vocabulary_file
from gpu_worker.grammar_link import GrammarLink, LinkSettings, SessionId, Walk, WalkStatus
from gpu_worker.models.chat import TableChat
from gpu_worker.models.vocabulary import vocabulary_of_tiktoken
from shared import metrics
from shared.bitmask import num_words
from shared.guide import Guide, key_of, make_guide
from shared.processes import Processes
from shared.protocol import Compiled
from shared.tokenizer import Vocabulary

SESSIONS, SERVICES, STEPS = (1, 64, 256), (1, 2, 4), 40
NEW_SCHEMAS, APART_S = 100, 0.1


class Bench:
    """A link, its services and opened sessions that walk documents."""

    def __init__(self, vocabulary: Vocabulary, link: GrammarLink) -> None:
        self._link, self._vocabulary = link, vocabulary
        self._chat = TableChat(vocabulary)
        self._made = [(make_guide("json_schema", schema), self._tokens(value)) for schema, value in schemas()]

    def _tokens(self, value: Any) -> list[int]:
        return self._chat.encode(json.dumps(value, separators=(", ", ": ")))

    def compile(self, guide: Guide) -> Compiled:
        return self._link.compile(guide, deadline_s=60.0).result(60.0)

    def open(self, count: int) -> list[tuple[SessionId, list[int]]]:
        opened = []
        for number in range(count):
            guide, tokens = self._made[number % len(self._made)]
            plan = self.compile(guide).plan
            if plan is None:
                raise SystemExit("a guide of the benchmark was refused")
            opened.append((self._link.open(key_of(guide), plan, self._vocabulary.stop_ids), tokens))
        return opened

    def steps(self, opened: list[tuple[SessionId, list[int]]]) -> list[float]:
        """Seconds of each step: submit to the last row."""
        rows = np.zeros((len(opened), num_words(self._vocabulary.size)), np.int32)
        seconds = []
        for step in range(STEPS):
            walks = [
                Walk(
                    session,
                    row,
                    committed=tokens[max(step - 2, 0) : step - 1] if step > 1 else (),
                    path=tokens[step - 1 : step] if step else (),
                )
                for row, (session, tokens) in enumerate(opened)
            ]
            started = time.perf_counter()
            ticket = self._link.submit(step, walks, rows)
            ticket.wait(20.0)
            seconds.append(time.perf_counter() - started)
            wrong = {outcome.status.name for outcome in ticket.seal().values() if outcome.status is not WalkStatus.OK}
            if wrong:
                raise SystemExit(f"step {step}: {wrong}")
        return seconds[2:]

    def first_row(self, guide: Guide) -> float:
        """Seconds from the guide to the first row of a session of it."""
        rows = np.zeros((1, num_words(self._vocabulary.size)), np.int32)
        started = time.perf_counter()
        compiled = self.compile(guide)
        if compiled.plan is None:
            raise SystemExit("a guide of the benchmark was refused")
        session = self._link.open(key_of(guide), compiled.plan, self._vocabulary.stop_ids)
        ticket = self._link.submit(1, [Walk(session)], rows)
        ticket.wait(20.0)
        seconds = time.perf_counter() - started
        if ticket.seal()[session].status is not WalkStatus.OK:
            raise SystemExit("a first row of the benchmark did not come")
        self._link.close_session(session)
        return seconds

    def close(self, opened: list[tuple[SessionId, list[int]]]) -> None:
        for session, _ in opened:
            self._link.close_session(session)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, vocabulary_file(Path(folder)) as file:
        vocabulary = vocabulary_of_tiktoken(file, VOCAB_SIZE)
        latency, memory, compile_ = [], [], []
        for services in SERVICES:
            with Processes(Path(folder) / "log") as processes:
                link = GrammarLink(settings=LinkSettings(hold_after_s=20.0, replay_after_s=20.0))
                link.start(vocabulary)
                try:
                    latency += _measure(link, vocabulary, services, processes, memory, compile_)
                finally:
                    link.close()
    step_path.main()
    report.publish("grammar-steps", latency)
    report.publish("grammar-memory", memory)
    report.publish("grammar-first-row", compile_)


def _measure(
    link: GrammarLink,
    vocabulary: Vocabulary,
    services: int,
    processes: Processes,
    memory: list[dict[str, Any]],
    compile_: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    started = [
        processes.start("grammar_service", "--workers", link.address, "--metrics-port", "0", "--name", f"g{n}")
        for n in range(services)
    ]
    while len(link.service_names) < services:
        time.sleep(0.1)
    empty = _resident(started[0].pid)
    bench, rows = Bench(vocabulary, link), []
    if services == 1:
        memory.append({"what": "service, empty cache", "MB": empty})
        compile_ += _first_rows(bench)
    for count in SESSIONS:
        (_, first_bytes), (seconds, warm_bytes) = _pass(bench, count), _pass(bench, count)
        ordered = sorted(seconds)
        rows.append({
            "services": services, "sessions": count, "p50 ms": 1e3 * statistics.median(ordered),
            "p99 ms": 1e3 * ordered[int(len(ordered) * 0.99)], "rows/s": count * len(seconds) / sum(seconds),
            "bytes/row, first pass": first_bytes, "second pass": warm_bytes,
        })  # fmt: skip
        if services == 1:
            memory.append({"what": f"with {count} sessions of {STEPS} tokens", "MB": _resident(started[0].pid)})
    return rows


def _pass(bench: Bench, count: int) -> tuple[list[float], float]:
    """Seconds of each step of ``count`` sessions, and bytes a row."""
    opened = bench.open(count)
    before = metrics.mask_bytes_total._value.get()
    seconds = bench.steps(opened)
    num_bytes = metrics.mask_bytes_total._value.get() - before
    bench.close(opened)
    return seconds, num_bytes / (count * STEPS)


def _first_rows(bench: Bench) -> list[dict[str, Any]]:
    """From a schema to the first row of a session of it: nobody has seen it, then everybody has."""
    cold, known = [], []
    for number in range(NEW_SCHEMAS):
        properties = {f"field{number}": {"type": "string"}, "n": {"type": "integer"}, "t": {"enum": [number, "x"]}}
        guide = make_guide("json_schema", {"type": "object", "properties": properties, "required": [f"field{number}"]})
        time.sleep(APART_S)  # the next child is forked meanwhile
        cold.append(bench.first_row(guide))
        known.append(bench.first_row(guide))
    pairs = (("new schema", cold), ("known schema", known))
    return [
        {"to the first row of a": what, "p50 ms": 1e3 * statistics.median(times), "p99 ms": 1e3 * sorted(times)[-2]}
        for what, times in pairs
    ]


def _resident(pid: int) -> float:
    """Proportional share in MB, of the process that steps: the largest of the service's family."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return max(process.memory_full_info().pss for process in family) / 1e6


if __name__ == "__main__":
    main()
