"""A request from submission to its one ending: its guide compiled, its sequences queued with a session each, cancelled, expired,
finished or failed. Called by the step loop's thread alone; a compilation comes back through ``post``."""

from __future__ import annotations

from collections.abc import Callable

from gpu_worker.clients import Key
from gpu_worker.grammar_link import GrammarLink
from gpu_worker.outcomes import Outcomes
from gpu_worker.pipeline import Pipeline
from gpu_worker.request import Request
from gpu_worker.requests import RequestInProgress, Requests
from gpu_worker.scheduler import Scheduler
from gpu_worker.sequence import Phase, Sequence
from shared import metrics
from shared.clock import Clock
from shared.errors import BadRequest, MaskstreamError
from shared.guide import key_of


class Lifecycle:
    """Begins and ends requests. ``post`` takes work for the step loop's next turn, from any thread; ``prepare`` is called with each
    new sequence."""

    def __init__(
        self, pipeline: Pipeline, link: GrammarLink, scheduler: Scheduler, requests: Requests, outcomes: Outcomes, clock: Clock,
        post: Callable[[Callable[[], None]], None], prepare: Callable[[Sequence], None],
    ) -> None:  # fmt: skip
        self._pipeline, self._link, self._scheduler, self._requests = pipeline, link, scheduler, requests
        self._outcomes, self._clock, self._post, self._prepare = outcomes, clock, post, prepare

    def begin(self, request: Request) -> None:
        state = self._requests.begin(request)
        for sequence in state.sequences:
            self._prepare(sequence)
        metrics.requests_in_flight.inc()
        if unsupported := self._pipeline.unsupported(request.params):
            name, why = next(iter(unsupported.items()))
            self._end(state, BadRequest(f"not on this worker's device: {why}", field=name))
            return
        if request.guide is None:
            self._enqueue(state)
            return
        try:
            # The request's own deadline ends it; the link's is a second behind, so that the error says "deadline".
            left_s = request.deadline_s - self._clock.now_s() + 1.0
            future = self._link.compile(request.guide, client=request.client.hex(), deadline_s=left_s)
        except MaskstreamError as error:
            self._end(state, error)
            return
        future.add_done_callback(lambda done: self._post(lambda: self._compiled(state, done.exception() or done.result())))

    def _compiled(self, state: RequestInProgress, answer: object) -> None:
        if state.request.key not in self._requests.by_key:
            return  # it ended meanwhile
        if isinstance(answer, BaseException):
            error = answer if isinstance(answer, MaskstreamError) else MaskstreamError(f"compilation failed: {answer!r}")
            self._end(state, state.request.blamed(error))
            return
        state.compiled = answer  # type: ignore[assignment]
        for sequence in state.sequences:
            sequence.plan = state.plan()
        self._enqueue(state)

    def _enqueue(self, state: RequestInProgress) -> None:
        for sequence in state.sequences:
            if sequence.finish is None and not sequence.spare:
                self._open(sequence)
                self._scheduler.add(sequence)
        if state.ended():
            self._end(state, None)

    def _open(self, sequence: Sequence) -> None:
        guide = sequence.request.guide
        if sequence.plan is not None and guide is not None:
            sequence.told = max(len(sequence.tokens) - 1, 0)
            stop_ids, committed = sorted(sequence.request.end_ids), sequence.tokens[: sequence.told]
            sequence.session = self._link.open(key_of(guide), sequence.plan, stop_ids, committed)

    def cancel(self, key: Key) -> None:
        state = self._requests.by_key.get(key)
        if state is not None and not state.finishing:
            state.cancelled = True
            self._end(state, None)

    def expire(self) -> None:
        for state in self._requests.expired(self._clock.now_s()):
            self._end(state, self._outcomes.deadline_error(state))

    def finish(self, sequence: Sequence) -> None:
        self._leave(sequence)
        state = self._requests.by_key.get(sequence.request.key)
        if state is not None and state.ended():
            self._end(state, None)

    def fail(self, sequence: Sequence, error: MaskstreamError) -> None:
        state = self._requests.by_key.get(sequence.request.key)
        if state is not None:
            self._end(state, error)

    def _leave(self, sequence: Sequence) -> None:
        """Gives back slot and session."""
        if sequence.phase is not Phase.ENDED:
            if sequence.slot >= 0:
                self._pipeline.release(sequence.slot)
                self._scheduler.remove(sequence)
            elif sequence.phase is Phase.WAITING:
                self._scheduler.remove(sequence)
            sequence.phase = Phase.ENDED
        if sequence.session is not None:
            self._link.close_session(sequence.session)
            sequence.session = None

    def _end(self, state: RequestInProgress, error: MaskstreamError | None) -> None:
        """The one ending of a request."""
        for sequence in state.sequences:
            self._leave(sequence)
        state.finishing = True
        self._requests.end(state)
        self._outcomes.end(state, error)

    def fail_all(self, error: MaskstreamError) -> None:
        for state in list(self._requests.by_key.values()):
            self._end(state, error)
