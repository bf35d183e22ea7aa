"""oneOf: each option outside of the others, in no more cases than needed.

Options proved disjoint are taken as they are. Of the others the complement is met with the option. In a proof it is the whole
complement; for writing, cases that complement a nested schema are left out where others remain, and where the cases still
multiply, a property whose values tell two options apart stands for the whole complement. Both leave out values, never let
one in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grammar_service.schema.arrays import Arrays
from grammar_service.schema.case import UNIVERSE, Case, TooMany, children, weight
from grammar_service.schema.expr import All, ExactlyOne, Expr, Neg, Some, Without, conj, neg
from grammar_service.schema.objects import Objects

if TYPE_CHECKING:
    from grammar_service.schema.solver import Solver

MAX_APART = 24
MAX_WHOLE = 2


def exactly_one(solver: Solver, expr: ExactlyOne) -> list[Case]:
    """Each option minus those that it is not proved to be disjoint from."""
    found: list[Case] = []
    overlaps = False
    for index, option in enumerate(expr.options):
        others = [other for at, other in enumerate(expr.options) if at != index and not solver.disjoint(option, other)]
        overlaps |= bool(others)
        found.extend(_apart(solver, option, others))
    solver.note("oneOf with overlaps as cases" if overlaps else "oneOf as anyOf (disjoint)", expr.pointer)
    return found


def _apart(solver: Solver, option: Expr, others: list[Expr]) -> Sequence[Case]:
    """``option`` outside of the others: whole complements for a proof; for writing, fewer where they multiply."""
    if solver.exact or not others:
        return solver.cases(conj(option, *(neg(other) for other in others)))
    found: list[Case] = list(solver.cases(option))
    many = len(others) > MAX_WHOLE
    if many:
        solver.cut = True
        solver.warn("oneOf: where a property tells the branches apart, it is always written")
    for other in others:
        outside = _told_apart(solver, option, other) if many else Without(other)
        found = solver.met(found, solver.cases(outside), (option, other))
        if len(found) > MAX_APART:
            solver.warn(f"oneOf: of the ways in which branches differ the {MAX_APART} simplest are written")
            found = sorted(found, key=weight)[:MAX_APART]
            solver.cut = True
    return found


def _told_apart(solver: Solver, option: Expr, other: Expr) -> Expr:
    """The objects outside of ``other`` by a property whose values in ``option`` are all outside; else ``Without``."""
    try:
        own = [case for case in solver.proved(option) if isinstance(case, Objects)]
        outside_other = solver.proved(neg(other))
    except TooMany:
        return Without(other)
    found: list[Expr] = []
    others: list[Expr] = []
    for case in outside_other:
        if not isinstance(case, Objects):
            others.append(case)
        elif len(case.props) == 1 == len(case.required):
            name, outside = case.props[0]
            if all(name in dict(mine.props) and solver.disjoint(mine.value_of(name), neg(outside)) for mine in own):
                found.append(case)
    return Some((*others, *found)) if found else Without(other)


def frugal(solver: Solver, item: Expr) -> list[Case]:
    """The complement without its cases that complement a nested schema, where others are left: they multiply with each
    further option, and what they add is values that no discriminator tells apart."""
    whole = solver.cases(neg(item))
    flat = [case for case in whole if not any(_is_nested(solver, part) for part in children(case))]
    if not flat or len(flat) == len(whole):
        return list(whole)
    solver.cut = True
    solver.warn("oneOf: of instances that differ only deep inside of a branch, some are not written")
    return flat


def _is_nested(solver: Solver, expr: Expr) -> bool:
    """The complement of a set with arrays or objects that say something."""
    if not isinstance(expr, Neg):
        return isinstance(expr, All) and any(_is_nested(solver, part) for part in expr.parts)
    try:
        return any(isinstance(case, Arrays | Objects) and case not in UNIVERSE for case in solver.proved(expr.item))
    except TooMany:
        return True
