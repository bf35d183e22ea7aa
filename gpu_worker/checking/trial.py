"""One text against one guide, by the mask. Pure: outcomes in, walks out.

A text is producible when each token of the tokenizer's own encoding has its bit set at its turn and a stop token's bit is set at
the end. A walk of a whole piece of the text gives a row after each of its tokens, so that a piece costs one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_worker.grammar_link import Outcome, Walk, WalkStatus
from shared.bitmask import Words, is_set
from shared.errors import MaskstreamError


class Verdict(NamedTuple):
    """Whether the text is producible; ``at`` is the number of tokens that were allowed, ``why`` the reason it is not.
    ``error``: the walk failed, so that nothing can be said."""

    producible: bool
    at: int
    why: str = ""
    error: MaskstreamError | None = None


@dataclass(slots=True)
class Trial:
    """``allowed`` tokens are known to be allowed. The session has the first ``base`` tokens committed and walks ``path``, at most
    ``piece`` tokens of the text; ``begun``: the first row has been seen."""

    token_ids: Sequence[int]
    stop_ids: frozenset[int]
    vocab_size: int
    piece: int = 32
    allowed: int = 0
    base: int = 0
    path: list[int] = field(default_factory=list)
    begun: bool = False

    def next_walk(self, session: int, row: int) -> Walk:
        """The walk to submit next; the same one after a hold is ``retry``."""
        if not self.begun:
            return Walk(session, row=row)
        base = self.base + len(self.path)
        committed = self.token_ids[self.base : base]
        self.base, self.path = base, list(self.token_ids[base : base + self.piece])
        return Walk(session, row=row, committed=committed, path=self.path)

    def retry(self, session: int, row: int) -> Walk:
        return Walk(session, row=row, path=self.path)

    def restart(self, piece: int) -> list[int]:
        """Goes on in a new session with other pieces; gives the tokens that it is opened with."""
        self.path, self.piece = [], piece
        self.allowed = self.base + int(self.begun)
        return list(self.token_ids[: self.base])

    def take(self, outcome: Outcome, rows: Words) -> Verdict | None:
        """What an answer says: a verdict, or None where more has to be walked."""
        self.begun = True
        if outcome.status is WalkStatus.FAILED:
            return Verdict(False, self.allowed, error=outcome.error)
        for row in rows[: outcome.num_guided]:
            if self.allowed == len(self.token_ids):
                return self._end(row)
            if not is_set(row, self.token_ids[self.allowed], self.vocab_size):
                return Verdict(False, self.allowed, f"token {self.token_ids[self.allowed]} is not allowed")
            self.allowed += 1
        if outcome.num_guided < max(1, len(self.path)):
            return Verdict(False, self.allowed, f"an allowed token was not taken, or nothing may follow it ({outcome.status.name})")
        return None

    def _end(self, row: Words) -> Verdict:
        if any(is_set(row, stop, self.vocab_size) for stop in self.stop_ids):
            return Verdict(True, self.allowed)
        return Verdict(False, self.allowed, "the text may not end here")
