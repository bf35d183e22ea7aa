"""A walk: what the step loop asks of one session in one step, and what came of it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from shared.errors import MaskstreamError
from shared.protocol import StepStatus

SessionId = int


class Walk(NamedTuple):
    """``committed`` are the tokens committed since the session's last walk; then ``path`` is walked: golden token + drafts, empty
    for the first row. ``parents[i]`` is the index of node i's parent in ``path``, -1 for the root (empty: a chain). ``accepted`` is
    what the verifier kept of the last walk, golden included (-1: no cross-check). ``row`` is the walk's first row in the buffer
    of the step; it takes ``num_rows`` of them. The same walk again (nothing committed, same path) is a retry."""

    session: SessionId
    row: int = 0
    committed: Sequence[int] = ()
    path: Sequence[int] = ()
    parents: Sequence[int] = ()
    accepted: int = -1
    draft_walk: bool = False

    @property
    def num_rows(self) -> int:
        return len(self.path) or 1


class WalkStatus(enum.IntEnum):
    """What became of a walk. The first five are those of the wire; HOLD: no answer yet, submit the same walk again."""

    OK = StepStatus.OK
    TERMINATED = StepStatus.TERMINATED
    DEAD_END = StepStatus.DEAD_END
    REFUSED = StepStatus.REFUSED
    FAILED = StepStatus.FAILED
    HOLD = 100


class Outcome(NamedTuple):
    """``num_guided`` rows of the walk hold words; the others are all zero (nothing allowed). ``kinds`` are RowKind values of the
    guided rows; ``forced`` the tokens that are the only continuation after the last one; ``service`` who answered."""

    status: WalkStatus
    num_advanced: int = 0
    num_guided: int = 0
    kinds: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    error: MaskstreamError | None = None
    service: str = ""


HELD = Outcome(WalkStatus.HOLD)
