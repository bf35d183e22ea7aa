"""DraftProgress: the drafts of one sequence from their proposal to their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_worker.speculation.counters import DraftCounters
from gpu_worker.speculation.drafter import Drafter
from gpu_worker.speculation.tree import DraftTree


@dataclass(slots=True)
class DraftProgress:
    """``tree`` follows the golden token of an output of ``at`` tokens and stays as it is until that step commits, however often
    it is repeated: a walk that is asked again must be the same. ``depth``: nodes that have a row, the golden token's included."""

    drafter: Drafter | None = None
    tree: DraftTree = field(default_factory=DraftTree)
    at: int = -1
    depth: int = 1
    counters: DraftCounters = field(default_factory=DraftCounters)
    _pushed: int = 0

    def is_new(self, tokens: Sequence[int]) -> bool:
        """Whether nothing was drafted yet behind this output."""
        return self.at != len(tokens)

    def propose(self, tokens: Sequence[int], most: int, branches: int = 1) -> DraftTree:
        """The drafts of the step after ``tokens``, the committed output; at most ``branches`` guesses side by side."""
        if self.drafter is not None and self.is_new(tokens):
            for token_id in tokens[self._pushed :]:
                self.drafter.push(token_id)
            self._pushed, self.at, self.depth = len(tokens), len(tokens), 1
            self.tree = self.drafter.draft(most, branches) if most > 0 else DraftTree()
        return self.tree

    def hear(self, base: int, path: Sequence[int], forced: Sequence[int]) -> None:
        """What an answer forces after ``path``, which begins at output position ``base``."""
        if self.drafter is not None:
            self.drafter.hear(base, path, forced)

    def committed(self, num_tokens: int) -> None:
        """The step gave ``num_tokens``: all but the last are drafts that stood."""
        if num_tokens > 0 and self.drafter is not None:
            self.counters.add(len(self.tree.tokens), self.depth - 1, num_tokens - 1)
            self.tree, self.depth = DraftTree(), 1
