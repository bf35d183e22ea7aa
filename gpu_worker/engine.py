"""The step loop: admit, forward, mask, sample, commit. One turn of ``_turn`` is one step of the batch.

The forward of the next step is enqueued before the tokens of this one are read; grammar work runs under it. A guided sequence
without a row holds: it repeats its step and nothing of it moves, while the others go on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from gpu_worker import ranges
from gpu_worker.beam.steps import BeamSteps
from gpu_worker.config import WorkerSettings
from gpu_worker.descriptor import LaunchResult
from gpu_worker.grammar_link import GrammarLink, StepTicket
from gpu_worker.lifecycle import Lifecycle
from gpu_worker.outcomes import Outcomes
from gpu_worker.pipeline import MAX_IN_FLIGHT, Pipeline
from gpu_worker.request import Request
from gpu_worker.requests import Requests
from gpu_worker.sampler.slot_params import SlotSamplingParams
from gpu_worker.scheduler import Scheduler
from gpu_worker.sequence import Phase, Sequence
from gpu_worker.speculation.draft_model import DraftModel, DraftRunner
from gpu_worker.speculation.draft_rows import DraftRows
from gpu_worker.speculation.drafting import Drafting
from gpu_worker.step_rows import StepRows
from shared import log, metrics
from shared.clock import Clock
from shared.errors import MaskstreamError
from shared.mailbox import Mailbox

IDLE_WAIT_S = 0.1
ALL_HELD_WAIT_S = 0.25
"""How long a step waits for rows when no sequence of it could go on: nothing is lost by waiting."""
LATE_S = 0.005
"""How long the walks of a step may need to get on their way before the loop goes on with other work."""


class Engine:
    """Owns scheduler, pipeline and requests; runs in its own thread. ``post`` hands it work from any thread."""

    def __init__(
        self, settings: WorkerSettings, pipeline: Pipeline, link: GrammarLink, scheduler: Scheduler, requests: Requests,
        outcomes: Outcomes, clock: Clock, draft_runner: DraftRunner | None = None,
    ) -> None:  # fmt: skip
        self._settings, self._pipeline, self._link, self._clock = settings, pipeline, link, clock
        self.scheduler, self.requests, self._outcomes = scheduler, requests, outcomes
        self._params = SlotSamplingParams(scheduler.num_slots)
        self._rows = StepRows(link, scheduler.num_slots, requests.vocabulary.size, self._params, pipeline.row_buffers())
        self._inbox: Mailbox[Callable[[], None]] = Mailbox()
        self._drafting = Drafting(
            settings.drafter, settings.max_draft_tokens, settings.draft_branches,
            None if draft_runner is None else self._draft_model(draft_runner, requests.vocabulary.size),
        )  # fmt: skip
        self._lifecycle = Lifecycle(
            pipeline, link, scheduler, requests, outcomes, clock,
            post=self._inbox.put, prepare=lambda sequence: self._drafting.begin(sequence),
        )  # fmt: skip
        self._beam_steps = BeamSteps(pipeline, link, self._params, self._rows, outcomes)
        self._in_flight: deque[int] = deque()
        # Drafts follow a golden token that the host knows: the launch before must have ended.
        self._max_in_flight = 1 if self._drafting.max_drafts else MAX_IN_FLIGHT
        self._next_launch = 1
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="step-loop", daemon=True)
        self.last_turn_s = clock.now_s()
        self._log = log.get("engine")

    def _draft_model(self, runner: DraftRunner, vocab_size: int) -> DraftModel:
        chosen, slots = self._settings, self.scheduler.num_slots
        rows = DraftRows(self._link, slots, vocab_size, chosen.max_draft_tokens, chosen.hold_after_s)
        rejection = chosen.verification == "rejection"
        return DraftModel(runner, rows, self._params, vocab_size, rejection=rejection, branches=chosen.draft_branches)

    # ---- from other threads ----

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request) -> None:
        self._inbox.put(lambda: self._lifecycle.begin(request))

    def cancel(self, client: bytes, request_id: str) -> None:
        self._inbox.put(lambda: self._lifecycle.cancel((client, request_id)))

    def close(self) -> None:
        self._stopping.set()
        self._inbox.wake()
        self._thread.join(timeout=30)
        self._inbox.close()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    # ---- the loop ----

    def _run(self) -> None:
        self._pipeline.attach()
        while not self._stopping.is_set():
            self.last_turn_s = self._clock.now_s()
            try:
                self._turn()
            except Exception:  # a defect: every request in progress fails by name, the loop goes on
                self._log.exception("step failed")
                self._lifecycle.fail_all(MaskstreamError("the step failed; the worker's log says why"))
        self._lifecycle.fail_all(MaskstreamError("the worker is stopping"))
        self._outcomes.flush()

    def _turn(self) -> None:
        for work in self._inbox.take_all():
            work()
        self._lifecycle.expire()
        self._place()
        if not self._in_flight and not self._launch():
            self._outcomes.flush()
            self._inbox.wait(self._idle_wait_s())
            return
        launch = self._in_flight[0]
        batch = [s for s in self.scheduler.decoding if s.first_launch <= launch]
        ticket = self._rows.submit(launch, batch)
        if ticket is not None:
            ticket.wait_sent(LATE_S)  # the services' time is for all that follows
        if len(self._in_flight) < self._max_in_flight and any(s.beams is None for s in batch):
            self._launch()  # beams alone would only repeat their step: where they go on is decided by this one
        prepared = self._rows.prepare(launch, batch)
        if ticket is not None:
            self._outcomes.flush()
            self._wait(ticket, batch)
        for sequence, outcome in self._rows.take(launch, ticket, batch):
            self._lifecycle.fail(sequence, self._outcomes.error_of(sequence, outcome))
        batch = [s for s in batch if s.phase is Phase.DECODING]
        self._pipeline.seal(self._rows.descriptor(launch, batch, prepared))
        self._outcomes.flush()  # now that the device has all it needs: before, others would wait for who sends
        self._collect(batch)

    def _collect(self, batch: list[Sequence]) -> None:
        result = self._pipeline.collect(self._settings.last_resort_s * 4)
        if result is None:
            raise MaskstreamError("the device does not answer")
        self._in_flight.popleft()
        metrics.gpu_step_seconds.observe(result.forward_s + result.wait_s)
        metrics.gpu_mask_wait_seconds.observe(result.wait_s)
        metrics.gpu_batch_rows.set(len(batch))
        with ranges.of("commit"):
            self._commit(result, batch)

    def _commit(self, result: LaunchResult, batch: list[Sequence]) -> None:
        now_s = self._clock.now_s()
        for sequence in batch:
            if sequence.phase is not Phase.DECODING:
                continue  # a sibling's failure has ended its request
            if (broken := result.error or result.slot_errors.get(sequence.slot)) is not None:
                self._lifecycle.fail(sequence, _named(broken))
                continue
            beams = sequence.beams
            if beams is None:
                error = self._outcomes.commit(sequence, result, now_s)
            else:
                error = self._beam_steps.commit(beams, result, now_s, self._next_launch)
            if error is not None:
                self._lifecycle.fail(sequence, error)
            elif sequence.finish is not None or (beams is not None and beams.search.done):
                self._lifecycle.finish(sequence)
            elif sequence.held_since_s is not None and self._held_too_long(sequence):
                self._suspend(sequence)

    def _launch(self) -> bool:
        """Enqueues the next launch where a sequence would take part."""
        taking_part = [s for s in self.scheduler.decoding if s.first_launch <= self._next_launch]
        if not taking_part:
            return False
        if self._drafting.max_drafts:
            trees = self._drafting.propose_all(self._next_launch, taking_part)
            for sequence, tree in zip(taking_part, trees, strict=True):
                if tree.tokens:
                    self._pipeline.draft(sequence.slot, tree.tokens, tree.parents)
        number = self._pipeline.launch()
        self._in_flight.append(number)
        self._next_launch = number + 1
        return True

    # ---- sequences ----

    def _place(self) -> None:
        """Slots, prompt chunks, and the golden token of those whose prompt is written."""
        self.scheduler.place(self._can_run)
        busy = bool(self.scheduler.decoding)
        for sequence, token_ids, start in self.scheduler.chunks(1 if busy else 1 << 20):
            if sequence.context_logits is not None and sequence.context_logits.missing:
                self._pipeline.prefill_told(sequence.slot, token_ids, start, sequence.context_logits)
            elif sequence.scores is not None and sequence.scores.missing:
                self._pipeline.prefill_scored(sequence.slot, token_ids, start, sequence.scores)
            else:
                self._pipeline.prefill(sequence.slot, token_ids, start)
        for sequence in self.scheduler.placed:
            if sequence.phase is Phase.READY:
                self._admit(sequence)

    def _can_run(self, sequence: Sequence) -> bool:
        return not sequence.guided or bool(self._link.service_names)

    def _admit(self, sequence: Sequence) -> None:
        self._params.set(sequence.slot, sequence.epoch, sequence.request.params.resolve(), sequence.seed, sequence.first_offset)
        slot, epoch, golden_token, position = sequence.slot, sequence.epoch, sequence.golden_token, sequence.to_prefill
        self._pipeline.admit(slot, epoch, golden_token, position, plain=sequence.plain)
        sequence.phase, sequence.first_launch = Phase.DECODING, self._next_launch

    def _suspend(self, sequence: Sequence) -> None:
        for member in sequence.placed_together:
            self._pipeline.release(member.slot)
            member.held_since_s = None
        self.scheduler.suspend(sequence)

    def _held_too_long(self, sequence: Sequence) -> bool:
        """A slot is given back only where somebody waits who could use it."""
        if not any(self._can_run(waiting) for waiting in self.scheduler.waiting):
            return False
        return self._clock.now_s() - (sequence.held_since_s or 0.0) > self._settings.suspend_after_s

    def _wait(self, ticket: StepTicket, batch: list[Sequence]) -> None:
        """Up to hold_after for the rows of this step; longer where nothing could go on without them."""
        moving = any(not s.guided or s.row_ready for s in batch)
        with ranges.of("mask wait"):
            ticket.wait(self._settings.hold_after_s if moving else ALL_HELD_WAIT_S, for_held=not moving)

    def _idle_wait_s(self) -> float:
        return min(IDLE_WAIT_S, max(self.requests.next_deadline_s() - self._clock.now_s(), 0.0))


def _named(error: Exception) -> MaskstreamError:
    return error if isinstance(error, MaskstreamError) else MaskstreamError(f"the forward failed: {error!r}")
