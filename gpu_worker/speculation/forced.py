"""ForcedDrafter: tokens that the grammar forces are free drafts (spec R22)."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_worker.speculation.drafter import Drafter, Output


class ForcedDrafter(Drafter):
    """Remembers the last thing that the grammar said for as long as the text does as it was said."""

    def __init__(self) -> None:
        self._output = Output()
        self._base = 0
        self._expected: list[int] = []

    def push(self, token_id: int) -> None:
        self._output.push(token_id)

    def cut(self, length: int) -> None:
        self._output.cut(length)

    def hear(self, base: int, path: Sequence[int], forced: Sequence[int]) -> None:
        """Nothing forced: what was said before still holds, if the text goes that way."""
        if forced:
            self._base, self._expected = base, [*path, *forced]

    def propose(self, most: int) -> list[int]:
        tokens = self._output.tokens
        if self._base > len(tokens):
            return []
        since = tokens[self._base :]
        return self._expected[len(since) :][:most] if self._expected[: len(since)] == since else []
