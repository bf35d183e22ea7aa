"""Runs the walks of a step side by side: each round fills the rows that all walks wait for in one native call an engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from prometheus_client import Histogram

from grammar_service.engines.base import Engine, Matcher, Rows
from grammar_service.golden import advance, settle_all
from grammar_service.rows import Row, RowStore
from grammar_service.sessions import Answer, Session, Walking
from shared import metrics
from shared.errors import MaskstreamError, StepTimeout
from shared.protocol import StepEntry

BATCH = 128  # rows of one native call: they are hashed while they are still in the cache
MEASURED = 500  # a turn shorter than this part of the soft budget counts as CPU time unmeasured
FAR_BEYOND = 4
"""Times the hard budget at which one step is enough to fail its session."""


Groups = dict[str, list[Session]]
"""Sessions by engine."""


class Job(NamedTuple):
    """A walk and the session it belongs to."""

    session: Session
    walking: Walking


class Budget(NamedTuple):
    """Seconds of one session's step: beyond ``soft_s`` it runs apart from the others, beyond ``hard_s`` it fails."""

    soft_s: float
    hard_s: float


class Stepper:
    """One for each vocabulary; called by the work loop only, which owns every matcher."""

    def __init__(self, engines: dict[str, Engine], rows: RowStore, budget: Budget) -> None:
        self._engines = engines
        self._rows = rows
        self.budget = budget
        self._spender = _Spender()
        self._buffer: Rows = np.zeros((BATCH, (rows.vocab_size + 31) // 32), dtype=np.int32)
        self._views = [row.data.cast("B") for row in self._buffer]

    def advance(self, plain: list[Session], left: list[StepEntry], now_s: float) -> Groups:
        """Gives sessions of ``golden.plain_ones`` their tokens, a batch an engine; entries that need a walk go to ``left``."""
        by_engine: Groups = {}
        for session in plain:
            by_engine.setdefault(session.matcher.native.engine, []).append(session)
        for name, sessions in by_engine.items():
            began = _now()
            by_engine[name], others = advance(self._engines[name], sessions, now_s)
            left += others
            self._note_time(sessions, metrics.accept_seconds, began)
        return by_engine

    def _note_time(self, sessions: list[Session], seconds: Histogram, began: _Times) -> None:
        """In a batch that took too long nobody knows whose fault it was: each shows itself alone next time. On a starved machine
        the batch did not take what the clock on the wall says."""
        ended = _now()
        seconds.observe((ended.wall_s - began.wall_s) / len(sessions))
        if min(ended.wall_s - began.wall_s, ended.cpu_s - began.cpu_s) > self.budget.soft_s:
            for session in sessions:
                session.apart = True

    def run(self, jobs: list[Job], advanced: Groups) -> Iterator[list[tuple[Session, Answer | Row]]]:
        """Answers in parts: first those of all ordinary sessions, then one part for each that was slow before. ``advanced`` are
        those that wait for a row alone."""
        together = [job for job in jobs if not job.session.apart]
        apart = [job for job in jobs if job.session.apart]  # now: a session that turns out to be slow is not stepped twice
        if together or advanced:
            yield [*self._settle(advanced), *(self._run(together) if together else ())]
        for job in apart:
            yield [*self._run([job])]

    def _settle(self, advanced: Groups) -> Iterator[tuple[Session, Answer | Row]]:
        """Fills the rows after golden tokens."""
        for name, sessions in advanced.items():
            for start in range(0, len(sessions), BATCH):
                yield from self._settle_batch(self._engines[name], sessions[start : start + BATCH])

    def _settle_batch(self, engine: Engine, sessions: list[Session]) -> list[tuple[Session, Answer | Row]]:
        began, buffer = _now(), self._buffer[: len(sessions)]
        matchers = [session.matcher for session in sessions]
        broken = engine.fill([matcher.native for matcher in matchers], buffer)
        self._note_time(sessions, metrics.mask_seconds, began)
        Matcher.finish_all(matchers, buffer)
        return settle_all(sessions, self._rows.intern_all(self._views[: len(sessions)]), broken)

    def _run(self, jobs: list[Job]) -> list[tuple[Session, Answer]]:
        started_s, walks = time.perf_counter(), [_Walk(job, self.budget) for job in jobs]
        self._spender.begin()
        for walk in walks:
            walk.resume(None, self._spender)
        filled_s = 0.0
        waiting = walks
        while waiting := [walk for walk in waiting if walk.answer is None]:
            filled_s += self._fill_round(waiting)
        metrics.mask_seconds.observe(filled_s / len(jobs))
        metrics.accept_seconds.observe((time.perf_counter() - started_s - filled_s) / len(jobs))
        for walk in walks:
            walk.job.session.overdue = walk.over_hard
        return [(walk.job.session, walk.answer) for walk in walks if walk.answer is not None]

    def _fill_round(self, waiting: list[_Walk]) -> float:
        by_engine: dict[str, list[_Walk]] = {}
        for walk in waiting:
            if walk.matcher.makes_row():
                walk.resume(self._unguided(walk.matcher), self._spender)
            else:
                by_engine.setdefault(walk.matcher.native.engine, []).append(walk)
        return sum(
            self._fill(self._engines[name], walks[start : start + BATCH])
            for name, walks in by_engine.items()
            for start in range(0, len(walks), BATCH)
        )

    def _unguided(self, matcher: Matcher) -> Row:
        matcher.fill_next_token_bitmask(self._buffer, 0)
        return self._rows.intern(self._buffer[0])

    def _fill(self, engine: Engine, walks: list[_Walk]) -> float:
        alone = len(walks) == 1
        started_s = time.perf_counter()
        cpu_s = time.process_time() if alone else 0.0  # of the process: an engine fills in threads of its own
        broken = engine.fill([walk.matcher.native for walk in walks], self._buffer[: len(walks)])
        spent_s = time.perf_counter() - started_s
        if alone:
            walks[0].spend(spent_s, time.process_time() - cpu_s)
        Matcher.finish_all([walk.matcher for walk in walks], self._buffer[: len(walks)])
        slow = spent_s > self.budget.soft_s  # in a batch nobody knows whose fault it was: each shows itself alone next time
        self._spender.pass_over()
        for index, (walk, error) in enumerate(zip(walks, broken, strict=True)):
            walk.job.session.apart = slow
            if error is not None:
                walk.fail(error)
                continue
            row = self._rows.intern(self._buffer[index])
            walk.resume(row, self._spender)
        return spent_s


class _Times(NamedTuple):
    """On the wall, and of the process: an engine fills in threads of its own."""

    wall_s: float
    cpu_s: float


def _now() -> _Times:
    return _Times(time.perf_counter(), time.process_time())


class _Spender:
    """Wall and CPU time of the walks of a step, one after the other: the CPU clock, a call into the kernel, is read once a step and
    where a walk took long. What the thread did before that walk is not known then and is put at its wall time."""

    __slots__ = ("_cpu_s", "_cpu_wall_s", "wall_s")

    def begin(self) -> None:
        """A step begins, on the thread whose time counts."""
        self._cpu_s = time.thread_time()
        self.wall_s = self._cpu_wall_s = time.perf_counter()

    def pass_over(self) -> None:
        """What was done since the last turn is no walk's."""
        self.wall_s = time.perf_counter()

    def turn(self) -> float:
        """Seconds since the last turn: those of the walk that just ran."""
        before_s, self.wall_s = self.wall_s, time.perf_counter()
        return self.wall_s - before_s

    def cpu_s(self, spent_s: float) -> float:
        """At least this much of the CPU went to the walk that just took ``spent_s``."""
        others_s = self.wall_s - spent_s - self._cpu_wall_s
        before_s, self._cpu_s = self._cpu_s, time.thread_time()
        self._cpu_wall_s = self.wall_s
        return max(self._cpu_s - before_s - others_s, 0.0)


class _Walk:
    """A walk in progress: the matcher it waits for, or its answer."""

    __slots__ = ("_budget", "answer", "cpu_s", "job", "matcher", "over_hard", "spent_s")

    def __init__(self, job: Job, budget: Budget) -> None:
        self.job = job
        self.answer: Answer | None = None
        self.matcher: Matcher = job.session.matcher
        self.spent_s = 0.0
        self._budget = budget
        self.cpu_s = 0.0
        self.over_hard = False

    def resume(self, row: Row | None, spender: _Spender) -> None:
        """Goes on to the next row that is needed, or to the end."""
        try:
            self.matcher = self.job.walking.send(row) if row is not None else next(self.job.walking)
        except StopIteration as stop:
            self.answer = stop.value
        spent_s = spender.turn()
        self.spend(spent_s, spender.cpu_s(spent_s) if spent_s > self._budget.soft_s / MEASURED else spent_s)
        if self.spent_s > self._budget.soft_s:
            self._over_soft()

    def spend(self, wall_s: float, cpu_s: float) -> None:
        self.spent_s += wall_s
        self.cpu_s += cpu_s

    def _over_soft(self) -> None:
        """Lane of its own; beyond the hard budget twice running, or far beyond it once, it fails. On a starved machine a single
        step also counts what the process's other threads did meanwhile: one is no proof."""
        self.job.session.apart = True
        spent_s = min(self.spent_s, self.cpu_s)
        self.over_hard = spent_s > self._budget.hard_s
        if spent_s > self._budget.hard_s * (1 if self.job.session.overdue else FAR_BEYOND):
            self.fail(StepTimeout(f"{self.cpu_s * 1000:.0f} ms in one step, {self._budget.hard_s * 1000:.0f} allowed"))

    def fail(self, error: Exception) -> None:
        """Ends the walk with an error: its session fails, nothing else."""
        self.job.walking.close()
        self.answer = self.job.session.fail(error if isinstance(error, MaskstreamError) else MaskstreamError(str(error)))
