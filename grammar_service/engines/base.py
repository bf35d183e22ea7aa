"""The contract of a matcher, and the one implementation of it over any engine's native matcher.

What raises and what does not: ``accept_token`` returns False for a token that is out of range, masked or refused, and the state
is then unchanged. ``rollback`` raises AccountingError for more tokens than there are. An engine that breaks (its own limits, its
own error flag) raises StepError at the call where it broke; the matcher is then of no more use.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from grammar_service.engines.stops import StopBits
from shared.bitmask import Words, is_alive, num_words
from shared.errors import AccountingError, MaskstreamError
from shared.tokenizer import Vocabulary

Rows = NDArray[np.int32]
AfterGuide = Literal["stop", "free"]
State = Literal["open", "may_end", "must_end", "ended"]


class GrammarMatcher(Protocol):
    """Automaton state of one sequence (spec 15). ``words`` is int32 [rows, ceil(V / 32)], C-contiguous."""

    def accept_token(self, token_id: int) -> bool: ...

    def rollback(self, num_tokens: int) -> None: ...

    def fill_next_token_bitmask(self, words: Rows, row: int) -> None: ...

    def is_terminated(self) -> bool: ...


class GrammarMatcherFactory(Protocol):
    """A compiled grammar. ``memory_bytes`` counts what it keeps alive, its text included."""

    memory_bytes: int

    def create(self, stop_ids: Collection[int], after_guide: AfterGuide = "stop") -> Matcher: ...


class Engine(Protocol):
    """One engine over one vocabulary."""

    name: str
    version: str

    def compile(self, grammar_kind: str, text: str, options: dict[str, Any]) -> GrammarMatcherFactory:
        """Raises a GuideError where the engine refuses the grammar."""
        ...

    def consume(self, natives: Sequence[Any], token_ids: Sequence[Sequence[int]]) -> list[int | MaskstreamError]:
        """``consume`` of each native matcher, none twice; what broke is returned in its place."""
        ...

    def fill(self, natives: Sequence[Any], words: Rows) -> list[Exception | None]:
        """Fills row i for natives[i], natively batched; what broke is returned in its place, the other rows are good."""
        ...


class NativeMatcher(Protocol):
    """What each engine provides: text tokens only, never a stop token."""

    engine: ClassVar[str]

    def consume(self, token_ids: Sequence[int]) -> int:
        """Consumes a prefix of the tokens and returns its length; the rest left no trace."""
        ...

    def rollback(self, num_tokens: int) -> None: ...

    def fill(self, words: Rows, row: int) -> None: ...

    def can_end(self) -> bool: ...

    def forced(self) -> list[int]:
        """Tokens that are the only continuation (canonical tokens; empty where the engine cannot tell)."""
        ...

    def fork(self) -> NativeMatcher: ...


class VocabularyBits(NamedTuple):
    """Of the vocabulary, what a matcher needs: its width and the stop ids that the engine sets itself."""

    size: int
    engine_stops: StopBits
    engine_stop_ids: frozenset[int]

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> VocabularyBits:
        return cls(vocabulary.size, StopBits.of(vocabulary.stop_ids), frozenset(vocabulary.stop_ids))

    def clear_tail(self, rows: Rows) -> None:
        """Forbids the bits beyond the vocabulary."""
        if used := self.size % 32:
            rows.view(np.uint32)[:, num_words(self.size) - 1] &= np.uint32((1 << used) - 1)


class Matcher:
    """GrammarMatcher over a native matcher: end states, the request's own stop set, mask check before accept.

    The native matcher never sees a stop token; ``ended_at`` is the length at which one ended the guide, ``freed_at`` the length at
    which a complete guide was left (``after_guide`` free). So a roll-back over either is arithmetic here (spec 17, 20). ``ends``
    are the tokens that the native matcher never sees.
    """

    __slots__ = ("_bits", "_free", "_freed_at", "_row", "_stops", "ended_at", "ends", "length", "native", "stop_ids")

    def __init__(
        self, native: NativeMatcher, bits: VocabularyBits, stop_ids: Collection[int], after_guide: AfterGuide = "stop"
    ) -> None:
        self.native = native
        self.stop_ids = frozenset(stop_ids)
        self.length = 0
        self.ended_at: int | None = None
        self._freed_at: int | None = None
        self._free = after_guide == "free"
        self._bits = bits
        self._stops = StopBits.of(self.stop_ids)
        self.ends = self.stop_ids | bits.engine_stop_ids
        self._row: Words | None = None

    def accept_token(self, token_id: int) -> bool:
        """One token; False (state unchanged) where its mask bit is 0, even if the engine would take it."""
        if not 0 <= token_id < self._bits.size:
            return False
        if self.ended_at is not None or self._freed_at is not None:
            if not self._free:
                return False
        elif not self._is_allowed(token_id) or not self._advance(token_id):
            return False
        self.length += 1
        self._row = None
        return True

    def _is_allowed(self, token_id: int) -> bool:
        row = self._known_row() if self._row is None else self._row
        return bool((row.item(token_id >> 5) >> (token_id & 31)) & 1)

    def _advance(self, token_id: int) -> bool:
        if token_id in self.stop_ids and self.native.can_end():
            self.ended_at = self.length + 1
            return True
        if token_id not in self._bits.engine_stop_ids and self.native.consume((token_id,)) == 1:
            return True
        if self._free and self.native.can_end():
            self._freed_at = self.length + 1
            return True
        return False

    def took_text(self) -> None:
        """The native matcher was given one token that was allowed and is none of ``ends``."""
        self.length += 1
        self._row = None

    def replay(self, token_ids: Sequence[int]) -> int:
        """Takes committed tokens without a mask check (they were sampled under one); how many were taken."""
        taken = 0
        while taken < len(token_ids):
            text = self._text_prefix(token_ids, taken)
            count = self.native.consume(text) if text else 0
            self.length += count
            taken += count
            self._row = None
            if taken == len(token_ids) or count < len(text) or not self._replay_end(token_ids[taken]):
                break
            taken += 1
        return taken

    def _text_prefix(self, token_ids: Sequence[int], start: int) -> Sequence[int]:
        """The tokens from ``start`` on that can only be text: up to the first that may end the guide."""
        if self.is_unguided() or self.is_terminated():
            return ()
        size = self._bits.size
        stop = next(
            (i for i in range(start, len(token_ids)) if token_ids[i] in self.ends or not 0 <= token_ids[i] < size), len(token_ids)
        )
        return token_ids[start:stop]

    def _replay_end(self, token_id: int) -> bool:
        if not 0 <= token_id < self._bits.size or (self.is_terminated() and not self._free):
            return False
        if not self.is_unguided() and not self._advance(token_id):
            return False
        self.length += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last tokens, the ending one included; 0 is a no-op."""
        if not 0 <= num_tokens <= self.length:
            raise AccountingError(f"cannot take back {num_tokens} of {self.length} tokens")
        if num_tokens == 0:
            return
        before = self.native_length
        self.length -= num_tokens
        self.ended_at = None if self.ended_at is None or self.ended_at > self.length else self.ended_at
        self._freed_at = None if self._freed_at is None or self._freed_at > self.length else self._freed_at
        if before > self.native_length:
            self.native.rollback(before - self.native_length)
        self._row = None

    @property
    def native_length(self) -> int:
        """How many of the tokens the native matcher holds."""
        ends = [end - 1 for end in (self.ended_at, self._freed_at) if end is not None]
        return min([self.length, *ends])

    def fill_next_token_bitmask(self, words: Rows, row: int) -> None:
        """Writes the whole row; after the end nothing is allowed, or all where ``after_guide`` is free."""
        if self.is_unguided():
            words[row] = -1
        elif self.is_terminated():
            words[row] = 0
        else:
            self.native.fill(words, row)
            self.finish(words[row])
        self.note_row(words[row].copy())

    def finish(self, words: Words) -> bool:
        """Turns the engine's raw row into ours: its stop bits become the request's own. True where the guide may end here."""
        (may_end,) = self._bits.engine_stops.clear(words[None])
        self._bits.clear_tail(words[None])
        if may_end:
            self._end(words)
        return may_end

    def _end(self, words: Words) -> None:
        if self._free and not words.any():
            words[:] = -1
        else:
            self._stops.set(words)

    @staticmethod
    def finish_all(matchers: Sequence[Matcher], rows: Rows) -> None:
        """``finish`` for a row each; the matchers are of one vocabulary."""
        bits = matchers[0]._bits
        ends = bits.engine_stops.clear(rows)
        bits.clear_tail(rows)
        for number, may_end in enumerate(ends):
            if may_end:
                matchers[number]._end(rows[number])

    def note_row(self, words: Words) -> None:
        """Remembers the row of the current state for the mask check; the array must not change afterwards."""
        self._row = words

    def _known_row(self) -> Words:
        if self._row is None:
            scratch = np.empty((1, num_words(self._bits.size)), dtype=np.int32)
            self.native.fill(scratch, 0)
            self.finish(scratch[0])
            self._row = scratch[0]
        return self._row

    def is_terminated(self) -> bool:
        """True once a stop token has ended the guide."""
        return self.ended_at is not None

    def makes_row(self) -> bool:
        """True where its row needs no engine."""
        return self.is_terminated() or self.is_unguided()

    def is_guided(self) -> bool:
        """True where neither a stop token nor a token after the end has been taken: the native matcher decides."""
        return self.ended_at is None and self._freed_at is None

    def is_unguided(self) -> bool:
        """True where the guide lies behind and everything is allowed (``after_guide`` free)."""
        return self._free and (self.ended_at is not None or self._freed_at is not None)

    def state(self) -> State:
        """The end state of both engines in one vocabulary."""
        if self.is_terminated():
            return "ended"
        if not self.native.can_end():
            return "open"
        scratch = np.empty((1, num_words(self._bits.size)), dtype=np.int32)
        self.native.fill(scratch, 0)
        self._bits.engine_stops.clear(scratch)
        return "may_end" if is_alive(scratch[0], self._bits.size) else "must_end"

    def forced(self) -> list[int]:
        """The tokens that must follow here."""
        return [] if self.is_unguided() or self.is_terminated() else self.native.forced()

    def fork(self) -> Matcher:
        """An independent copy."""
        twin = Matcher(self.native.fork(), self._bits, self.stop_ids, "free" if self._free else "stop")
        twin.length, twin.ended_at, twin._freed_at, twin._row = self.length, self.ended_at, self._freed_at, self._row
        return twin
