"""NgramIndex: which tokens would repeat an n-gram of the text so far (spec 102)."""

from __future__ import annotations

from collections.abc import Iterable


class NgramIndex:
    """Every n-gram of a growing text (n at least 2), found by its first n - 1 tokens. A step costs O(n), whatever the length of
    the text; the memory is one position for each different n-gram."""

    def __init__(self, size: int, token_ids: Iterable[int] = ()) -> None:
        if size < 2:
            raise ValueError(f"an n-gram index needs n of at least 2, not {size}")
        self._context = size - 1
        self._tokens: list[int] = []
        # Hash of the first n - 1 tokens -> position of the last one, or several: most have one, and a number costs the least.
        self._last_at: dict[int, int | tuple[int, ...]] = {}
        for token_id in token_ids:
            self.push(token_id)

    def push(self, token_id: int) -> None:
        """Adds the next token of the text."""
        if len(self._tokens) >= self._context:
            tail = self._tail()
            places = self._places(tail)
            if not any(self._tokens[at] == token_id and self._before(at) == tail for at in places):
                at = len(self._tokens)
                self._last_at[hash(tail)] = (*places, at) if places else at
        self._tokens.append(token_id)

    def banned(self) -> list[int]:
        """The tokens, each once, that would make the last n tokens an n-gram that is there already."""
        if len(self._tokens) < self._context:
            return []
        tail = self._tail()
        # Texts of one hash may differ: each place is compared.
        return [self._tokens[at] for at in self._places(tail) if self._before(at) == tail]

    def _places(self, tail: tuple[int, ...]) -> tuple[int, ...]:
        places = self._last_at.get(hash(tail), ())
        return (places,) if isinstance(places, int) else places

    def _tail(self) -> tuple[int, ...]:
        return tuple(self._tokens[-self._context :])

    def _before(self, at: int) -> tuple[int, ...]:
        return tuple(self._tokens[at - self._context : at])
