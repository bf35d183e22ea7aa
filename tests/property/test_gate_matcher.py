"""The reasoning gate against a model that works on whole texts, with random tokens, roll-backs, forks and replays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from grammar_service.engines.base import VocabularyBits
from grammar_service.gate import GatedMatcher
from grammar_service.gate_table import GateTable, TokenIndex
from shared.bitmask import token_ids
from shared.errors import BadRequest
from shared.gate import Gate, answer_at
from shared.tokenizer import Vocabulary
from tests.scripted import Language, ScriptedMatcher

TEXTS = [b"a", b"b", b"<", b">", b"ab", b"<>", b"a<", b"<a>", b">b", b"", b"x<b>x", b"<b", b"b>"]
EOS = len(TEXTS)
VOCABULARY = Vocabulary(token_bytes=[*TEXTS, b"<eos>"], special_ids=[EOS], stop_ids=[EOS])
OWN_STOP = 9  # of the request, not of the vocabulary
STOPS = {EOS, OWN_STOP}
INDEX = TokenIndex(VOCABULARY)
WORDS = Language([(0, 1), (0,), (4, 4, 2)])
TOKENS = st.integers(-1, EOS + 1)
ENDS = st.one_of(
    st.sampled_from(["<>", "<a>", "ab", "b", "aab", "<b>", "abab", "><"]),
    st.lists(st.sampled_from(sorted(set(range(EOS)) - STOPS)), min_size=1, max_size=3),
)
GATES = st.builds(
    Gate, end=ENDS, start=st.one_of(st.none(), st.sampled_from(["<b", "a"]), st.just([3, 3])), budget=st.none() | st.integers(0, 4)
)


class Model:
    """What a gate means, from the tokens so far: no automaton, nothing kept between questions."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        start = gate.start or []
        self.start = self.spell(start.encode()) if isinstance(start, str) else list(start)

    @staticmethod
    def spell(text: bytes) -> list[int]:
        """The shortest spelling, the longest token first."""
        if not text:
            return []
        ways = [[i, *Model.spell(text[len(t) :])] for i, t in enumerate(TEXTS) if t and text.startswith(t)]
        return min(ways, key=lambda way: (len(way), -len(TEXTS[way[0]])))

    def closed_at(self, tokens: list[int]) -> int | None:
        return next((n for n in range(len(self.start) + 1, len(tokens) + 1) if self.ends(tokens[len(self.start) : n])), None)

    def ends(self, free: list[int]) -> bool:
        if isinstance(self.gate.end, str):
            return b"".join(TEXTS[i] for i in free).endswith(self.gate.end.encode())
        return free[-len(self.gate.end) :] == self.gate.end

    def allowed(self, tokens: list[int]) -> set[int]:
        closed = self.closed_at(tokens)
        if closed is not None:
            prefix = tuple(tokens[closed:])
            if STOPS & set(prefix):
                return set()
            return WORDS.allowed(prefix) | (STOPS if WORDS.can_end(prefix) else set())
        if len(tokens) < len(self.start):
            return {self.start[len(tokens)]}
        free = tokens[len(self.start) :]
        if self.gate.budget is not None and len(free) >= self.gate.budget:
            return {self.rest(free)[0]}
        return {i for i in range(EOS) if i not in STOPS and not self.passes(free, i)}

    def rest(self, free: list[int]) -> list[int]:
        """What closes the gate from here: the end marker behind as much of it as is there."""
        for length in range(len(self.gate.end) - 1, -1, -1):
            part = self.gate.end[:length]
            if isinstance(self.gate.end, str):
                if b"".join(TEXTS[i] for i in free).endswith(part.encode()):
                    return self.spell(self.gate.end[length:].encode())
            elif free[len(free) - length :] == part:
                return self.gate.end[length:]
        raise AssertionError

    def passes(self, free: list[int], token: int) -> bool:
        if not isinstance(self.gate.end, str):
            return False
        found = (b"".join(TEXTS[i] for i in free) + TEXTS[token])[:-1].find(self.gate.end.encode())
        return bool(TEXTS[token]) and found >= 0


class BITS:
    of = VocabularyBits.of(VOCABULARY)


class ShortMatcher(ScriptedMatcher):
    """Over this vocabulary's width."""

    def fill(self, words, row):  # type: ignore[no-untyped-def]
        words[row] = 0
        for token in self.language.allowed(self.prefix) | ({EOS} if self.can_end() else set()):
            words[row, token >> 5] |= 1 << (token & 31)

    def fork(self) -> ShortMatcher:
        return ShortMatcher(self.language, self.prefix)


def gated(gate: Gate) -> GatedMatcher:
    return GatedMatcher(ShortMatcher(WORDS), BITS.of, STOPS, "stop", GateTable(gate, INDEX), gate.budget)


def row_of(matcher: GatedMatcher) -> set[int]:
    words = np.full((1, 1), 0x5A5A5A5A, dtype=np.int32)
    matcher.fill_next_token_bitmask(words, 0)
    return set(token_ids(words[0], 32).tolist())


class RandomGate(RuleBasedStateMachine):  # spec 12, 13, 15, 16, R5, R9
    @initialize(gate=GATES)
    def begin(self, gate: Gate) -> None:
        self.gate, self.model, self.matcher = gate, Model(gate), gated(gate)
        self.tokens: list[int] = []

    @rule(token=TOKENS)
    def any_token(self, token: int) -> None:
        taken = token in self.model.allowed(self.tokens)
        assert self.matcher.accept_token(token) == taken
        self.tokens += [token] if taken else []

    @rule(data=st.data())
    def an_allowed_token(self, data: st.DataObject) -> None:
        if allowed := sorted(self.model.allowed(self.tokens)):
            self.any_token(data.draw(st.sampled_from(allowed)))

    @precondition(lambda self: not self.model.closed_at(self.tokens))
    @rule()
    def close(self) -> None:
        free = self.tokens[len(self.model.start) :]
        for token in (self.model.start[len(self.tokens) :] + self.model.rest(free)) if self.model.allowed(self.tokens) else ():
            self.any_token(token)

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.tokens)))
        self.matcher.rollback(count)
        del self.tokens[len(self.tokens) - count :]

    @rule()
    def elsewhere(self) -> None:
        """Another service rebuilds it from the committed tokens."""
        self.matcher = gated(self.gate)
        assert self.matcher.replay(self.tokens) == len(self.tokens)

    @rule()
    def go_on_with_a_copy(self) -> None:
        old, self.matcher = self.matcher, self.matcher.fork()
        old.rollback(old.length)

    @invariant()
    def row_and_books(self) -> None:
        if hasattr(self, "matcher"):
            allowed = self.model.allowed(self.tokens)
            assert row_of(self.matcher) == allowed
            closed = self.model.closed_at(self.tokens)
            assert (self.matcher.length, self.matcher.is_open) == (len(self.tokens), closed is None)
            ended = closed is not None and bool(STOPS & set(self.tokens[closed:]))
            assert self.matcher.is_terminated() == ended
            assert self.matcher.native_length == (0 if closed is None else len(self.tokens) - closed - ended)
            assert answer_at(self.gate, self.tokens, VOCABULARY.token_bytes) == closed

    @invariant()
    def forced_tokens_are_the_only_way(self) -> None:
        if hasattr(self, "matcher") and self.matcher.is_open:
            tokens = list(self.tokens)
            for token in self.matcher.forced():
                assert self.model.allowed(tokens) == {token}
                tokens.append(token)
            assert len(self.model.allowed(tokens)) != 1 or self.model.closed_at(tokens) is not None


TestRandomGate = RandomGate.TestCase
TestRandomGate.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


@settings(max_examples=200, deadline=None)
@given(gate=GATES, tokens=st.lists(st.integers(0, EOS - 1), max_size=10))
def test_a_replay_takes_what_a_walk_takes(gate: Gate, tokens: list[int]) -> None:  # spec R9
    walked, replayed = gated(gate), gated(gate)
    taken = next((n for n, token in enumerate(tokens) if not walked.accept_token(token)), len(tokens))
    # The scripted engine takes no token that its mask forbids, so both stop at the same one.
    assert replayed.replay(tokens) == taken
    assert row_of(walked) == row_of(replayed)


@pytest.mark.parametrize(
    ("gate", "field"),
    [
        (Gate(end="<z>"), "reasoning.end"), (Gate(end="ab", start="ac"), "reasoning.start"), (Gate(end=[EOS]), "reasoning.end"),
        (Gate(end=[99]), "reasoning.end"), (Gate(end="a", start=[3, EOS]), "reasoning.start"),
    ],
)  # fmt: skip
def test_a_marker_that_cannot_be_written_is_refused_by_name(gate: Gate, field: str) -> None:  # spec 12
    with pytest.raises(BadRequest) as caught:
        GateTable(gate, INDEX)
    assert caught.value.field == field
