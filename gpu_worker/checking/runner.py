"""Drives cases through a grammar link: guides are compiled some at once, texts are walked many in one step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from gpu_worker.checking.cases import Case
from gpu_worker.checking.encoders import Encoder
from gpu_worker.checking.report import CaseResult, judged, refused
from gpu_worker.checking.trial import Trial, Verdict
from gpu_worker.grammar_link import GrammarLink, WalkStatus
from shared.bitmask import num_words
from shared.errors import BadRequest, MaskstreamError, StepTimeout, WorkerLost
from shared.protocol import Compiled

LANES = 32
PIECE = 32


@dataclass(eq=False)
class _Job:
    """A case whose guide is admitted, and the verdicts on its texts so far."""

    case: Case
    compiled: Compiled
    missing: int
    verdicts: dict[int, tuple[str, bool, Verdict]] = field(default_factory=dict)
    num_tokens: int = 0


@dataclass(eq=False)
class _Run:
    """A text on a lane. ``number`` is its place in the case."""

    job: _Job
    number: int
    text: str
    accept: bool
    trial: Trial
    session: int
    until_s: float
    held: bool = False


class Runner:
    """One link, ``LANES`` texts at once, every text with a deadline, so that none holds up the others."""

    def __init__(
        self, link: GrammarLink, encoder: Encoder, *, text_timeout_s: float = 20.0, compile_timeout_s: float = 30.0
    ) -> None:
        self._link, self._encoder = link, encoder
        self._text_timeout_s, self._compile_timeout_s = text_timeout_s, compile_timeout_s
        self._stop_ids = list(encoder.vocabulary.stop_ids)
        self._rows = np.zeros((LANES * PIECE, num_words(encoder.vocabulary.size)), np.int32)
        self._waiting: deque[tuple[_Job, int, str, bool]] = deque()
        self._lanes: dict[int, _Run] = {}
        self._step = 0

    def run(self, cases: Sequence[Case], *, compiles_at_once: int = 8) -> Iterator[CaseResult]:
        """Results as they come, not in the order of the cases."""
        todo = deque(cases)
        flying: dict[Future[Compiled], Case] = {}
        while todo or flying or self._waiting or self._lanes:
            while todo and len(flying) < compiles_at_once and len(self._waiting) < 4 * LANES:
                yield from self._ask(todo.popleft(), flying)
            for future in [future for future in flying if future.done()]:
                yield from self._admitted(flying.pop(future), future)
            if not self._fill_lanes():
                time.sleep(0.002)
            else:
                yield from self._walk()

    def _ask(self, case: Case, flying: dict[Future[Compiled], Case]) -> Iterator[CaseResult]:
        try:
            guide = case.make_guide()
        except (BadRequest, ValueError, RecursionError) as error:
            yield refused(case, error if isinstance(error, MaskstreamError) else BadRequest(str(error), field="guide"))
            return
        flying[self._link.compile(guide, client=case.id[:128], deadline_s=self._compile_timeout_s)] = case

    def _admitted(self, case: Case, future: Future[Compiled]) -> Iterator[CaseResult]:
        error = future.exception()
        if isinstance(error, MaskstreamError):
            yield refused(case, error)
            return
        texts = [(text, True) for text in case.accept] + [(text, False) for text in case.reject]
        job = _Job(case, future.result(), len(texts))
        if not texts:
            yield self._result(job)
        self._waiting.extend((job, number, text, accept) for number, (text, accept) in enumerate(texts))

    def _fill_lanes(self) -> bool:
        for lane in range(LANES):
            if self._waiting and lane not in self._lanes:
                self._lanes[lane] = self._start(*self._waiting.popleft())
        return bool(self._lanes)

    def _start(self, job: _Job, number: int, text: str, accept: bool) -> _Run:
        vocabulary, ids = self._encoder.vocabulary, self._encoder.encode(text)
        trial = Trial(ids, frozenset(self._stop_ids), vocabulary.size, PIECE)
        until_s = time.monotonic() + self._text_timeout_s
        return _Run(job, number, text, accept, trial, self._open(job, ()), until_s)

    def _open(self, job: _Job, committed: Sequence[int]) -> int:
        if job.compiled.plan is None:
            raise WorkerLost("a compilation ended without a plan")
        return self._link.open(job.compiled.key, job.compiled.plan, self._stop_ids, committed)

    # ---- one step ------------------------------------------------------------------------------------------------------------

    def _walk(self) -> Iterator[CaseResult]:
        self._step += 1
        walks = []
        for lane, run in self._lanes.items():
            walk = run.trial.retry if run.held else run.trial.next_walk
            walks.append(walk(run.session, lane * PIECE))
        ticket = self._link.submit(self._step, walks, self._rows, retired_step=self._step - 1)
        ticket.wait(1.0 if not any(run.held for run in self._lanes.values()) else 0.05, for_held=True)
        outcomes = ticket.seal()
        for lane, run in list(self._lanes.items()):
            outcome = outcomes[run.session]
            run.held = outcome.status is WalkStatus.HOLD
            verdict = None
            if not run.held:  # lanes go at the pace of the slowest: patience is with a text that gets no answer
                run.until_s = time.monotonic() + self._text_timeout_s
                verdict = run.trial.take(outcome, self._rows[lane * PIECE : (lane + 1) * PIECE])
            elif time.monotonic() > run.until_s:
                verdict = Verdict(False, run.trial.allowed, error=StepTimeout(f"no answer within {self._text_timeout_s:g} s"))
            if run.trial.piece > 1 and verdict is not None and not run.held and isinstance(verdict.error, StepTimeout):
                verdict = None
                self._slower(run)
            if verdict is not None:
                yield from self._end(lane, run, verdict)

    def _slower(self, run: _Run) -> None:
        """The budget is of one step: a grammar too slow for a piece at once is asked token by token."""
        self._link.close_session(run.session)
        run.session, run.held = self._open(run.job, run.trial.restart(1)), False

    def _end(self, lane: int, run: _Run, verdict: Verdict) -> Iterator[CaseResult]:
        self._link.close_session(run.session)
        del self._lanes[lane]
        job = run.job
        job.verdicts[run.number] = (run.text, run.accept, verdict)
        job.num_tokens += verdict.at
        if len(job.verdicts) == job.missing:
            yield self._result(job)

    def _result(self, job: _Job) -> CaseResult:
        plan = job.compiled.plan
        return judged(
            job.case, [job.verdicts[number] for number in sorted(job.verdicts)], engine=plan.engine if plan else "",
            compile_ms=job.compiled.compile_ms, warnings=list(plan.warnings) if plan else [], num_tokens=job.num_tokens,
        )  # fmt: skip
