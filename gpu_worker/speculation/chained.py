"""ChainedDrafter: each drafter goes on where the one before it knows no more."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_worker.speculation.drafter import Drafter


class ChainedDrafter(Drafter):
    """The surest drafter comes first."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = tuple(drafters)
        self._length = 0

    def push(self, token_id: int) -> None:
        self._length += 1
        for drafter in self._drafters:
            drafter.push(token_id)

    def cut(self, length: int) -> None:
        for drafter in self._drafters:
            drafter.cut(length)
        self._length = length

    def hear(self, base: int, path: Sequence[int], forced: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.hear(base, path, forced)

    def guesses(self, most: int, branches: int) -> list[list[int]]:
        """What the drafters say together, then what each says by itself."""
        found = [self.propose(most)]
        for drafter in self._drafters:
            found += [guess for guess in drafter.guesses(most, branches) if guess not in found]
        return [guess for guess in found if guess][:branches]

    def propose(self, most: int) -> list[int]:
        found: list[int] = []
        for drafter in self._drafters:
            if len(found) < most:
                for token_id in found:
                    drafter.push(token_id)
                further = drafter.propose(most - len(found))
                drafter.cut(self._length)
                found += further
        return found
