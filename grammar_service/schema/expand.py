"""A schema node to an expression: every keyword contributes one set, and the node is their intersection.

The parts stand in the order of the keywords, because the order of the first mention is the order in which properties are
written. Unknown keywords are annotations, as the standard says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grammar_service.schema import applicators, conditional
from grammar_service.schema.checks import Schema, wrong
from grammar_service.schema.document import Document
from grammar_service.schema.expr import FALSE, TRUE, Expr, Node, conj
from grammar_service.schema.typed import TYPED_KEYWORDS, Context, typed_expr
from grammar_service.schema.unevaluated import unevaluated_properties
from shared.errors import BadRequest

Keyword = Callable[[Context, Schema, str], Expr]
_KEYWORDS: dict[str, Keyword] = {
    "allOf": applicators.all_of,
    "anyOf": applicators.any_of,
    "oneOf": applicators.one_of,
    "not": applicators.negation,
    "enum": applicators.enumeration,
    "const": applicators.constant,
    "if": conditional.conditional,
    "dependentRequired": conditional.dependent_required,
    "dependentSchemas": conditional.dependent_schemas,
    "dependencies": conditional.dependencies,
}
_UNSUPPORTED = {
    "$dynamicRef": "use $ref", "$recursiveRef": "use $ref", "unevaluatedItems": "use items: false behind prefixItems",
    "extends": "use allOf", "disallow": "use not",
}  # fmt: skip
_DRAFT_3 = ("extends", "disallow")
KNOWN_KEYWORDS = frozenset((*_KEYWORDS, *TYPED_KEYWORDS, "$ref", "then", "else", "unevaluatedProperties"))


def expand_node(context: Context, document: Document, pointer: str) -> Expr:
    schema = document.at(pointer)
    if isinstance(schema, bool):
        return TRUE if schema else FALSE
    if not isinstance(schema, dict):
        raise BadRequest("a schema is an object or a boolean", field="guide", pointer=pointer)
    if "$ref" in schema and document.draft <= 7:
        return _reference(document, schema, pointer)  # its siblings are ignored by these drafts
    return conj(*_parts(context, document, schema, pointer))


def _parts(context: Context, document: Document, schema: Schema, pointer: str) -> list[Expr]:
    typed_at = "properties" if "properties" in schema else next((name for name in schema if name in TYPED_KEYWORDS), "")
    parts: list[Expr] = []
    for name in schema:
        if name == "$ref":
            parts.append(_reference(document, schema, pointer))
            if len(schema) > 1:
                context.note("$ref with siblings", pointer)
        elif name == typed_at:
            parts.append(typed_expr(context, schema, pointer))
        elif name in _KEYWORDS:
            parts.append(_KEYWORDS[name](context, schema, pointer))
        elif name == "unevaluatedProperties":
            parts.append(unevaluated_properties(context, document, schema, pointer))
        elif name in _UNSUPPORTED and not (name in _DRAFT_3 and document.draft > 4):
            parts.append(context.unsupported(pointer, name, f"no engine enforces {name}: {_UNSUPPORTED[name]}"))
    return parts


def _reference(document: Document, schema: dict[str, Any], pointer: str) -> Expr:
    reference = schema["$ref"]
    if not isinstance(reference, str):
        wrong(pointer, "$ref", "a string")
    return Node(document.resolve(reference, pointer))
