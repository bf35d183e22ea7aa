"""Token sequences recognised at the end of a growing text: bad words and stop sequences (spec 101, 116)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

START = 0


class TokenWords:
    """An automaton over words of token ids: a state is the longest end of the text that begins a word. A step costs one token,
    however many words there are and however long they are. Empty words are ignored."""

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._ends: list[bool] = [False]
        for word in words:
            self._add(word)
        self._fail = [START] * len(self._next)
        self._completing: list[frozenset[int]] = [frozenset()] * len(self._next)
        self._link()

    def __bool__(self) -> bool:
        return len(self._next) > 1

    def step(self, state: int, token_id: int) -> int:
        """The state after one more token."""
        while state != START and token_id not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(token_id, START)

    def walk(self, token_ids: Iterable[int], state: int = START) -> int:
        for token_id in token_ids:
            state = self.step(state, token_id)
        return state

    def found(self, state: int) -> bool:
        """Whether a word ends with the last token."""
        return self._ends[state]

    def completing(self, state: int) -> frozenset[int]:
        """The tokens that would complete a word now."""
        return self._completing[state]

    def _add(self, word: Sequence[int]) -> None:
        state = START
        for token_id in word:
            if token_id not in self._next[state]:
                self._next[state][token_id] = len(self._next)
                self._next.append({})
                self._ends.append(False)
            state = self._next[state][token_id]
        self._ends[state] = bool(word) or self._ends[state]

    def _link(self) -> None:
        """Failure links breadth first; a state's own completions are told before its ends take over those of shorter words."""
        own = [frozenset(t for t, child in branches.items() if self._ends[child]) for branches in self._next]
        self._completing[START] = own[START]
        waiting = deque(self._next[START].values())
        while waiting:
            state = waiting.popleft()
            fail = self._fail[state]
            self._ends[state] = self._ends[state] or self._ends[fail]
            below = self._completing[fail]
            self._completing[state] = own[state] | below if own[state] else below
            for token_id, child in self._next[state].items():
                self._fail[child] = self.step(fail, token_id)
                waiting.append(child)
