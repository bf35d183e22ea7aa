"""Whether one JSON value is in an expression's set: used to filter enum and const, and as a second opinion in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grammar_service.schema.arrays import Arrays
from grammar_service.schema.expr import (
    TRUE,
    All,
    ExactlyOne,
    Expr,
    Neg,
    Node,
    Opaque,
    Some,
    Values,
    Without,
    const,
    exact,
    values,
)  # fmt: skip
from grammar_service.schema.numbers import Numbers
from grammar_service.schema.objects import Objects
from grammar_service.schema.texts import Texts

Expand = Callable[[Node], Expr]
_MAX_IN_PLACE = 200


def accepts(expand: Expand, expr: Expr, value: Any, upper: bool, depth: int = 0) -> bool:
    """``upper`` asks for the larger reading of an unenforced keyword. A reference that loops in place holds for nothing."""
    if depth > _MAX_IN_PLACE:
        return False
    match expr:
        case Node():
            return accepts(expand, expand(expr), value, upper, depth + 1)
        case All(parts):
            return all(accepts(expand, part, value, upper, depth + 1) for part in parts)
        case Some(options):
            return any(accepts(expand, option, value, upper, depth + 1) for option in options)
        case ExactlyOne(options):
            return _exactly_one(expand, options, value, upper, depth)
        case Neg(item) | Without(item):
            return not accepts(expand, item, value, not upper, depth + 1)
        case Opaque():
            return upper
        case Values(members):
            return const(value) in members
        case _:
            return _in_case(expand, expr, value, upper)


def _exactly_one(expand: Expand, options: tuple[Expr, ...], value: Any, upper: bool, depth: int) -> bool:
    possible = [accepts(expand, option, value, True, depth + 1) for option in options]
    certain = [accepts(expand, option, value, False, depth + 1) for option in options]
    if upper:
        return sum(certain) <= 1 <= sum(possible)
    return sum(certain) == 1 == sum(possible)


def _in_case(expand: Expand, case: Expr, value: Any, upper: bool) -> bool:
    def inside(expr: Expr, item: Any) -> bool:
        return expr == TRUE or accepts(expand, expr, item, upper)

    match case:
        case Numbers():
            return isinstance(value, int | float) and not isinstance(value, bool) and case.holds(exact(value))
        case Texts():
            return isinstance(value, str) and case.holds(value)
        case Arrays():
            return isinstance(value, list) and _in_array(case, value, inside)
        case Objects():
            return isinstance(value, dict) and _in_object(case, value, inside)
        case _:
            raise TypeError(f"not an expression: {case!r}")


def _in_array(case: Arrays, value: list[Any], inside: Callable[[Expr, Any], bool]) -> bool:
    if len(value) < case.low or (case.high is not None and len(value) > case.high):
        return False
    if case.unique is not None and case.unique != (len({const(item) for item in value}) == len(value)):
        return False
    if not all(inside(case.item(index), item) for index, item in enumerate(value)):
        return False
    for count in case.counted:
        hits = sum(inside(count.item, item) for item in value[count.start :])
        if hits < count.low or (count.high is not None and hits > count.high):
            return False
    return True


def _in_object(case: Objects, value: dict[str, Any], inside: Callable[[Expr, Any], bool]) -> bool:
    if len(value) < case.low or (case.high is not None and len(value) > case.high):
        return False
    if any(name not in value for name in case.required):
        return False
    if not all(inside(case.value_of(name), item) for name, item in value.items()):
        return False
    return all(any(keys.holds(name, False) and inside(item, found) for name, found in value.items()) for keys, item in case.exists)


def structure_of(value: Any) -> Expr:
    """An array or object const as a typed case: the same single value, by its structure."""
    if isinstance(value, list):
        return Arrays(tuple(values([item]) for item in value), low=len(value), high=len(value))
    props = tuple((name, values([item])) for name, item in value.items())
    return Objects(props, required=tuple(value), high=len(value))
