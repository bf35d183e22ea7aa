"""The rows of a step: asks the grammar link for what the sequences of a launch need, and writes the launch's descriptor.

Buffers form a ring, one for each launch that can be in flight: a launch's rows are asked for when the launch before it has been
collected, so no row is written where the device may still read.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.descriptor import Descriptor, SlotAction
from gpu_worker.grammar_link import GrammarLink, Outcome, StepTicket, Walk, WalkStatus
from gpu_worker.pipeline import MAX_IN_FLIGHT
from gpu_worker.sampler.logits_processors import Context, ProcessedRow
from gpu_worker.sampler.slot_overlay import SlotOverlay
from gpu_worker.sampler.slot_params import SlotSamplingParams
from gpu_worker.sampler.tiers import Tier, tier_of
from gpu_worker.sequence import Sequence
from shared import metrics
from shared.bitmask import RowKind, Words, num_words

RING = MAX_IN_FLIGHT


class StepRows:
    """``submit`` asks for the missing rows of a launch, ``descriptor`` takes what has come and holds the rest."""

    def __init__(
        self, link: GrammarLink, num_slots: int, vocab_size: int, params: SlotSamplingParams, buffers: list[Words] | None = None
    ) -> None:
        self._link, self._params, self._slots = link, params, num_slots
        self._overlay = SlotOverlay(num_slots, vocab_size)
        self._ring = buffers or [np.zeros((num_slots, num_words(vocab_size)), np.int32) for _ in range(RING)]

    def submit(self, launch: int, sequences: SequenceOf[Sequence]) -> StepTicket | None:
        """One walk for each guided sequence whose row is not there yet."""
        walks = [self._walk(sequence) for sequence in sequences if sequence.session is not None and not sequence.row_ready]
        return self._link.submit(launch, walks, self._ring[launch % RING]) if walks else None

    def _walk(self, sequence: Sequence) -> Walk:
        """Commits what the link has not heard, up to the golden token, and walks the golden token. The first row needs no walk."""
        base = max(len(sequence.tokens) - 1, 0)
        committed, sequence.told = sequence.tokens[sequence.told : base], base
        return Walk(sequence.session or 0, row=sequence.slot, committed=committed, path=sequence.tokens[base:])

    def take(self, launch: int, ticket: StepTicket | None, sequences: SequenceOf[Sequence]) -> list[tuple[Sequence, Outcome]]:
        """Closes the ticket and marks the rows that came; returns the sequences that cannot go on, and why."""
        outcomes = ticket.seal() if ticket is not None else {}
        broken: list[tuple[Sequence, Outcome]] = []
        for sequence in sequences:
            if sequence.row_ready:
                self._carry(sequence, launch)
            elif sequence.session is not None and sequence.session in outcomes:
                outcome = outcomes[sequence.session]
                if outcome.status is WalkStatus.OK and outcome.num_guided > 0:
                    self._arrived(sequence, launch, outcome)
                elif outcome.status is not WalkStatus.HOLD:
                    broken.append((sequence, outcome))
        return broken

    def _arrived(self, sequence: Sequence, launch: int, outcome: Outcome) -> None:
        sequence.row_ready, sequence.row_launch = True, launch
        self._mask(sequence, self._ring[launch % RING][sequence.slot])
        if sequence.services and sequence.services[-1] != outcome.service:
            sequence.replays += 1
        if outcome.service not in sequence.services:
            sequence.services.append(outcome.service)
        kind = RowKind(outcome.kinds[0]).name
        sequence.rows[kind] += 1
        metrics.mask_rows_total.labels(kind).inc()

    def _mask(self, sequence: Sequence, row: Words) -> None:
        """Takes the bans that last out of a guide's row, which is kept for the case that nothing is left."""
        sequence.guide_row = row
        if sequence.state.mask is not None:
            sequence.guide_row = row.copy()
            row &= sequence.state.mask

    def _carry(self, sequence: Sequence, launch: int) -> None:
        """A row that was there but not used (the launch held): moved to this launch's buffer."""
        if sequence.row_launch != launch:
            self._ring[launch % RING][sequence.slot] = self._ring[sequence.row_launch % RING][sequence.slot]
            sequence.row_launch = launch

    def descriptor(self, launch: int, sequences: SequenceOf[Sequence]) -> Descriptor:
        """What each slot does in this launch: the slots of ``sequences`` act, the others are idle."""
        action = np.full(self._slots, SlotAction.IDLE, np.int32)
        epoch, position = np.zeros(self._slots, np.int64), np.zeros(self._slots, np.int64)
        for sequence in sequences:
            slot = sequence.slot
            self._params.check_owner(slot, sequence.epoch)
            epoch[slot], position[slot], action[slot] = sequence.epoch, len(sequence.tokens), _action(sequence)
            if sequence.top_p is not None:
                self._params.set_top_p(slot, float(sequence.top_p.value))
            if not sequence.guided and sequence.state.mask is not None:
                self._ring[launch % RING][slot] = sequence.state.mask
        wanted = [s.num_logprobs for s in sequences if s.num_logprobs is not None]
        return Descriptor(
            launch=launch, action=action, bitmask=torch.from_numpy(self._ring[launch % RING]), epoch=epoch,
            rows=self._params.rows(position), overlay=self._overlay.overlay(sequences), num_logprobs=max(wanted, default=None),
            processed=self._processed(sequences), processing=[_processing(s) for s in sequences if tier_of(s.params) is Tier.FULL],
        )  # fmt: skip

    def _processed(self, sequences: SequenceOf[Sequence]) -> NDArray[np.bool_]:
        processed = np.zeros(self._slots, np.bool_)
        wanting = [s for s in sequences if s.num_logprobs is not None and s.params.logprobs_mode == "processed"]
        processed[[s.slot for s in wanting]] = True
        return processed


def _action(sequence: Sequence) -> SlotAction:
    """A sequence without a guide that has bans of its own is guided by them."""
    if not sequence.guided:
        return SlotAction.UNGUIDED if sequence.state.mask is None else SlotAction.GUIDED
    return SlotAction.GUIDED if sequence.row_ready else SlotAction.HOLD


def _processing(sequence: Sequence) -> ProcessedRow:
    return ProcessedRow(sequence.slot, sequence.request.processors, Context(sequence.prompt, sequence.tokens))
