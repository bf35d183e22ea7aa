"""Sets of JSON values as expressions: schema nodes, finite sets, typed cases, and All, Some, Neg over them.

Every expression is immutable and hashable; equal expressions denote the same set, so that they serve as keys. The
constructors ``conj``, ``disj`` and ``neg`` apply only laws of sets (idempotence, absorption of the whole and the empty set,
double complement, x and not x).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from grammar_service.keyed import keyed


@keyed
@dataclass(frozen=True)
class Const:
    """One JSON value. Equality is JSON Schema's: 1 equals 1.0, true is not 1, the order of keys does not count."""

    key: Hashable
    value: Any = field(compare=False, default=None)


def const(value: Any) -> Const:
    return Const(_key(value), value)


def _key(value: Any) -> Hashable:
    if isinstance(value, bool) or value is None:
        return ("literal", value)
    if isinstance(value, int | float):
        return ("number", exact(value))
    if isinstance(value, str):
        return ("string", value)
    if isinstance(value, list):
        return ("array", tuple(_key(item) for item in value))
    return ("object", frozenset((name, _key(item)) for name, item in value.items()))


def exact(value: int | float) -> Fraction:
    """The number that was written: 0.1 is one tenth, not the nearest binary fraction."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


@keyed
@dataclass(frozen=True)
class Node:
    """The schema at a place of the document. ``pointer`` is its JSON pointer."""

    pointer: str


@keyed
@dataclass(frozen=True)
class Opaque:
    """A keyword that is not enforced, only checked afterwards: contained in every value, and so is its complement."""

    pointer: str
    keyword: str


@keyed
@dataclass(frozen=True)
class Values:
    """A finite set of values, in the order in which they were written."""

    members: tuple[Const, ...]


@keyed
@dataclass(frozen=True)
class All:
    parts: tuple[Any, ...]


@keyed
@dataclass(frozen=True)
class Some:
    options: tuple[Any, ...]


@keyed
@dataclass(frozen=True)
class ExactlyOne:
    options: tuple[Any, ...]
    pointer: str = field(compare=False, default="")


@keyed
@dataclass(frozen=True)
class Neg:
    item: Any


@keyed
@dataclass(frozen=True)
class Without:
    """A part of the complement: the cases of it that need no complement of a nested schema, where there are any."""

    item: Any


Expr = Any  # Node | Opaque | Values | All | Some | ExactlyOne | Neg | a typed case (numbers, texts, arrays, objects)
TRUE: Expr = All(())
FALSE: Expr = Some(())


def values(members: Iterable[Any]) -> Expr:
    distinct = {const(member): None for member in members}
    return Values(tuple(distinct)) if distinct else FALSE


def conj(*parts: Expr) -> Expr:
    flat: dict[Expr, None] = {}
    for part in parts:
        flat.update(dict.fromkeys(part.parts if isinstance(part, All) else (part,)))
    if FALSE in flat or any(isinstance(part, Neg) and part.item in flat for part in flat):
        return FALSE
    kept = _meet_values(list(flat))
    if FALSE in kept:
        return FALSE
    return kept[0] if len(kept) == 1 else All(tuple(kept))


def _meet_values(parts: list[Expr]) -> list[Expr]:
    """Finite sets among the parts cut to their common members; complements of finite sets taken out of them."""
    finite = [part for part in parts if isinstance(part, Values)]
    if not finite:
        return parts
    banned = {member for part in parts if isinstance(part, Neg) and isinstance(part.item, Values) for member in part.item.members}
    common = [member for member in finite[0].members
              if member not in banned and all(member in part.members for part in finite[1:])]  # fmt: skip
    rest = [part for part in parts if part not in finite and not (isinstance(part, Neg) and isinstance(part.item, Values))]
    return [Values(tuple(common)) if common else FALSE, *rest]


def disj(*options: Expr) -> Expr:
    flat: dict[Expr, None] = {}
    for option in options:
        flat.update(dict.fromkeys(option.options if isinstance(option, Some) else (option,)))
    if TRUE in flat:
        return TRUE
    kept = list(flat)
    return kept[0] if len(kept) == 1 else Some(tuple(kept))


def neg(item: Expr) -> Expr:
    if isinstance(item, Neg):
        return item.item
    if item == TRUE:
        return FALSE
    return TRUE if item == FALSE else Neg(item)
