"""ReplayDrafter: knows how the text goes on, and is wrong where it is told to be. For tests and for measuring."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpu_worker.speculation.drafter import Drafter, Output


class ReplayDrafter(Drafter):
    """``script`` is the whole output; at output positions in ``wrong`` the drafted token is another one below ``vocab_size``."""

    def __init__(self, script: Sequence[int], vocab_size: int, wrong: Collection[int] = ()) -> None:
        self._script, self._vocab_size, self._wrong = tuple(script), vocab_size, frozenset(wrong)
        self._output = Output()

    def push(self, token_id: int) -> None:
        self._output.push(token_id)

    def cut(self, length: int) -> None:
        self._output.cut(length)

    def propose(self, most: int) -> list[int]:
        start = len(self._output.tokens)
        drafts = self._script[start : start + most]
        return [(token + 1) % self._vocab_size if at in self._wrong else token for at, token in enumerate(drafts, start)]
