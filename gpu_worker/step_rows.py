"""The rows of a step: asks the grammar link for what the sequences of a launch need, and writes the launch's descriptor.

Buffers form a ring, one for each launch that can be in flight: a launch's rows are asked for when the launch before it has been
collected, so no row is written where the device may still read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from collections.abc import Sequence as SequenceOf

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.beam.scores import BeamRow
from gpu_worker.beam.steps import incomplete
from gpu_worker.descriptor import Descriptor, SlotAction
from gpu_worker.grammar_link import GrammarLink, Outcome, StepTicket, Walk, WalkStatus
from gpu_worker.pipeline import MAX_IN_FLIGHT
from gpu_worker.sampler.logits_processors import Context, ProcessedRow
from gpu_worker.sampler.slot_overlay import SlotOverlay
from gpu_worker.sampler.slot_params import SlotSamplingParams
from gpu_worker.sequence import Sequence
from gpu_worker.speculation.draft_rows import tell
from gpu_worker.speculation.look_ahead import look_ahead
from shared import metrics
from shared.bitmask import RowKind, Words, num_words

RING = MAX_IN_FLIGHT
_KIND_NAMES = [kind.name for kind in RowKind]


class StepRows:
    """``submit`` asks for the missing rows of a launch, ``descriptor`` takes what has come and holds the rest."""

    def __init__(
        self, link: GrammarLink, num_slots: int, vocab_size: int, params: SlotSamplingParams, buffers: list[Words] | None = None
    ) -> None:
        self._link, self._params, self._slots = link, params, num_slots
        self._overlay = SlotOverlay(num_slots, vocab_size)
        self._ring = buffers or [np.zeros((num_slots, num_words(vocab_size)), np.int32) for _ in range(RING)]
        self._origins: list[Hashable | None] = [None] * len(self._ring[0])  # of the rows that act next
        self._kinds: Counter[int] = Counter()  # of the rows of the step
        self._width = len(self._ring[0]) // num_slots  # rows of a slot: those of its golden token and its drafts

    def submit(self, launch: int, sequences: SequenceOf[Sequence]) -> StepTicket | None:
        """One walk for each guided sequence whose row is not there yet."""
        walks = [self._walk(sequence) for sequence in sequences if sequence.session is not None and not sequence.row_ready]
        return self._link.submit(launch, walks, self._ring[launch % RING]) if walks else None

    def _walk(self, sequence: Sequence) -> Walk:
        """Commits what the link has not heard, up to the golden token, and walks the golden token and the drafts. The first row
        needs no walk."""
        committed = tell(sequence)
        return Walk(
            sequence.session or 0, row=sequence.slot * self._width, committed=committed, path=_path(sequence),
            parents=_parents(sequence), accepted=len(committed) or -1,
        )  # fmt: skip

    def take(self, launch: int, ticket: StepTicket | None, sequences: SequenceOf[Sequence]) -> list[tuple[Sequence, Outcome]]:
        """Closes the ticket and marks the rows that came; returns the sequences that cannot go on, and why."""
        outcomes, origins = (ticket.seal(), ticket.origins) if ticket is not None else ({}, {})
        broken: list[tuple[Sequence, Outcome]] = []
        for sequence in sequences:
            if sequence.row_ready:
                self._carry(sequence, launch)
            elif sequence.session is not None and sequence.session in outcomes:
                outcome = outcomes[sequence.session]
                # A draft that ends the text terminates the walk; the rows before it are as good as any (spec 45).
                if outcome.status in (WalkStatus.OK, WalkStatus.TERMINATED) and outcome.num_guided > 0:
                    self._arrived(sequence, launch, outcome, origins)
                elif outcome.status is WalkStatus.DEAD_END and sequence.beams is not None:
                    self._dead(sequence, launch)
                elif outcome.status is not WalkStatus.HOLD:
                    broken.append((sequence, outcome))
        for kind, count in self._kinds.items():
            metrics.mask_rows_total.labels(_KIND_NAMES[kind]).inc(count)
        self._kinds.clear()
        return broken

    def _arrived(self, sequence: Sequence, launch: int, outcome: Outcome, origins: Mapping[int, Hashable]) -> None:
        sequence.row_ready, sequence.row_launch = True, launch
        sequence.progress.depth = outcome.num_guided
        sequence.progress.hear(max(len(sequence.tokens) - 1, 0), _path(sequence)[: outcome.num_advanced], outcome.forced)
        self._mask(sequence, self._rows_of(sequence, launch)[: outcome.num_guided])
        for row in range(sequence.slot * self._width, sequence.slot * self._width + outcome.num_guided):
            self._origins[row] = origins.get(row) if sequence.state.mask is None else None
        if sequence.services and sequence.services[-1] != outcome.service:
            sequence.replays += 1
        if outcome.service not in sequence.services:
            sequence.services.append(outcome.service)
        for kind in outcome.kinds:
            sequence.rows[_KIND_NAMES[kind]] += 1
            self._kinds[kind] += 1

    def _dead(self, sequence: Sequence, launch: int) -> None:
        """A beam that the guide lets go nowhere: it has no continuation, the others go on (R21)."""
        rows = self._rows_of(sequence, launch)
        rows[:] = 0
        sequence.row_ready, sequence.row_launch, sequence.guide_row = True, launch, rows[0]
        self._unpool(sequence)

    def branch(self, parent: Sequence, child: Sequence) -> None:
        """The child's slot takes over what the sampler knows of the parent's text."""
        self._overlay.branch(parent, child)

    def _unpool(self, sequence: Sequence) -> None:
        """The slot's rows are its own."""
        first = sequence.slot * self._width
        self._origins[first : first + self._width] = [None] * self._width

    def _mask(self, sequence: Sequence, rows: Words) -> None:
        """Takes the bans that last out of a guide's rows; the first is kept for the case that nothing is left."""
        sequence.guide_row = rows[0]
        if sequence.state.mask is not None:
            sequence.guide_row = rows[0].copy()
            rows &= sequence.state.mask

    def _rows_of(self, sequence: Sequence, launch: int) -> Words:
        first = sequence.slot * self._width
        rows: Words = self._ring[launch % RING][first : first + self._width]
        return rows

    def _carry(self, sequence: Sequence, launch: int) -> None:
        """A row that was there but not used (the launch held): moved to this launch's buffer."""
        if sequence.row_launch != launch:
            self._rows_of(sequence, launch)[:] = self._rows_of(sequence, sequence.row_launch)
            sequence.row_launch = launch

    def prepare(self, launch: int, sequences: SequenceOf[Sequence]) -> Descriptor:
        """What of a launch's descriptor does not depend on its rows: to be made while they are on their way."""
        epoch, position = np.zeros(self._slots, np.int64), np.zeros(self._slots, np.int64)
        for sequence in sequences:
            slot = sequence.slot
            epoch[slot], position[slot] = sequence.epoch, len(sequence.tokens)
            if sequence.top_p is not None:
                self._params.set_top_p(slot, float(sequence.top_p.value))
            if not sequence.guided and sequence.state.mask is not None:
                self._rows_of(sequence, launch)[:] = sequence.state.mask
                self._unpool(sequence)
        self._params.check_owners(epoch)
        more = [sequence for sequence in sequences if not sequence.plain]
        asking = np.zeros(self._slots, np.bool_)
        asking[[s.slot for s in more if s.num_logprobs is not None]] = True
        wanted = [s.num_logprobs for s in more if s.num_logprobs is not None and s.beams is None]
        return Descriptor(
            launch=launch, action=np.full(self._slots, SlotAction.IDLE, np.int32),
            bitmask=torch.from_numpy(self._ring[launch % RING]), epoch=epoch, rows=self._params.rows(position),
            overlay=self._overlay.overlay(sequences), num_logprobs=max(wanted, default=None), asking=asking,
            processed=self._processed(more), position=position, origins=self._origins,
        )  # fmt: skip

    def descriptor(self, launch: int, sequences: SequenceOf[Sequence], prepared: Descriptor | None = None) -> Descriptor:
        """What each slot does in this launch: the slots of ``sequences`` act, the others are idle. ``prepared`` may know more."""
        made = prepared or self.prepare(launch, sequences)
        for sequence in sequences:
            made.action[sequence.slot] = _action(sequence)
        if self._width > 1 and made.position is not None:
            made.ahead = look_ahead(sequences, self._params, made.position, made.overlay)
        more = [sequence for sequence in sequences if not sequence.plain]
        made.action[list(incomplete(more))] = SlotAction.HOLD
        made.return_logits = [s.slot for s in more if s.wants_logits]
        made.processing = [_processing(s) for s in more if s.request.processors]
        made.beams = {s.slot: BeamRow(s.beams.num_candidates, _wants_raw(s)) for s in more if s.beams is not None}
        return made

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


def _path(sequence: Sequence) -> list[int]:
    """Golden token and drafts; nothing before the first token."""
    return [*sequence.tokens[-1:], *sequence.progress.tree.tokens] if sequence.tokens else []


def _parents(sequence: Sequence) -> list[int]:
    """Of a tree; a chain has none. The nodes of a tree of drafts are the places of the path."""
    return [-1, *sequence.progress.tree.parents] if sequence.progress.tree.parents else []


def _wants_raw(sequence: Sequence) -> bool:
    return sequence.params.logprobs is not None and sequence.params.logprobs_mode == "raw"


def _processing(sequence: Sequence) -> ProcessedRow:
    return ProcessedRow(sequence.slot, sequence.request.processors, Context(sequence.prompt, sequence.tokens))
