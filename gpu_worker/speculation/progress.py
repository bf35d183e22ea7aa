"""DraftProgress: the drafts of one sequence from their proposal to their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_worker.speculation.counters import DraftCounters
from gpu_worker.speculation.drafter import Drafter


@dataclass(slots=True)
class DraftProgress:
    """``drafts`` follow the golden token of an output of ``at`` tokens and stay as they are until that step commits, however often
    it is repeated: a walk that is asked again must be the same. ``depth``: positions that have a row."""

    drafter: Drafter | None = None
    drafts: list[int] = field(default_factory=list)
    at: int = -1
    depth: int = 1
    counters: DraftCounters = field(default_factory=DraftCounters)
    _pushed: int = 0

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """The drafts of the step after ``tokens``, the committed output."""
        if self.drafter is not None and self.at != len(tokens):
            for token_id in tokens[self._pushed :]:
                self.drafter.push(token_id)
            self._pushed, self.at, self.depth = len(tokens), len(tokens), 1
            self.drafts = self.drafter.propose(most) if most > 0 else []
        return self.drafts

    def hear(self, base: int, path: Sequence[int], forced: Sequence[int]) -> None:
        """What an answer forces after ``path``, which begins at output position ``base``."""
        if self.drafter is not None:
            self.drafter.hear(base, path, forced)

    def committed(self, num_tokens: int) -> None:
        """The step gave ``num_tokens``: all but the last are drafts that stood."""
        if num_tokens > 0 and self.drafter is not None:
            self.counters.add(len(self.drafts), self.depth - 1, num_tokens - 1)
            self.drafts, self.depth = [], 1
