"""Both engines behind the one contract, on a vocabulary small enough to look at every bit."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from grammar_service import engines
from grammar_service.engines.base import Engine, Matcher
from grammar_service.engines.messages import refusal
from grammar_service.plan import plan_guide
from shared.errors import AccountingError, BadRequest, GrammarTooLarge, MaskstreamError, Unsatisfiable
from tests.vocabularies import encode_greedy, tiny

PLAIN = tiny()
SPECIAL = 262  # text that the model knows as one token, and no end
VOCABULARY = msgspec.structs.replace(
    PLAIN, token_bytes=[*PLAIN.token_bytes[:SPECIAL], b"<turn>", b""], special_ids=[*PLAIN.special_ids, SPECIAL]
)
WORDS = (VOCABULARY.size + 31) // 32
EOS, END = VOCABULARY.stop_ids
BOTH = pytest.mark.parametrize("name", engines.NAMES)


@pytest.fixture(scope="module")
def loaded() -> dict[str, Engine]:
    return engines.load(VOCABULARY)


def make(engine: Engine, kind: str, text: str, *, stop_ids: tuple[int, ...] = (EOS,), after_guide: str = "stop") -> Matcher:
    return engine.compile(kind, text, {"max_whitespace": 8}).create(stop_ids, after_guide)  # type: ignore[arg-type]


def allowed(matcher: Matcher) -> set[int]:
    words = np.full((3, WORDS), 0x5A5A5A5A, dtype=np.int32)
    matcher.fill_next_token_bitmask(words, 1)
    assert (words[[0, 2]] == 0x5A5A5A5A).all()  # only its own row
    bits = np.unpackbits(words[1].view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def feed(matcher: Matcher, text: bytes) -> list[bool]:
    return [matcher.accept_token(token) for token in encode_greedy(VOCABULARY, text)]


@BOTH
def test_the_four_methods(loaded: dict[str, Engine], name: str) -> None:  # spec 15, R2
    matcher = make(loaded[name], "regex", "a[bc]")
    assert allowed(matcher) >= {ord("a")}
    assert matcher.accept_token(ord("a"))
    assert allowed(matcher) == {ord("b"), ord("c")}
    assert not matcher.is_terminated()
    matcher.rollback(1)
    assert matcher.accept_token(ord("a"))
    assert matcher.accept_token(ord("b"))
    assert allowed(matcher) == {EOS}
    assert matcher.accept_token(EOS)
    assert matcher.is_terminated()


@BOTH
def test_a_refused_token_leaves_the_state(loaded: dict[str, Engine], name: str) -> None:  # spec 16
    matcher = make(loaded[name], "regex", "a[bc]")
    before = allowed(matcher)
    for wrong in (ord("z"), EOS, -1, VOCABULARY.size, (1 << 32) + ord("a"), VOCABULARY.size - 1):
        assert not matcher.accept_token(wrong)
    assert (allowed(matcher), matcher.length) == (before, 0)


@BOTH
def test_roll_back_over_the_end_is_exact(loaded: dict[str, Engine], name: str) -> None:  # spec 17, 20
    matcher = make(loaded[name], "json_schema", '{"enum": [true, 12]}')
    ids = encode_greedy(VOCABULARY, b"true")
    assert all(matcher.accept_token(token) for token in [*ids, EOS])
    matcher.rollback(0)
    assert matcher.is_terminated()
    matcher.rollback(1)
    assert (matcher.is_terminated(), matcher.state(), allowed(matcher)) == (False, "must_end", {EOS})
    assert not matcher.accept_token(ord(" "))  # trailing whitespace is not in the language
    assert matcher.accept_token(EOS)
    matcher.rollback(2)
    assert matcher.length == len(ids) - 1
    assert matcher.accept_token(ids[-1])
    assert allowed(matcher) == {EOS}


@BOTH
def test_roll_back_beyond_the_start_raises_and_keeps_the_state(loaded: dict[str, Engine], name: str) -> None:
    matcher = make(loaded[name], "regex", "ab*")
    assert matcher.accept_token(ord("a"))
    for wrong in (2, -1):
        with pytest.raises(AccountingError):
            matcher.rollback(wrong)
    assert matcher.accept_token(ord("b"))


@BOTH
def test_end_states(loaded: dict[str, Engine], name: str) -> None:
    matcher = make(loaded[name], "regex", "ab?")
    assert matcher.state() == "open"
    assert matcher.accept_token(ord("a"))
    assert matcher.state() == "may_end"
    assert matcher.accept_token(ord("b"))
    assert matcher.state() == "must_end"
    assert matcher.accept_token(EOS)
    assert matcher.state() == "ended"


@BOTH
def test_the_stop_set_replaces_the_engines_own(loaded: dict[str, Engine], name: str) -> None:  # spec R3, R5, 6
    matcher = make(loaded[name], "regex", "ab?", stop_ids=(END, ord("!")))
    assert matcher.accept_token(ord("a"))
    assert allowed(matcher) - {257} == {ord("b"), END, ord("!")}
    assert not matcher.accept_token(EOS)
    assert matcher.accept_token(ord("!"))
    assert matcher.is_terminated()


@BOTH
def test_after_guide_free(loaded: dict[str, Engine], name: str) -> None:  # spec 19, R5
    matcher = make(loaded[name], "regex", "ab", after_guide="free")
    assert matcher.replay(encode_greedy(VOCABULARY, b"ab")) == 1
    assert len(allowed(matcher)) >= VOCABULARY.size
    assert matcher.accept_token(EOS)
    assert matcher.accept_token(ord("z"))
    assert matcher.accept_token(END)
    assert (matcher.length, matcher.native_length) == (4, 1)
    matcher.rollback(3)
    assert matcher.state() == "must_end"
    assert matcher.accept_token(ord("z"))
    assert matcher.is_unguided()
    assert not matcher.is_terminated()


@BOTH
def test_special_tokens_never_leak_into_text(loaded: dict[str, Engine], name: str) -> None:  # spec 2, 6
    matcher = make(loaded[name], "json_schema", '{"type": "string"}')
    assert matcher.accept_token(ord('"'))
    assert not allowed(matcher) & {EOS, END, VOCABULARY.size - 1, VOCABULARY.size - 2}


@BOTH
@pytest.mark.parametrize("alone", [True, False])
def test_the_free_text_of_a_tag_holds_no_special_token(loaded: dict[str, Engine], name: str, alone: bool) -> None:  # spec 2, 11, R2
    inner = {"type": "regex", "pattern": "a*"}
    form = {"type": "triggered_tags", "triggers": ["<f"], "tags": [{"begin": "<f>", "content": inner, "end": "</f>"}]}
    plan = plan_guide("structural_tag", form, engine=name)
    factory = loaded[name].compile(plan.kind, plan.text, plan.options)
    # The second stop id is a special token that does not end this text.
    matcher = factory.create((EOS,))
    rows = np.zeros((2, WORDS), dtype=np.int32)
    if alone:
        matcher.fill_next_token_bitmask(rows, 0)
    else:
        assert loaded[name].fill([matcher.native, factory.create((EOS,)).fork().native], rows) == [None, None]
        Matcher.finish_all([matcher, matcher], rows)
    row = set(np.flatnonzero(np.unpackbits(rows[0].view(np.uint8), bitorder="little")).tolist())
    assert row >= {ord("x"), ord("<"), 256} and not row & {SPECIAL, VOCABULARY.size - 1}
    assert not matcher.accept_token(SPECIAL) and matcher.accept_token(ord("x"))


def test_a_format_that_names_a_special_token_means_it(loaded: dict[str, Engine]) -> None:  # spec 11
    plan = plan_guide("structural_tag", {"type": "token", "token": SPECIAL})
    assert allowed(loaded[plan.engine].compile(plan.kind, plan.text, plan.options).create((EOS,))) == {SPECIAL}


@BOTH
def test_json_means_any_value_and_json_object_an_object(loaded: dict[str, Engine], name: str) -> None:  # spec R4, 7
    anything = make(loaded[name], "json_schema", "{}")
    assert allowed(anything) >= {ord(c) for c in '{["1tfn-'}
    obj = make(loaded[name], "json_schema", '{"type": "object"}')
    assert not allowed(obj) & {ord(c) for c in '["1tfn-'}


@BOTH
def test_a_grammar_that_is_refused_says_so(loaded: dict[str, Engine], name: str) -> None:  # spec 9, 4
    with pytest.raises(MaskstreamError):
        loaded[name].compile("regex", "(ab", {})
    with pytest.raises(BadRequest, match="one of"):
        loaded[name].compile("poem", "x", {})
    with pytest.raises(Unsatisfiable):
        loaded[name].compile("json_schema", "false", {})


@BOTH
def test_a_replay_stops_at_the_first_token_that_does_not_fit(loaded: dict[str, Engine], name: str) -> None:  # spec R9
    matcher = make(loaded[name], "regex", "[0-9]+")
    ids = [ord("1"), ord("2"), ord("x"), ord("3")]
    assert matcher.replay(ids) == 2
    assert matcher.length == matcher.native_length == 2
    assert matcher.replay([EOS, ord("3")]) == 1
    assert matcher.is_terminated()


@BOTH
def test_copies_are_independent(loaded: dict[str, Engine], name: str) -> None:
    factory = loaded[name].compile("regex", "[ab]+", {})
    first = factory.create((EOS,))
    assert feed(first, b"aa") == [True, True]
    second = first.fork()
    second.rollback(2)
    assert (first.length, second.length, factory.create((EOS,)).length) == (2, 0, 0)
    assert EOS in allowed(first)
    assert EOS not in allowed(second)


@BOTH
def test_a_batch_fill_equals_single_fills(loaded: dict[str, Engine], name: str) -> None:
    schema = json.dumps(
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    )
    engine = loaded[name]
    factory = engine.compile("json_schema", schema, {"max_whitespace": 8})
    matchers = [factory.create((EOS,)) for _ in range(7)]
    for count, matcher in enumerate(matchers):
        matcher.replay(encode_greedy(VOCABULARY, b'{"a":12}')[:count])
    batch = np.zeros((9, WORDS), dtype=np.int32)
    assert engine.fill([matcher.native for matcher in matchers], batch) == [None] * 7
    for row, matcher in enumerate(matchers):
        single = np.zeros((1, WORDS), dtype=np.int32)
        matcher.native.fill(single, 0)
        assert (batch[row] == single[0]).all()
    assert not batch[7:].any()


def test_llguidance_refuses_a_buffer_that_is_too_small(loaded: dict[str, Engine]) -> None:
    factory = loaded["llguidance"].compile("regex", "a", {})
    with pytest.raises(ValueError, match="rows enough"):
        loaded["llguidance"].fill([factory.create((EOS,)).native for _ in range(3)], np.zeros((2, WORDS), dtype=np.int32))


def test_llguidance_errors_surface_at_the_call_where_they_happen(loaded: dict[str, Engine]) -> None:  # spec 18
    matcher = make(loaded["llguidance"], "regex", "ab")
    matcher.native.inner.rollback(5)  # type: ignore[attr-defined]
    with pytest.raises(MaskstreamError, match="llguidance"):
        matcher.accept_token(ord("a"))


def test_forced_tokens_are_the_only_way_on(loaded: dict[str, Engine]) -> None:  # spec R22
    matcher = make(loaded["llguidance"], "regex", "x(abab|y)z")
    assert matcher.accept_token(ord("x"))
    assert matcher.forced() == []
    assert matcher.accept_token(256)  # ab
    forced = matcher.forced()
    assert forced
    for token in forced:
        assert allowed(matcher) == {token}
        assert matcher.accept_token(token)


def test_a_root_rule_that_calls_itself_loses_no_closing_token(loaded: dict[str, Engine]) -> None:
    matcher = make(loaded["xgrammar"], "ebnf", 'root ::= "(" root ")" | "x"')
    feed(matcher, b"((((x")
    assert 257 in allowed(matcher)  # "))", which plain xgrammar leaves out here


def test_both_engines_load_without_torch() -> None:  # one process for all: no torch, no transformers, little memory
    code = (
        "import sys, numpy; from grammar_service import engines; from tests.vocabularies import tiny; engines.load(tiny());"
        "print([name for name in ('torch', 'transformers', 'triton') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_an_assertion_of_the_engine_about_size_is_a_size() -> None:  # spec 9
    error = refusal("panic: assertion failed: grammar.symbols.len() < u16::MAX as usize - 10 <backtrace> 0: <unknown>")
    assert isinstance(error, GrammarTooLarge)
    assert "backtrace" not in error.message
