"""A native matcher over a finite language that is written down, so that every state of an automaton can be met in a test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from grammar_service.engines.base import GrammarMatcherFactory, Matcher, Rows, VocabularyBits
from grammar_service.engines.stops import StopBits
from grammar_service.golden import advance, plain_ones, settle_all
from grammar_service.rows import Row, RowStore
from grammar_service.sessions import Answer, Session, Sessions, Walking, full
from grammar_service.walks import walk
from shared import digest
from shared.bitmask import pack
from shared.errors import AccountingError, MaskstreamError, StepError
from shared.protocol import Open, StepEntry

SIZE = 70  # two words and a part of a third
EOS, OTHER_STOP = 60, 61
PLAN = b"planplan"
Word = tuple[int, ...]


class Language:
    """Complete ``words``; ``dead`` prefixes are reachable but have no way on; ``consumed`` (prefix, token) pairs are taken by the
    engine although their mask bit is 0; at a ``broken`` prefix the engine fails."""

    def __init__(
        self,
        words: Iterable[Word],
        *,
        dead: Iterable[Word] = (),
        consumed: Iterable[tuple[Word, int]] = (),
        broken: Iterable[Word] = (),
    ) -> None:
        self.words = {tuple(word) for word in words}
        self.dead = {tuple(word) for word in dead}
        self.consumed = set(consumed)
        self.broken = {tuple(word) for word in broken}
        self._prefixes = {word[:n] for word in self.words | self.dead for n in range(len(word) + 1)}

    def allowed(self, prefix: Word) -> set[int]:
        return {p[-1] for p in self._prefixes if len(p) == len(prefix) + 1 and p[:-1] == prefix}

    def can_end(self, prefix: Word) -> bool:
        return prefix in self.words

    def takes(self, prefix: Word, token: int) -> bool:
        return token in self.allowed(prefix) or (prefix, token) in self.consumed


class ScriptedMatcher:
    """NativeMatcher."""

    engine: ClassVar[str] = "scripted"

    def __init__(self, language: Language, prefix: Word = ()) -> None:
        self.language = language
        self.prefix = prefix
        self.fills = 0

    def consume(self, token_ids: Sequence[int]) -> int:
        for count, token in enumerate(token_ids):
            if not self.language.takes(self.prefix, token):
                return count
            self.prefix += (token,)
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        if num_tokens > len(self.prefix):
            raise AccountingError("the native matcher was rolled back too far")
        self.prefix = self.prefix[: len(self.prefix) - num_tokens]

    def fill(self, words: Rows, row: int) -> None:
        self.fills += 1
        if self.prefix in self.language.broken:
            raise StepError("the engine broke")
        allowed = self.language.allowed(self.prefix) | ({EOS, OTHER_STOP} if self.can_end() else set())
        words[row] = pack(sorted(allowed), SIZE)
        words.view(np.uint32)[row, 2] |= np.uint32(0xFFFFFFC0)  # engines do not promise to clear what lies beyond V (spec 26)

    def can_end(self) -> bool:
        return self.language.can_end(self.prefix)

    def forced(self) -> list[int]:
        found: list[int] = []
        while not self.language.can_end(self.prefix + tuple(found)):
            allowed = self.language.allowed(self.prefix + tuple(found))
            if len(allowed) != 1:
                break
            found += allowed
        return found

    def fork(self) -> ScriptedMatcher:
        return ScriptedMatcher(self.language, self.prefix)


class ScriptedEngine:
    """The two calls of an engine that a step makes."""

    name, version = "scripted", "1"

    def compile(self, grammar_kind: str, text: str, options: dict[str, Any]) -> GrammarMatcherFactory:
        raise NotImplementedError("languages are written down")

    def consume(self, natives: Sequence[Any], token_ids: Sequence[Sequence[int]]) -> list[int | MaskstreamError]:
        return [native.consume(tokens) for native, tokens in zip(natives, token_ids, strict=True)]

    def fill(self, natives: Sequence[Any], words: Rows) -> list[Exception | None]:
        broken: list[Exception | None] = []
        for row, native in enumerate(natives):
            try:
                native.fill(words, row)
                broken.append(None)
            except StepError as error:
                broken.append(error)
        return broken


ENGINE = ScriptedEngine()
BITS = VocabularyBits(SIZE, StopBits.of((EOS, OTHER_STOP)), frozenset((EOS, OTHER_STOP)))


def matcher(language: Language, *, stop_ids: Iterable[int] = (EOS,), after_guide: str = "stop") -> Matcher:
    return Matcher(ScriptedMatcher(language), BITS, tuple(stop_ids), after_guide)  # type: ignore[arg-type]


def drive(outcome: Walking | Answer | None, store: RowStore) -> Answer:
    """Runs a walk to its answer, one fill at a time."""
    assert outcome is not None
    if isinstance(outcome, Answer):
        return outcome
    words = np.zeros((1, (SIZE + 31) // 32), dtype=np.int32)
    try:
        waiting = next(outcome)
        while True:
            try:
                waiting.fill_next_token_bitmask(words, 0)
            except StepError as error:
                waiting = outcome.throw(error)
            else:
                waiting = outcome.send(store.intern(words[0]))
    except StopIteration as stop:
        answer: Answer = stop.value
        return answer


class Bench:
    """A session over a language, stepped as a worker would: it keeps the committed tokens and makes absolute entries."""

    def __init__(self, language: Language, *, committed: Word = (), **options: object) -> None:
        self.language = language
        self.store = RowStore(SIZE, 1 << 20)
        self.sessions = Sessions(self.store, walk)
        self.tokens: list[int] = list(committed)
        self.number = 0
        self.num_plain = 0
        self._told = len(self.tokens)
        self.sessions.open(
            Open(handle=7, epoch=0, plan_digest=PLAN, stop_ids=[EOS], committed=list(committed)),
            lambda: matcher(language, **options),
            0.0,
        )

    @property
    def session(self) -> Session:
        found = self.sessions.get(7)
        assert found is not None
        return found

    def entry(self, path: Sequence[int] = (), **fields: object) -> StepEntry:
        """The entry of the next sequence number; tokens committed since the last entry are told."""
        self.number += 1
        told, self._told = self._told, len(self.tokens)
        return StepEntry(
            7, 0, self.number, len(self.tokens), digest.chain(PLAN, self.tokens)[-1], self.tokens[told:], list(path), **fields
        )

    def run(self, entry: StepEntry, now_s: float = 0.0) -> Answer:
        """The way of a service: what asks for a golden token alone is not walked."""
        plain, left = plain_ones(self.sessions, [entry])
        advanced, others = advance(ENGINE, plain, now_s)
        self.num_plain += len(advanced)
        if advanced:
            words = np.zeros((1, (SIZE + 31) // 32), dtype=np.int32)
            broken = ENGINE.fill([advanced[0].matcher.native], words)
            advanced[0].matcher.finish(words[0])
            ((_, outcome),) = settle_all(advanced, [self.store.intern(words[0])], broken)
            answer = full(outcome)
        else:
            answer = drive(self.sessions.step((left + others)[0], now_s), self.store)
        self.sessions.validate()
        return answer

    def step(self, *path: int, **fields: object) -> Answer:
        return self.run(self.entry(path, **fields))

    def commit(self, *tokens: int) -> None:
        self.tokens += tokens


def ids(row: Row) -> set[int]:
    """Allowed ids of a row, bits beyond V included if there are any."""
    bits = np.unpackbits(np.frombuffer(row.data, dtype=np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())
