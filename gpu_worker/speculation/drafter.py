"""What every drafter is: guesses at the next tokens of one text. A guess is never trusted: the target's own row decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gpu_worker.speculation.tree import DraftTree, merged


class Drafter(ABC):
    """One-hot drafts for one text: its output moves by ``push`` and is taken back by ``cut``. Cheap: runs in the step loop."""

    @abstractmethod
    def push(self, token_id: int) -> None:
        """One more token of the output."""

    @abstractmethod
    def cut(self, length: int) -> None:
        """The output is its first ``length`` tokens again. Raises ValueError where it is shorter than that."""

    @abstractmethod
    def propose(self, most: int) -> list[int]:
        """At most ``most`` tokens that may come next, best guess first, none where there is no guess. Changes nothing."""

    def guesses(self, most: int, branches: int) -> list[list[int]]:
        """Up to ``branches`` guesses side by side, best first, each of at most ``most`` tokens. Changes nothing. Most have one."""
        guess = self.propose(most)
        return [guess] if guess else []

    def draft(self, most: int, branches: int) -> DraftTree:
        """The drafts of a step: at most ``most``, a tree where there are several guesses."""
        return DraftTree(self.propose(most)) if branches == 1 else merged(self.guesses(most, branches), most)

    def hear(self, base: int, path: Sequence[int], forced: Sequence[int]) -> None:
        """What a grammar said: at output position ``base``, after ``path`` only ``forced`` can follow. Most do not care."""
        return


class Output:
    """The output tokens of a text as a drafter keeps them; ``cut`` checks."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def push(self, token_id: int) -> None:
        self.tokens.append(token_id)

    def cut(self, length: int) -> None:
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"an output of {len(self.tokens)} tokens cannot be cut to {length}")
        del self.tokens[length:]
