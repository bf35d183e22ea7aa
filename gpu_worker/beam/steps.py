"""BeamSteps: one step of a beam search in the loop: what the ranking decided reaches the device, the link and the sampler's
state."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from gpu_worker.beam.group import BeamGroup, Move
from gpu_worker.descriptor import LaunchResult, SlotAction
from gpu_worker.grammar_link import GrammarLink
from gpu_worker.outcomes import Outcomes
from gpu_worker.pipeline import Pipeline
from gpu_worker.sampler.slot_params import SlotSamplingParams
from gpu_worker.sequence import Phase, Sequence
from kernels.reference import SampleStatus
from shared import metrics
from shared.errors import MaskstreamError


class Brancher(Protocol):
    """The sampler's state by slot."""

    def branch(self, parent: Sequence, child: Sequence) -> None: ...


class BeamSteps:
    """``commit`` takes a launch's result for one group, once."""

    def __init__(
        self, pipeline: Pipeline, link: GrammarLink, params: SlotSamplingParams, rows: Brancher, outcomes: Outcomes
    ) -> None:  # fmt: skip
        self._pipeline, self._link, self._params, self._rows, self._outcomes = pipeline, link, params, rows, outcomes

    def commit(self, group: BeamGroup, result: LaunchResult, now_s: float, next_launch: int) -> MaskstreamError | None:
        """The group acts as one: where a beam of it held, all did. Beams go on from ``next_launch``, the first that will be
        enqueued after this. An error where no text is left and none was finished."""
        if group.launch == result.launch:
            return None
        group.launch = result.launch
        if any(_held(sequence, result) for sequence in group.order):
            self._hold(group, now_s)
            return None
        self._observe(group.order[0], now_s)
        scores = [result.scores[sequence.slot] for sequence in group.order]
        moves = group.advance(scores, now_s)
        if not group.search.done:
            self._move(group, moves, next_launch)
        elif not group.search.pool:
            return self._outcomes.no_token(group.order[0], SampleStatus(scores[0].status))
        return None

    def _hold(self, group: BeamGroup, now_s: float) -> None:
        for sequence in group.order:
            sequence.holds += 1
            sequence.held_since_s = sequence.held_since_s or now_s
        metrics.holds_total.inc(len(group.order))

    def _observe(self, first: Sequence, now_s: float) -> None:
        if first.last_token_s:
            metrics.inter_token_latency_seconds.observe(now_s - first.last_token_s)
        else:
            metrics.time_to_first_token_seconds.observe(now_s - first.request.received_s)

    def _move(self, group: BeamGroup, moves: list[Move], next_launch: int) -> None:
        """Copies first: a text that is copied stands where it stood until all copies are made. A place that a copy goes to gives up
        its own text before."""
        for sequence, parent, _ in moves:
            if sequence is not parent:
                self._close(sequence)
                self._copy(parent, sequence)
        for sequence in group.settle(moves):
            self._pipeline.release(sequence.slot)
            self._close(sequence)
            sequence.phase, sequence.row_ready, sequence.held_since_s = Phase.SPARE, False, None
        for sequence in group.order:
            self._pipeline.admit(sequence.slot, sequence.epoch, sequence.golden_token, sequence.to_prefill)
            sequence.phase, sequence.first_launch = Phase.DECODING, next_launch
            sequence.row_ready, sequence.held_since_s = False, None

    def _copy(self, parent: Sequence, child: Sequence) -> None:
        """Keys and values up to the golden token's, counts before the new token (spec 99), the matcher at what the link has
        heard."""
        self._pipeline.copy(parent.slot, child.slot, parent.to_prefill + 1)
        self._params.set(child.slot, child.epoch, child.params.resolve(), child.seed, child.first_offset)
        self._rows.branch(parent, child)
        if parent.session is not None:
            child.session = self._link.fork(parent.session, parent.told)

    def _close(self, sequence: Sequence) -> None:
        if sequence.session is not None:
            self._link.close_session(sequence.session)
            sequence.session = None


def _held(sequence: Sequence, result: LaunchResult) -> bool:
    slot = sequence.slot
    other = result.epoch[slot] != sequence.epoch or result.action[slot] >= SlotAction.HOLD
    return bool(other) or slot not in result.scores


def incomplete(sequences: SequenceOf[Sequence]) -> set[int]:
    """Slots of ``sequences`` whose beam search cannot act in this launch: a beam of it has no row, or is not in it."""
    there = {id(sequence) for sequence in sequences if not sequence.guided or sequence.row_ready}
    return {
        sequence.slot
        for sequence in sequences
        if sequence.beams is not None and any(id(other) not in there for other in sequence.beams.order)
    }
