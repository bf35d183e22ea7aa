"""if-then-else and the dependency keywords, as unions of cases.

``if I then T else E`` is (I and T) or (not I and E): an instance either fulfils I, then T must hold, or it does not, then E
must. A dependency of name p on schema S is (no p) or S, for objects; other types are unbound: not "an object with p", or S.
"""

from __future__ import annotations

from typing import Any

from grammar_service.schema.checks import Schema, mapping_of, names_of, wrong
from grammar_service.schema.document import child_pointer
from grammar_service.schema.expr import TRUE, Expr, Node, conj, disj, neg
from grammar_service.schema.objects import Objects
from grammar_service.schema.typed import Context


def conditional(context: Context, schema: Schema, pointer: str) -> Expr:
    if "then" not in schema and "else" not in schema:
        return TRUE  # an `if` alone only collects annotations
    context.note("if-then-else", pointer)
    test = Node(child_pointer(pointer, "if"))
    positive = Node(child_pointer(pointer, "then")) if "then" in schema else TRUE
    negative = Node(child_pointer(pointer, "else")) if "else" in schema else TRUE
    return disj(conj(test, positive), conj(neg(test), negative))


def dependent_required(context: Context, schema: Schema, pointer: str) -> Expr:
    context.note("dependentRequired", pointer)
    found = mapping_of(schema, "dependentRequired", pointer)
    return conj(*(_needs_names(name, needed, pointer) for name, needed in found.items()))


def dependent_schemas(context: Context, schema: Schema, pointer: str) -> Expr:
    context.note("dependentSchemas", pointer)
    base = child_pointer(pointer, "dependentSchemas")
    return conj(*(_needs(name, Node(child_pointer(base, name))) for name in mapping_of(schema, "dependentSchemas", pointer)))


def dependencies(context: Context, schema: Schema, pointer: str) -> Expr:
    """Draft 7 and before: a list of names, a schema, or (draft 3) one name."""
    context.note("dependencies", pointer)
    base = child_pointer(pointer, "dependencies")
    parts: list[Expr] = []
    for name, needed in mapping_of(schema, "dependencies", pointer).items():
        if isinstance(needed, dict | bool):
            parts.append(_needs(name, Node(child_pointer(base, name))))
        else:
            parts.append(_needs_names(name, [needed] if isinstance(needed, str) else needed, pointer))
    return conj(*parts)


def _needs_names(name: str, needed: Any, pointer: str) -> Expr:
    if not isinstance(needed, list):
        wrong(pointer, "dependencies", "lists of names or schemas")
    return _needs(name, Objects(required=tuple(names_of(needed, "dependencies", pointer))))


def _needs(name: str, schema: Expr) -> Expr:
    return disj(neg(Objects(required=(name,))), schema)
