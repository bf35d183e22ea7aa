"""Conjuncts of a property that are finite sets, intersected at once.

``{enum: [a]}`` and not ``{enum: [b]}`` is ``{a}``: without this step each further "not" of a discriminator would make another
expression, and each another proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from grammar_service.schema.arrays import Arrays
from grammar_service.schema.expr import FALSE, All, Expr, Neg, Node, Some, Values, conj, neg
from grammar_service.schema.membership import accepts
from grammar_service.schema.numbers import Numbers
from grammar_service.schema.objects import Objects
from grammar_service.schema.texts import Texts


def slim(finite_of: Callable[[Node], Expr], case: Objects) -> Objects:
    """The same set of objects."""
    if not any(isinstance(item, All) for _, item in case.props):
        return case
    return replace(case, props=tuple((name, _slimmed(finite_of, item)) for name, item in case.props))


def _slimmed(finite_of: Callable[[Node], Expr], expr: Expr) -> Expr:
    if not isinstance(expr, All):
        return expr
    return conj(*(_resolved(finite_of, part) for part in expr.parts))


def _resolved(finite_of: Callable[[Node], Expr], expr: Expr) -> Expr:
    if isinstance(expr, Neg):
        return neg(_resolved(finite_of, expr.item))
    return finite_of(expr) if isinstance(expr, Node) else expr


def finite_set(expand: Callable[[Node], Expr], node: Node) -> Expr:
    """The members of an enum or const that fulfil the typed keywords beside it; the node itself where it has neither, or
    where anything else stands beside them."""
    expanded = expand(node)
    parts = expanded.parts if isinstance(expanded, All) else (expanded,)
    finite = [part for part in parts if isinstance(part, Values)]
    if not finite or not all(_is_typed(part) for part in parts):
        return node
    kept = tuple(member for member in finite[0].members if accepts(expand, expanded, member.value, True))
    return Values(kept) if kept else FALSE


def _is_typed(expr: Expr) -> bool:
    if isinstance(expr, Some):
        return all(_is_typed(option) for option in expr.options)
    return isinstance(expr, Values | Numbers | Texts | Arrays | Objects)
