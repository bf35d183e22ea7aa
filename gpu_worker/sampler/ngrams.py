"""NgramIndex: which tokens would repeat an n-gram of the text so far (spec 102)."""

from __future__ import annotations

import copy
from collections.abc import Iterable

PRIME = (1 << 61) - 1
BASE = 0x1F3D5B79A7C3E5


class NgramIndex:
    """Every n-gram of a growing text (n at least 2), found by a rolling hash of its first n - 1 tokens. A token costs the same
    whatever n and the length of the text, an n-gram that may be there already O(n); the memory is one place an n-gram."""

    def __init__(self, size: int, token_ids: Iterable[int] = ()) -> None:
        if size < 2:
            raise ValueError(f"an n-gram index needs n of at least 2, not {size}")
        self._context = size - 1
        self._leaving = pow(BASE, self._context, PRIME)
        self._hash = 0  # of the last n - 1 tokens
        self._tokens: list[int] = []
        # Hash of the first n - 1 tokens -> position of the last one, or several: most have one, and a number costs the least.
        self._last_at: dict[int, int | tuple[int, ...]] = {}
        for token_id in token_ids:
            self.push(token_id)

    def push(self, token_id: int) -> None:
        """Adds the next token of the text."""
        if len(self._tokens) >= self._context:
            places = self._places()
            if not places or token_id not in self.banned():
                at = len(self._tokens)
                self._last_at[self._hash] = (*places, at) if places else at
        self._tokens.append(token_id)
        left = self._tokens[-self._context - 1] if len(self._tokens) > self._context else -1
        self._hash = (self._hash * BASE + token_id + 1 - (left + 1) * self._leaving) % PRIME

    def branch(self) -> NgramIndex:
        """A copy that goes its own way."""
        twin = copy.copy(self)
        twin._tokens, twin._last_at = list(self._tokens), dict(self._last_at)
        return twin

    def banned(self) -> list[int]:
        """The tokens, each once, that would make the last n tokens an n-gram that is there already."""
        places = self._places()
        if len(self._tokens) < self._context or not places:
            return []
        # Texts of one hash may differ: each place is compared.
        tail = self._tokens[-self._context :]
        return [self._tokens[at] for at in places if self._tokens[at - self._context : at] == tail]

    def _places(self) -> tuple[int, ...]:
        places = self._last_at.get(self._hash, ())
        return (places,) if isinstance(places, int) else places
