"""Regex trees: parsed, resolved, asked, printed; against Python's own regexes and by hand."""

from __future__ import annotations

import json
import re
from itertools import product

import pytest

from grammar_service.regex_language import disjoint, included, is_empty, matches, texts_of
from grammar_service.regex_print import json_quoted, to_rust
from grammar_service.regex_resolve import search_language, whole_language
from grammar_service.regex_syntax import RegexError
from grammar_service.regex_tree import Tree, both, is_plain, literal, negate

WORDS = ["".join(letters) for size in range(5) for letters in product("abx1 ", repeat=size)]
PATTERNS = [
    "abx", "^abx$", "^a|b$", "a*^b", "^(?=.*\\d).{3}$", "^(?!ab)[a-z]+$", "a$|^b", "(^a|b)x", "^$", "", "a(?!b)", "(a|b)*?abb",
    "^\\S+$", "x?^y?$", "(?i)aB", "[^a]", "^[ab]{2,3}$", "(?:a|)b{0}x", "\\w\\s", "^(a+)+$", "(?=a)(?=ab)", "^(?:(?!b).)*$|x$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if p != "^(?:(?!b).)*$|x$"])
def test_search_language_is_what_search_finds(pattern: str) -> None:  # spec R1
    tree, compiled = search_language(pattern), re.compile(pattern)
    assert [word for word in WORDS if matches(tree, word) != bool(compiled.search(word))] == []


@pytest.mark.parametrize("pattern", ["a|ab", "^a.b$", "[a-b]*x?", "(?:a|b){2}", "a(?!b).", "(?i)A1"])
def test_whole_language_is_what_fullmatch_takes(pattern: str) -> None:
    tree, compiled = whole_language(pattern), re.compile(pattern)
    assert [word for word in WORDS if matches(tree, word) != bool(compiled.fullmatch(word))] == []


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [("(a)\\1", "back-reference"), ("(?<=a)b", "look-behind"), ("a\\bb", "\\b"), ("a++", "possessive"), ("(?m)a", "flags"),
     ("\\p{Greek}", "\\p"), ("^(?:(?!b).)*$", "anchor"), ("(?P=x)", "this kind of group")],
)  # fmt: skip
def test_what_is_not_supported_is_named(pattern: str, construct: str) -> None:  # spec R1
    with pytest.raises(RegexError) as caught:
        search_language(pattern)
    assert caught.value.construct == construct


MALFORMED = ["(ab", "ab)", "a{2,1}", "[z-a]", "*a", "a**", "ab\\", "[", "\\x00", "a\x00", "[]a]", "(" * 200 + ")" * 200]


@pytest.mark.parametrize("pattern", MALFORMED)
def test_malformed_regexes_are_refused(pattern: str) -> None:
    with pytest.raises(RegexError):
        search_language(pattern)


@pytest.mark.parametrize("pattern", ["a^b", "a$b", "(a$)b", "(^a)*"])
def test_a_whole_regex_has_anchors_only_at_its_ends(pattern: str) -> None:
    with pytest.raises(RegexError):
        whole_language(pattern)


def test_dot_leaves_out_line_ends() -> None:
    assert not matches(whole_language("a.b"), "a\nb")
    assert matches(whole_language("(?s)a.b"), "a\nb")


def test_classes_are_ascii_and_their_complements_leave_out_what_others_count_in() -> None:
    digit_of_india = "\u0967"
    assert not matches(whole_language("\\d"), digit_of_india)
    assert not matches(whole_language("\\D"), digit_of_india)
    assert not matches(whole_language("\\W"), "é")
    assert matches(search_language("^\\D$", wide=True), digit_of_india)


def test_emptiness_inclusion_and_disjointness() -> None:
    assert is_empty(both(search_language("^a"), search_language("^b"))) is True
    assert is_empty(both(search_language("^a"), search_language("b$"))) is False
    assert disjoint(whole_language("[0-9]+"), whole_language("[a-z]*x"))
    assert included(whole_language("ab?"), search_language("a"))
    assert not included(search_language("a"), whole_language("ab?"))


def test_an_endless_question_is_given_up() -> None:
    assert is_empty(both(whole_language("(?:a{1,300}b?){300}"), whole_language("(?:a{1,299}b?){299}x")), 50) is None


def test_finite_languages_are_listed() -> None:
    assert texts_of(whole_language("[ab]{2}|c?"), 10) == ["", "aa", "ab", "ba", "bb", "c"]
    assert texts_of(whole_language("a*"), 10) is None
    assert texts_of(whole_language("[a-z]{3}"), 100) is None


@pytest.mark.parametrize("text", ["", 'a"b', "back\\slash", "\n\t\x01", "é\u20ac", "\U0001f600"])
def test_the_json_form_spells_the_text(text: str) -> None:
    spelled = json_quoted(literal(text))
    assert matches(spelled, json.dumps(text, ensure_ascii=False))
    assert not matches(spelled, json.dumps(text + "x", ensure_ascii=False))


def test_the_json_form_of_a_complement_is_the_complement() -> None:
    spelled = json_quoted(negate(literal("a\n")))
    assert not matches(spelled, '"a\\n"')
    assert not matches(spelled, '"a\\u000A"')
    assert matches(spelled, '"a"')
    assert not matches(spelled, '"a\n"')


@pytest.mark.parametrize("pattern", ["a|ab", "[^a]+x", "(?:a|b){2,}", "[\\]\\^-]", "a/b#c d", "\\.\\*"])
def test_printed_regexes_mean_the_same(pattern: str) -> None:
    tree: Tree = whole_language(pattern)
    assert is_plain(tree)
    printed = re.compile(re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: f"\\U{int(found[1], 16):08x}", to_rust(tree)))
    assert [word for word in WORDS if bool(printed.fullmatch(word)) != matches(tree, word)] == []


def test_a_negated_class_reads_its_members_at_their_largest() -> None:  # spec R1
    empty, spaceless = whole_language(r"[^\s\S]"), whole_language(r"[^\s]")
    assert is_empty(empty)
    assert not is_empty(spaceless)
