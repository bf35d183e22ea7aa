"""Unique items out of an infinite set, by classes: items of different classes are different.

An engine cannot remember the items it saw, but it can remember 64 bits. So the texts are split into 64 classes by their first
and last characters, and each class is written at most once in an array. That is narrower than uniqueItems: of two different
items with like ends only one is written. It holds for strings, each of which has one class whatever its spelling, for
integers, each of which has one spelling, and for objects that differ in a string property which all of them must have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from grammar_service.regex_language import is_empty
from grammar_service.regex_print import json_quoted
from grammar_service.regex_tree import NEVER, Tree, alt, both, literal, negate
from grammar_service.schema.case import Case
from grammar_service.schema.expr import Expr, Values
from grammar_service.schema.number_syntax import number_tree
from grammar_service.schema.numbers import Numbers
from grammar_service.schema.objects import Objects
from grammar_service.schema.pattern import Pattern
from grammar_service.schema.text_classes import class_languages
from grammar_service.schema.texts import Texts, language


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


def class_sets(cases: Iterable[Case], cases_of: Callable[[Expr], tuple[Case, ...]]) -> list[Expr] | None:
    """One set for each coarse class of strings and of objects; None where there is an object without a property to tell it
    by, or anything else."""
    found = list(cases)
    objects = [case for case in found if isinstance(case, Objects)]
    strings = [case for case in found if not isinstance(case, Objects)]
    name = _telling_name(objects, cases_of)
    if name is None or not all(isinstance(case, Texts) or _only_strings(case) for case in strings):
        return None
    classes: list[Expr] = [Texts(require=frozenset({Pattern("class", str(index))})) for index in range(16)]
    told: list[Expr] = [Objects(props=((name, part),), required=(name,)) for part in classes]
    return [*told, *(classes if strings else [])]


def _telling_name(objects: list[Objects], cases_of: Callable[[Expr], tuple[Case, ...]]) -> str | None:
    """A property that every object must have and whose value is a string in each."""
    for name in sorted(objects[0].required, key=_likely) if objects else ():
        if all(name in case.required and _is_string(cases_of(case.value_of(name))) for case in objects):
            return name
    return None


def _likely(name: str) -> int:
    """Names that are given to tell things apart come first."""
    return min((at for at, part in enumerate(("id", "name", "key")) if name.lower().endswith(part)), default=3)


def _is_string(cases: tuple[Case, ...]) -> bool:
    """Strings only, and more than one."""
    return all(isinstance(case, Texts) or (_only_strings(case) and len(cases) > 1) for case in cases)


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
