"""EBNF guides: what is refused, and that both engines then write the same texts."""

from __future__ import annotations

from itertools import product

import pytest

from grammar_service.ebnf import checked_ebnf
from grammar_service.plan import plan_guide
from shared.errors import BadRequest, GrammarTooLarge, MaskstreamError, Unsatisfiable, UnsupportedSchema
from tests.engine_probe import ByteMatcher, matcher_of, producible

WORDS = ["".join(letters) for size in range(5) for letters in product("ab(x)", repeat=size)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('root ::= "a"\nroot ::= "b"', BadRequest),
        ("root ::= root", Unsatisfiable),
        ('root ::= "a" root', Unsatisfiable),
        ('root ::= a\na ::= "x" b\nb ::= a', Unsatisfiable),
        ('root ::= root root root | "a" | ""', UnsupportedSchema),
        ("root ::= nothing", BadRequest),
        ('start ::= "a"', BadRequest),
        ('root ::= "a', BadRequest),
        ("@@@ not a grammar", BadRequest),
        ("", BadRequest),
        ('root ::= ("a"', BadRequest),
        ('root ::= "a" (="b")', UnsupportedSchema),
        ('root ::= "\\x00"', BadRequest),
        ('root ::= [z-a]', BadRequest),
        ('root ::= "a"{3,2}', BadRequest),
        ("root ::= " + "(" * 500 + '"a"' + ")" * 500, GrammarTooLarge),
        ('root ::= r0\n' + "".join(f"r{n} ::= r{n + 1}?\n" for n in range(900)) + 'r900 ::= "a"', GrammarTooLarge),
        ("\n".join(f'r{n} ::= "a"' for n in range(2_100)) + '\nroot ::= r1', GrammarTooLarge),
    ],
    ids=range(18),
)  # fmt: skip
def test_bad_grammars_are_refused_by_name(text: str, error: type[MaskstreamError]) -> None:  # spec R3
    with pytest.raises(error):
        plan_guide("ebnf", text)


GRAMMARS = {
    "nested": ('root ::= "(" root ")" | "x"', {"x", "(x)"}),
    "left recursion": ('root ::= root "a" | "b"', {"b", "ba", "baa", "baaa"}),
    "palindrome": ('root ::= "a" root "a" | "b" root "b" | ""', {"", "aa", "bb", "aaaa", "abba", "baab", "bbbb"}),
    "no recursion": ('root ::= (a | "b")* "x"\na ::= [a] "b"?', None),
    "counts": ('root ::= "a"{2,3} [^ax()]+', {"aab", "aabb", "aaab"}),
    "shared prefixes": ('root ::= [a-b]* "ab" | "ax"', None),
    "unit rule dropped": ('root ::= root | "a" # comment\n', {"a"}),
    "impossible branch": ('root ::= "a" | b\nb ::= "b" b', {"a"}),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_both_engines_write_the_same_texts(name: str) -> None:  # spec R2, R3
    text, expected = GRAMMARS[name]
    first = ByteMatcher(plan_guide("ebnf", text))
    second = matcher_of(plan_guide("ebnf", text, engine="llguidance"))
    written = {word for word in WORDS if first.produces(word)}
    assert {word for word in WORDS if producible(second, word)} == written
    assert expected is None or written == expected


def test_escapes_mean_characters() -> None:
    plan = plan_guide("ebnf", 'root ::= "\\x41\\u00e9\\U0001F600\\n\\"" [\\]\\\\^-]')
    for matcher in (ByteMatcher(plan),):
        assert matcher.produces('Aé😀\n"]')
        assert matcher.produces('Aé😀\n"^')
        assert not matcher.produces('Aé😀\n"a')


def test_a_recursive_root_is_wrapped() -> None:
    plan = plan_guide("ebnf", 'root ::= "(" root ")" | "x"')
    assert plan.text.splitlines()[0] == "root ::= rule_0"


def test_pruning_leaves_only_what_can_be_finished() -> None:
    assert set(checked_ebnf('root ::= "a" | b\nb ::= "b" b\nunused ::= "c"').rules) == {"root"}
