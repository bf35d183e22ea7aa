"""``unevaluatedProperties`` where the set of evaluated names is known beforehand.

Names are evaluated by properties, patternProperties and additionalProperties of the schema itself and, through allOf, $ref and
the branch that holds of anyOf, oneOf and if, of the schemas it applies in place. Each combination of branches is one case
``(schemas that hold, names they evaluate)``; in that case every other property must be in the unevaluated schema. Branches
that do not hold evaluate nothing, so that a case also demands that they fail.
"""

from __future__ import annotations

from itertools import product

from grammar_service.schema.checks import Schema
from grammar_service.schema.document import Document, child_pointer
from grammar_service.schema.expr import TRUE, Expr, Node, conj, disj, neg
from grammar_service.schema.keys import ALL_KEYS, Keys
from grammar_service.schema.objects import Objects
from grammar_service.schema.pattern import Pattern
from grammar_service.schema.typed import Context

MAX_CASES = 64
Case = tuple[Expr, tuple[Keys, ...]]


def unevaluated_properties(context: Context, document: Document, schema: Schema, pointer: str) -> Expr:
    context.note("unevaluatedProperties", pointer)
    inner = {name: value for name, value in schema.items() if name != "unevaluatedProperties"}
    cases = _cases_of(context, document, inner, pointer, 0)
    if len(cases) > MAX_CASES:
        return context.unsupported(pointer, "unevaluatedProperties", f"more than {MAX_CASES} combinations of branches")
    rest = Node(child_pointer(pointer, "unevaluatedProperties"))
    return disj(*(conj(holds, *_others(evaluated, rest)) for holds, evaluated in cases))


def _others(evaluated: tuple[Keys, ...], rest: Expr) -> list[Expr]:
    if ALL_KEYS in evaluated:
        return []
    others = Keys(
        forbid=frozenset(pattern for keys in evaluated for pattern in keys.require),
        without=frozenset(name for keys in evaluated for name in keys.only or ()),
    )
    bound = Objects(rest=((others, rest),))
    return [disj(bound, neg(Objects()))]


def _cases_of(context: Context, document: Document, schema: Schema, pointer: str, depth: int) -> list[Case]:
    groups: list[list[Case]] = [[(TRUE, _own(schema))]]
    if depth > 16:
        context.unsupported(pointer, "unevaluatedProperties", "the schema applies itself in place")
        return [(TRUE, (ALL_KEYS,))]
    if "$ref" in schema:
        groups.append(_at(context, document, document.resolve(schema["$ref"], pointer), depth))
    for index in range(len(schema.get("allOf", []))):
        groups.append(_at(context, document, f"{pointer}/allOf/{index}", depth))
    for keyword in ("anyOf", "oneOf"):
        branches = [f"{pointer}/{keyword}/{index}" for index in range(len(schema.get(keyword, [])))]
        if branches:
            groups.append(_branches(context, document, branches, depth))
    if "if" in schema:
        groups.append(_conditional(context, document, schema, pointer, depth))
    combined = [_joined(combination) for combination in product(*groups)] if _size(groups) <= MAX_CASES * 4 else []
    return combined or [(TRUE, ())] * (MAX_CASES + 1)


def _size(groups: list[list[Case]]) -> int:
    size = 1
    for group in groups:
        size *= len(group)
    return size


def _own(schema: Schema) -> tuple[Keys, ...]:
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return (ALL_KEYS,)
    patterns = [Keys(require=frozenset({Pattern("search", regex)})) for regex in schema.get("patternProperties", {})]
    return (Keys(only=frozenset(schema.get("properties", {}))), *patterns)


def _at(context: Context, document: Document, pointer: str, depth: int) -> list[Case]:
    schema = document.at(pointer)
    return _cases_of(context, document, schema, pointer, depth + 1) if isinstance(schema, dict) else [(TRUE, ())]


def _branches(context: Context, document: Document, branches: list[str], depth: int) -> list[Case]:
    """Every subset of branches that may hold together, the others failing."""
    options: list[list[Case]] = []
    for branch in branches:
        held = [(conj(Node(branch), holds), names) for holds, names in _at(context, document, branch, depth)]
        options.append([*held, (neg(Node(branch)), ())])
    if _size(options) > MAX_CASES * 4:
        return [(TRUE, ())] * (MAX_CASES + 1)
    return [_joined(combination) for combination in product(*options)]


def _conditional(context: Context, document: Document, schema: Schema, pointer: str, depth: int) -> list[Case]:
    test = child_pointer(pointer, "if")
    then = _at(context, document, child_pointer(pointer, "then"), depth) if "then" in schema else [(TRUE, ())]
    other = _at(context, document, child_pointer(pointer, "else"), depth) if "else" in schema else [(TRUE, ())]
    held = [_joined(((Node(test), ()), *pair)) for pair in product(_at(context, document, test, depth), then)]
    return [*held, *(_joined(((neg(Node(test)), ()), case)) for case in other)]


def _joined(cases: tuple[Case, ...]) -> Case:
    return conj(*(holds for holds, _ in cases)), tuple(dict.fromkeys(keys for _, names in cases for keys in names))
