"""Compilation off the loop: single flight, fair between clients, at most ``jobs`` at a time. Outcomes arrive in the inbox."""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from grammar_service.cache import CompiledGrammar
from grammar_service.engines.messages import cause_of
from grammar_service.vocabularies import Loaded
from shared import metrics
from shared.bitmask import count, is_alive
from shared.errors import MaskstreamError, Overloaded, StepError, Unsatisfiable, UnsupportedSchema
from shared.guide import Guide, canonical
from shared.protocol import Plan

Key = tuple[str, str]
"""(vocabulary fingerprint, guide key or hex digest of a plan)."""


class Task(NamedTuple):
    """What is to be compiled: a guide that must first be planned, or a plan that another service made."""

    key: Key
    client: str
    loaded: Loaded
    work: Guide | Plan


class Compiled(NamedTuple):
    """Outcome of a task; ``is_guide`` where its key is that of a guide, not of a plan."""

    key: Key
    client: str
    is_guide: bool
    outcome: CompiledGrammar | MaskstreamError
    compile_ms: float


Try = Callable[[Task], Plan]
"""Plans and tries a guide where it can do no harm; raises MaskstreamError where it is refused, too slow or deadly."""


class CompileQueue:
    """Who waits for what (pure): clients take turns, and equal keys are compiled once."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._by_client: OrderedDict[str, deque[Task]] = OrderedDict()
        self._known: set[Key] = set()
        self.num_waiting = 0

    def add(self, task: Task) -> bool:
        """Queues a task; False where the same one is under way. Raises Overloaded where too many wait."""
        if task.key in self._known:
            return False
        if self.num_waiting >= self._max_waiting:
            raise Overloaded(f"{self.num_waiting} guides wait to be compiled")
        self._by_client.setdefault(task.client, deque()).append(task)
        self._known.add(task.key)
        self.num_waiting += 1
        return True

    def take(self) -> Task | None:
        """The next task: the first of the client whose turn it is."""
        if not self._by_client:
            return None
        client, tasks = next(iter(self._by_client.items()))
        task = tasks.popleft()
        self._by_client.move_to_end(client)
        if not tasks:
            del self._by_client[client]
        self.num_waiting -= 1
        return task

    def done(self, key: Key) -> None:
        """The task of this key has ended."""
        self._known.discard(key)


class Compiler:
    """Threads that compile. ``attempt`` tries a task in isolation first; what it lets through is compiled in this process."""

    def __init__(self, jobs: int, max_waiting: int, attempt: Try, inbox: queue.SimpleQueue[Any]) -> None:
        self._queue = CompileQueue(max_waiting)
        self._attempt = attempt
        self._inbox = inbox
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._running = 0
        self._threads = [threading.Thread(target=self._work, name=f"compile-{i}", daemon=True) for i in range(jobs)]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> None:
        """Called by the work loop. Raises Overloaded."""
        self._queue.add(task)
        self._dispatch()

    def finished(self, key: Key) -> None:
        """Called by the work loop for each Compiled."""
        self._queue.done(key)
        self._running -= 1
        self._dispatch()

    @property
    def num_waiting(self) -> int:
        """Tasks that no thread has taken yet."""
        return self._queue.num_waiting

    def _dispatch(self) -> None:
        while self._running < len(self._threads):
            task = self._queue.take()
            if task is None:
                return
            self._running += 1
            self._tasks.put(task)

    def close(self) -> None:
        """Ends the threads once their task in progress has ended."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(timeout=10)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            started_s = time.perf_counter()
            outcome = self._outcome(task)
            spent_s = time.perf_counter() - started_s
            _measure(task, outcome, spent_s)
            self._inbox.put(Compiled(task.key, task.client, isinstance(task.work, Guide), outcome, spent_s * 1000))

    def _outcome(self, task: Task) -> CompiledGrammar | MaskstreamError:
        try:
            return build(self._attempt(task), task.loaded)
        except MaskstreamError as error:
            kind = task.work.kind if isinstance(task.work, Guide) else task.work.guide_kind
            error.field = error.field or kind  # every refusal says what was refused
            return error
        except Exception as error:  # an engine's surprise is one request's failure, and it is told
            return MaskstreamError(f"{type(error).__name__}: {str(error)[:200]}")


def plan_of(guide: Guide, versions: dict[str, str]) -> Plan:
    """The wire plan of a guide, decided here and pinned in every Open."""
    from grammar_service.plan import plan_guide

    spelled = canonical(guide)
    plan = plan_guide(
        spelled.kind, None if spelled.kind in ("json", "json_object") else spelled.text, engine=spelled.engine,
        max_whitespace=spelled.max_whitespace, on_unsupported=spelled.on_unsupported,
        any_order=spelled.property_order == "any",
    )  # fmt: skip
    if plan.engine not in versions:
        raise UnsupportedSchema(f"this service does not offer {plan.engine}", field="engine")
    dropped = [f"{keyword}: only checked in the finished text" for keyword in plan.dropped]
    return Plan(
        engine=plan.engine, engine_version=versions[plan.engine], guide_kind=guide.kind, grammar_kind=plan.kind, text=plan.text,
        options=plan.options, after_guide=guide.after_guide, validate_after=plan.validate_after,
        warnings=plan.warnings + dropped, rewrites=plan.rewrites,
    )  # fmt: skip


def build(plan: Plan, loaded: Loaded) -> CompiledGrammar:
    """Compiles a plan in this process and looks at its first row. Raises GuideError."""
    engine = loaded.engines.get(plan.engine)
    if engine is None or engine.version != plan.engine_version:
        raise UnsupportedSchema(f"this service does not offer {plan.engine} {plan.engine_version}", field="engine")
    factory = engine.compile(plan.grammar_kind, plan.text, plan.options)
    matcher = factory.create(())
    words = np.zeros((1, (loaded.vocab_size + 31) // 32), dtype=np.int32)
    try:
        matcher.native.fill(words, 0)  # raw: a guide that may only end at once is not dead
    except StepError as error:
        raise cause_of(error) from error
    if not is_alive(words[0], loaded.vocab_size):
        raise Unsatisfiable("the grammar allows no first token")
    return CompiledGrammar(plan, factory, count(words[0], loaded.vocab_size) / loaded.vocab_size)


def _measure(task: Task, outcome: CompiledGrammar | MaskstreamError, spent_s: float) -> None:
    if isinstance(outcome, MaskstreamError):
        metrics.refusals_total.labels(outcome.code).inc()
        engine, name = "none", outcome.code
    else:
        engine, name = outcome.plan.engine, "ok"
    kind = task.work.kind if isinstance(task.work, Guide) else task.work.guide_kind
    metrics.compile_seconds.labels(engine, kind, name).observe(spent_s)
