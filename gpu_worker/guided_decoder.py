"""Guided decoding as the worker accounts for it: snapshots, row layout, counters, roll-back. Pure; ids and counts in, rows and
numbers out.

The matchers live on the services, which bring themselves to an absolute base; this machine keeps the same counts from what is sent
and answered, and checks that both agree. Counters are by sequence slot, rows by place in the batch; ``Layout`` is the one
translator between them. Every disagreement is an AccountingError of one sequence.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_worker.grammar_link import Outcome, SessionId, Walk, WalkStatus
from shared.errors import AccountingError, BadRequest


class Stage(enum.Enum):
    """Where a sequence is. Only the last chunk of a context needs a row; generation has one and one more a draft."""

    CONTEXT = "context"
    LAST_CONTEXT = "last_context"
    GENERATION = "generation"


class GuidedRequest(NamedTuple):
    """A copy of a sequence, frozen when the batch is put together: later changes of the sequence do not reach the step.

    ``slot`` names the state, ``session`` the matcher (None: unguided). ``tokens`` is golden token + drafts of the widest draft
    length; ``parents[i]`` is the parent of node i (empty: a chain). ``committed`` are the tokens committed since the last walk.
    """

    request_id: str
    slot: int
    session: SessionId | None
    stage: Stage
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    committed: tuple[int, ...] = ()

    @property
    def advances(self) -> bool:
        """Spec 29: the golden token is accepted in generation only."""
        return self.stage is Stage.GENERATION


class Layout(NamedTuple):
    """Rows of a batch: contexts first, 1 each, then generations, K + 1 each, contiguous by request. ``first_row[slot]`` is the
    first of a slot."""

    first_row: dict[int, int]
    num_rows: dict[int, int]
    total: int


def layout(requests: Sequence[GuidedRequest], num_drafts: int, *, draft_batch: bool = False) -> Layout:
    """Raises BadRequest where contexts do not come first or a slot is there twice. A draft batch has one row a request."""
    first_row: dict[int, int] = {}
    num_rows: dict[int, int] = {}
    total, seen_generation = 0, False
    for request in requests:
        if request.slot in first_row:
            raise BadRequest(f"slot {request.slot} is in the batch twice", field="requests")
        if seen_generation and not request.advances and not draft_batch:
            raise BadRequest("contexts come before generations", field="requests")
        seen_generation = seen_generation or request.advances
        first_row[request.slot] = total
        num_rows[request.slot] = num_drafts + 1 if request.advances and not draft_batch else 1
        total += num_rows[request.slot]
    return Layout(first_row, num_rows, total)


@dataclass(slots=True)
class Counters:
    """Spec 42, of one slot: ``num_advanced`` of the last target walk (golden included; 1 by convention for the first row),
    ``num_guided`` rows filled, ``num_advanced_draft`` of the whole drafting loop, ``is_draft_terminated``. ``committed`` tokens are
    final, the matcher stands at ``length``; ``walked`` is the path in question, ``kept`` what the verifier left of the one before
    (-1: no cross-check)."""

    num_advanced: int = 0
    num_guided: int = 0
    num_advanced_draft: int = 0
    is_draft_terminated: bool = False
    committed: int = 0
    length: int = 0
    walked: tuple[int, ...] = ()
    kept: int = -1


class GuidedDecoder:
    """Counters by slot. ``walks`` before a forward, ``answered`` for each outcome, ``accept`` after verification."""

    def __init__(self) -> None:
        self._slots: dict[int, Counters] = {}

    def counters(self, slot: int) -> Counters:
        """Raises AccountingError for a slot that holds no guided sequence."""
        if slot not in self._slots:
            raise AccountingError(f"slot {slot} holds no guided sequence")
        return self._slots[slot]

    def begin(self, slot: int, committed: int = 0) -> None:
        """A guided sequence takes the slot, with tokens committed before (a continuation)."""
        self._slots[slot] = Counters(committed=committed, length=committed)

    def end(self, slot: int) -> None:
        self._slots.pop(slot, None)

    # ---- before the forward --------------------------------------------------------------------------------------------------

    def walks(self, requests: Sequence[GuidedRequest], rows: Layout, num_drafts: int) -> list[Walk]:
        """What to ask of the link for a target batch: earlier chunks and unguided sequences ask nothing (spec 28, 31). Drafts are
        cut to the draft length of this step (spec 25). Raises AccountingError where a sequence committed what was not kept."""
        found = []
        for request in requests:
            if request.session is None or request.stage is Stage.CONTEXT:
                continue
            path = request.tokens[: num_drafts + 1] if request.advances else ()
            found.append(self._walk(request, rows.first_row[request.slot], path))
        return found

    def _walk(self, request: GuidedRequest, row: int, path: tuple[int, ...]) -> Walk:
        counters, num_committed = self.counters(request.slot), len(request.committed)
        if num_committed and counters.kept not in (-1, num_committed):
            raise AccountingError(f"slot {request.slot} committed {num_committed} tokens, the verifier kept {counters.kept}")
        accepted, counters.walked = counters.kept if num_committed else -1, path
        parents = request.parents[: len(path)]
        return Walk(request.session or 0, row, request.committed, path, parents, accepted)

    # ---- after the answer ----------------------------------------------------------------------------------------------------

    def answered(self, slot: int, outcome: Outcome) -> int:
        """Takes the answer to a target walk; gives how many of the walk's rows may be used. A HOLD changes nothing. Raises
        AccountingError where the answer cannot be."""
        counters = self.counters(slot)
        if outcome.status is WalkStatus.HOLD:
            return 0
        if outcome.num_advanced > len(counters.walked):
            raise AccountingError(f"slot {slot}: {outcome.num_advanced} tokens advanced on a path of {len(counters.walked)}")
        if outcome.status in (WalkStatus.DEAD_END, WalkStatus.REFUSED, WalkStatus.FAILED):
            counters.num_advanced = counters.num_guided = 0  # spec 33: nothing to roll back for a sequence that failed
            return 0
        counters.num_advanced = outcome.num_advanced if counters.walked else 1
        counters.num_guided = outcome.num_guided
        counters.length = counters.committed + outcome.num_advanced
        return outcome.num_guided

    def accept(self, slot: int, verified: int) -> int:
        """After verification, which emitted ``verified`` tokens (golden input's successor included, so at least 1). Gives how many
        tokens the matcher rolls back: n = num_advanced - (1 + accepted drafts), spec 43, where accepted is at most what was
        advanced, spec 45: a verifier can take tokens past a terminal draft. Raises AccountingError below zero."""
        counters = self.counters(slot)
        if counters.num_advanced <= 0:
            return 0
        if verified < 1:
            raise AccountingError(f"slot {slot}: the verifier kept {verified} tokens")
        accepted = min(verified, counters.num_advanced) - 1
        back = counters.num_advanced - (1 + accepted)
        kept = 1 + accepted if counters.walked else 0
        counters.committed += kept
        counters.length = counters.committed
        counters.num_advanced, counters.walked, counters.kept = 0, (), kept if counters.walked else -1
        return back

    # ---- drafting ------------------------------------------------------------------------------------------------------------

    def drafted(self, slot: int, outcome: Outcome, walked: int) -> None:
        """One step of guided drafting (spec 47): ``walked`` tokens in all so far in this loop. A refused golden token or a dead end
        ends the drafting (spec 32, 34), what did advance counts."""
        counters = self.counters(slot)
        if outcome.status is WalkStatus.HOLD or counters.is_draft_terminated:
            return
        if outcome.num_advanced > walked:
            raise AccountingError(f"slot {slot}: {outcome.num_advanced} draft tokens advanced of {walked}")
        counters.num_advanced_draft = outcome.num_advanced
        counters.length = counters.committed + outcome.num_advanced
        counters.is_draft_terminated = outcome.status is not WalkStatus.OK or outcome.num_advanced < walked

    def rollback_drafts(self, slot: int) -> int:
        """Spec 44: gives everything back that drafting advanced, and clears the flag also where that is nothing."""
        counters = self.counters(slot)
        back, counters.num_advanced_draft, counters.is_draft_terminated = counters.num_advanced_draft, 0, False
        counters.length -= back
        return back

    # ---- invariants ----------------------------------------------------------------------------------------------------------

    def validate(self, lengths: Mapping[int, int] | None = None) -> None:
        """Raises AccountingError if a counter is impossible, or a slot's committed tokens are not ``lengths[slot]``."""
        for slot, counters in self._slots.items():
            ahead = max(counters.num_advanced if counters.walked else 0, counters.num_advanced_draft)
            if counters.length != counters.committed + ahead:
                raise AccountingError(f"slot {slot} stands at {counters.length}, not {counters.committed} + {ahead}")
            if lengths is not None and lengths.get(slot, counters.committed) != counters.committed:
                raise AccountingError(f"slot {slot} has {lengths[slot]} tokens, its matcher {counters.committed}")
