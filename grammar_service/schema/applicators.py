"""allOf, anyOf, oneOf, not, enum, const, $ref: set operations on the schemas they name."""

from __future__ import annotations

from typing import Any

from grammar_service.schema.checks import Schema, wrong
from grammar_service.schema.document import child_pointer
from grammar_service.schema.expr import ExactlyOne, Expr, Node, conj, disj, neg, values
from grammar_service.schema.typed import Context, list_nodes


def all_of(context: Context, schema: Schema, pointer: str) -> Expr:
    """An instance is valid when each schema holds: the intersection."""
    context.note("allOf", pointer)
    return conj(*list_nodes(schema, "allOf", pointer))


def any_of(context: Context, schema: Schema, pointer: str) -> Expr:
    """An instance is valid when some schema holds: the union."""
    return disj(*list_nodes(schema, "anyOf", pointer))


def one_of(context: Context, schema: Schema, pointer: str) -> Expr:
    """Exactly one holds. With one schema that is the schema; else the solver takes each minus those it meets."""
    nodes = list_nodes(schema, "oneOf", pointer)
    if len(nodes) == 1:
        return nodes[0]
    context.note("oneOf", pointer)
    return ExactlyOne(tuple(nodes), pointer)


def negation(context: Context, schema: Schema, pointer: str) -> Expr:
    """The complement; the solver takes it per type by De Morgan."""
    context.note("not", pointer)
    return neg(Node(child_pointer(pointer, "not")))


def enumeration(context: Context, schema: Schema, pointer: str) -> Expr:
    """A finite set. Met with the other keywords it keeps the members that fulfil them."""
    members: Any = schema["enum"]
    if not isinstance(members, list):
        wrong(pointer, "enum", "a list")
    return values(members)


def constant(context: Context, schema: Schema, pointer: str) -> Expr:
    return values([schema["const"]])
