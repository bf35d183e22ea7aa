"""The reasoning gate as a matcher: free text until the end marker, then the matcher of the guide. Rolls back over both."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from grammar_service.engines.base import AfterGuide, Matcher, NativeMatcher, Rows, State, VocabularyBits
from grammar_service.gate_table import REFUSED, GateTable
from shared.gate import Gate


class GatedMatcher(Matcher):
    """``_states`` holds the gate's state after each token of the free part, the first before any: the native matcher sees nothing
    of it. Stop tokens are banned while the gate is open (R5), whatever else a free text may hold is allowed."""

    __slots__ = ("_budget", "_states", "_table")

    def __init__(
        self, native: NativeMatcher, bits: VocabularyBits, stop_ids: Collection[int], after_guide: AfterGuide, table: GateTable,
        budget: int | None,
    ) -> None:  # fmt: skip
        super().__init__(native, bits, stop_ids, after_guide)
        self._table = table
        self._budget = budget
        self._states = [0]

    @classmethod
    def around(cls, matcher: Matcher, gate: Gate, table: GateTable) -> GatedMatcher:
        """A gate before a matcher that has taken nothing yet."""
        after_guide: AfterGuide = "free" if matcher._free else "stop"
        return cls(matcher.native, matcher._bits, matcher.stop_ids, after_guide, table, gate.budget)

    @property
    def is_open(self) -> bool:
        """True in the free part."""
        return self._states[-1] != self._table.closed

    @property
    def native_length(self) -> int:
        free = len(self._states) - 1
        return 0 if self.is_open else max(super().native_length - free, 0)

    def accept_token(self, token_id: int) -> bool:
        if not self.is_open:
            return super().accept_token(token_id)
        if not 0 <= token_id < self._bits.size:
            return False
        if self._is_forced():
            if token_id != self._table.must_follow(self._states[-1]):
                return False
        elif token_id in self.stop_ids or token_id in self._bits.engine_stop_ids:
            return False
        state = self._table.after(self._states[-1], token_id)
        if state == REFUSED:
            return False
        self._states.append(state)
        self.length += 1
        self._row = None
        return True

    def _is_forced(self) -> bool:
        """Whether just one token may follow: inside the start marker, or when the budget is spent."""
        free = len(self._states) - 1 - self._table.num_start
        return free < 0 or (self._budget is not None and free >= self._budget)

    def replay(self, token_ids: Sequence[int]) -> int:
        taken = 0
        while self.is_open and taken < len(token_ids):
            if not self.accept_token(token_ids[taken]):
                return taken
            taken += 1
        return taken + super().replay(token_ids[taken:])

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        del self._states[self.length + 1 :]

    def makes_row(self) -> bool:
        return self.is_open or super().makes_row()

    def fill_next_token_bitmask(self, words: Rows, row: int) -> None:
        if not self.is_open:
            super().fill_next_token_bitmask(words, row)
            return
        state = self._states[-1]
        if self._is_forced():
            token_id = self._table.must_follow(state)
            words[row] = 0
            words.view("uint32")[row, token_id >> 5] = 1 << (token_id & 31)
        else:
            words[row] = self._table.free_row(state)
            if not self.stop_ids <= self._bits.engine_stop_ids:  # these are forbidden in it already
                self._stops.clear(words[row : row + 1])

    def state(self) -> State:
        return "open" if self.is_open else super().state()

    def forced(self) -> list[int]:
        """The rest of a marker that must be written."""
        if not self.is_open:
            return super().forced()
        ahead = GatedMatcher(self.native, self._bits, self.stop_ids, "stop", self._table, self._budget)
        ahead._states, ahead.length = list(self._states), self.length
        found: list[int] = []
        while ahead.is_open and ahead._is_forced():
            found.append(self._table.must_follow(ahead._states[-1]))
            ahead.accept_token(found[-1])
        return found

    def fork(self) -> GatedMatcher:
        after_guide: AfterGuide = "free" if self._free else "stop"
        twin = GatedMatcher(self.native.fork(), self._bits, self.stop_ids, after_guide, self._table, self._budget)
        twin.length, twin.ended_at, twin._freed_at, twin._row = self.length, self.ended_at, self._freed_at, self._row
        twin._states = list(self._states)
        return twin
