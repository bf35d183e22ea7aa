"""ModelDrafter: the place of one text where a draft model lays down what it guessed for all texts at once."""

from __future__ import annotations

from gpu_worker.speculation.drafter import Drafter, Output
from gpu_worker.speculation.tree import DraftTree


class ModelDrafter(Drafter):
    """``offer`` before ``draft``; what was offered for another state of the text is gone."""

    def __init__(self) -> None:
        self._output = Output()
        self._offered = DraftTree()

    def push(self, token_id: int) -> None:
        self._output.push(token_id)

    def cut(self, length: int) -> None:
        self._output.cut(length)

    def offer(self, tree: DraftTree) -> None:
        """The guesses for the next step."""
        self._offered = tree

    def propose(self, most: int) -> list[int]:
        return [] if self._offered.parents else self._offered.tokens[:most]

    def draft(self, most: int, branches: int) -> DraftTree:
        offered, self._offered = self._offered, DraftTree()
        return offered
