"""Unique items out of an infinite set, by classes: items of different classes are different.

An engine cannot remember the items it saw, but it can remember 64 bits. So the texts are split into 64 classes by their first
and last characters, and each class is written at most once in an array. That is narrower than uniqueItems: of two different
items with like ends only one is written. It holds for strings, each of which has one class whatever its spelling, and for
integers, each of which has one spelling.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from grammar_service.regex_language import is_empty
from grammar_service.regex_print import json_quoted
from grammar_service.regex_tree import ANY_TEXT, EMPTY, NEVER, Tree, alt, both, cat, chars, literal, negate
from grammar_service.schema.case import Case
from grammar_service.schema.expr import Values
from grammar_service.schema.number_syntax import number_tree
from grammar_service.schema.numbers import Numbers
from grammar_service.schema.texts import Texts, language

BUCKETS = 8


@lru_cache(maxsize=1)
def class_languages() -> tuple[Tree, ...]:
    """64 disjoint sets of texts that hold every text; the empty one is in the first."""
    buckets = [_bucket(index) for index in range(BUCKETS)]
    found: list[Tree] = []
    for first in buckets:
        for last in buckets:
            found.append(alt(cat(first, ANY_TEXT, last), both(first, last)))
    return (alt(EMPTY, found[0]), *found[1:])


def _bucket(index: int) -> Tree:
    """Characters whose code is ``index`` modulo 8, in ASCII; the first bucket has all others."""
    low = [(code, code) for code in range(index, 0x80, BUCKETS)]
    return chars(*low, *([(0x80, 0x10FFFF)] if index == 0 else []))


def class_lexemes(cases: Iterable[Case]) -> list[Tree] | None:
    """One lexeme for each class of the items; None where the items are neither strings nor integers."""
    found = list(cases)
    if all(isinstance(case, Texts) or _only_strings(case) for case in found):
        return _kept(json_quoted(both(_string_language(found), part)) for part in class_languages())
    if all(_only_integers(case) for case in found):
        trees = [number_tree(case) for case in found if isinstance(case, Numbers)]
        if None in trees:
            return None
        integers = both(alt(*(tree for tree in trees if tree is not None)), negate(literal("-0")))
        return _kept(both(integers, part) for part in class_languages())
    return None


def _only_integers(case: Case) -> bool:
    step = case.step() if isinstance(case, Numbers) else None
    return step is not None and step.denominator == 1


def _only_strings(case: Case) -> bool:
    return isinstance(case, Values) and all(isinstance(member.value, str) for member in case.members)


def _string_language(cases: list[Case]) -> Tree:
    options = [language(*case.patterns()) for case in cases if isinstance(case, Texts)]
    options += [literal(str(member.value)) for case in cases if isinstance(case, Values) for member in case.members]
    return alt(*options)


def _kept(trees: Iterable[Tree]) -> list[Tree]:
    return [tree for tree in trees if tree != NEVER and is_empty(tree) is not True]

