"""A typed case: a set of values of one type (or a finite set), and the six that together hold every JSON value."""

from __future__ import annotations

from grammar_service.schema.arrays import Arrays
from grammar_service.schema.expr import Expr, Values, values
from grammar_service.schema.numbers import Numbers
from grammar_service.schema.objects import Objects
from grammar_service.schema.texts import Texts
from shared.errors import UnsupportedSchema


class TooMany(UnsupportedSchema):
    """A proof, or a set that must be whole, needs too many cases."""


Case = Values | Numbers | Texts | Arrays | Objects
UNIVERSE: tuple[Case, ...] = (values([None]), values([True, False]), Numbers(), Texts(), Arrays(), Objects())


def children(case: Case) -> list[Expr]:
    """The sets that a case speaks of for its items or properties."""
    match case:
        case Arrays():
            return [*case.prefix, case.items, *(count.item for count in case.counted)]
        case Objects():
            return [item for _, item in (*case.props, *case.rest, *case.exists)]
        case _:
            return []


def weight(case: Case) -> int:
    """How much a case asks for beyond its type."""
    match case:
        case Arrays():
            return len(case.prefix) + 2 * len(case.counted) + case.low
        case Objects():
            return len(case.required) + 2 * len(case.exists) + len(case.props)
        case _:
            return 0
