"""SuffixAutomaton: the longest end of a growing text that is in the text before, found in constant time a token.

States are classes of substrings that end at the same places; ``link`` leads to the longest shorter class. The link of the whole
text is the longest end that occurs more than once. Changes of each token are logged, so that the last tokens can be taken back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

UNDO_DEPTH = 256
"""Tokens that can be taken back one by one; a deeper cut builds the automaton anew."""
MAX_CHAIN = 32
"""Classes a token whose latest place is noted; those further up keep an older place, which is as true."""
_ABSENT = object()


class Match(NamedTuple):
    """The last ``length`` tokens of the text also end at index ``end``, before the end of the text."""

    length: int
    end: int


class _Undo(NamedTuple):
    num_states: int
    last: int
    changes: list[tuple[Any, int, object]]  # container, key, what was there


class SuffixAutomaton:
    """At most two states a token, about 1 KB. Not a sequence container: ``tokens`` is the text."""

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._reset()
        for token_id in token_ids:
            self.push(token_id)

    def _reset(self) -> None:
        self.tokens.clear()
        self._next: list[dict[int, int]] = [{}]
        self._link, self._length, self._end = [-1], [0], [-1]
        self._last = 0
        self._log: deque[_Undo] = deque(maxlen=UNDO_DEPTH)
        self._changes: list[tuple[Any, int, object]] = []

    def match(self) -> Match:
        """The longest end of the text that occurs before, with the latest place of it that was noted; length 0: none."""
        state = max(self._link[self._last], 0)
        return Match(self._length[state], self._end[state])

    def matches(self) -> Iterator[Match]:
        """``match`` and what it is for ever shorter ends of the text."""
        state = self._link[self._last]
        while state > 0:
            yield Match(self._length[state], self._end[state])
            state = self._link[state]

    def push(self, token_id: int) -> None:
        """One more token of the text."""
        self._changes = []
        self._log.append(_Undo(len(self._next), self._last, self._changes))
        self._note_places()
        at = len(self.tokens)
        self.tokens.append(token_id)
        current = self._add(dict[int, int](), 0, at + 1, at)
        state = self._last
        while state != -1 and token_id not in self._next[state]:
            self._set(self._next[state], token_id, current)
            state = self._link[state]
        if state != -1:
            self._link[current] = self._class_of(state, token_id)
        self._last = current

    def cut(self, length: int) -> None:
        """Takes back all but the first ``length`` tokens. Raises ValueError where there are fewer."""
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"a text of {len(self.tokens)} tokens cannot be cut to {length}")
        if len(self.tokens) - length > len(self._log):
            kept = self.tokens[:length]
            self._reset()
            for token_id in kept:
                self.push(token_id)
        while len(self.tokens) > length:
            self._pop()

    def _pop(self) -> None:
        undo = self._log.pop()
        for container, key, before in reversed(undo.changes):
            if before is _ABSENT:
                del container[key]
            else:
                container[key] = before
        for column in (self._next, self._link, self._length, self._end):
            del column[undo.num_states :]
        self._last = undo.last
        self.tokens.pop()

    def _note_places(self) -> None:
        """Before the next token: ends of the text that occurred before now have a later place."""
        at, state = len(self.tokens) - 1, self._link[self._last]
        for _ in range(MAX_CHAIN):
            if state <= 0:
                return
            self._set(self._end, state, at)
            state = self._link[state]

    def _class_of(self, state: int, token_id: int) -> int:
        """The state of the text at ``state`` with ``token_id`` behind it; split off where its class is of longer texts too."""
        target = self._next[state][token_id]
        if self._length[target] == self._length[state] + 1:
            return target
        clone = self._add(dict(self._next[target]), self._link[target], self._length[state] + 1, self._end[target])
        self._set(self._link, target, clone)
        while state != -1 and self._next[state].get(token_id) == target:
            self._set(self._next[state], token_id, clone)
            state = self._link[state]
        return clone

    def _add(self, branches: dict[int, int], link: int, length: int, end: int) -> int:
        self._next.append(branches)
        self._link.append(link)
        self._length.append(length)
        self._end.append(end)
        return len(self._next) - 1

    def _set(self, container: Any, key: int, value: int) -> None:
        before = container.get(key, _ABSENT) if isinstance(container, dict) else container[key]
        self._changes.append((container, key, before))
        container[key] = value
