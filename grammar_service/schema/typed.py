"""The keywords that speak of one type each, as typed cases. ``type`` picks the types; a keyword binds its own type only."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

from grammar_service.regex_syntax import RegexError
from grammar_service.schema.arrays import Arrays, Counted
from grammar_service.schema.checks import (
    Schema,
    count_of,
    mapping_of,
    names_of,
    number_of,
    schemas_of,
    text_of,
    types_of,
    wrong,
)  # fmt: skip
from grammar_service.schema.document import child_pointer
from grammar_service.schema.expr import FALSE, Expr, Node, conj, disj, neg, values
from grammar_service.schema.formats import KNOWN_FORMATS
from grammar_service.schema.keys import Keys
from grammar_service.schema.numbers import Numbers
from grammar_service.schema.objects import Objects
from grammar_service.schema.pattern import Pattern
from grammar_service.schema.texts import Texts


class Context(Protocol):
    """What the keyword functions need of the solver."""

    draft: int

    def keys_of(self, expr: Expr) -> list[Keys]: ...
    def unsupported(self, pointer: str, keyword: str, message: str) -> Expr: ...
    def note(self, rewrite: str, pointer: str) -> None: ...
    def warn(self, message: str) -> None: ...


NUMBER_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
TEXT_KEYWORDS = ("minLength", "maxLength", "pattern", "format")
ARRAY_KEYWORDS = (
    "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains",
)  # fmt: skip
OBJECT_KEYWORDS = (
    "properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties", "propertyNames",
)  # fmt: skip
TYPED_KEYWORDS = frozenset(("type", *NUMBER_KEYWORDS, *TEXT_KEYWORDS, *ARRAY_KEYWORDS, *OBJECT_KEYWORDS))


def typed_expr(context: Context, schema: Schema, pointer: str) -> Expr:
    """The union over the types of ``schema`` of what its keywords leave of each."""
    makers: dict[str, Callable[[], Expr]] = {
        "null": lambda: values([None]),
        "boolean": lambda: values([True, False]),
        "number": lambda: numbers_of(schema, pointer),
        "integer": lambda: numbers_of(schema, pointer).meet(Numbers(multiples=frozenset({Fraction(1)}))),
        "string": lambda: texts_of(context, schema, pointer),
        "array": lambda: arrays_of(context, schema, pointer),
        "object": lambda: objects_of(context, schema, pointer),
    }
    types = types_of(schema, pointer)
    if "nullable" in schema and schema.get("nullable") is True and "null" in types:
        context.note("nullable", pointer)
    return disj(*(makers[name]() for name in types if not (name == "integer" and "number" in types)))


def numbers_of(schema: Schema, pointer: str) -> Numbers:
    """Bounds in both spellings: draft 4 has ``exclusiveMinimum: true`` beside ``minimum``, later drafts a number."""
    found = Numbers(origin=pointer)
    for keyword, exclusive, upper in (("minimum", "exclusiveMinimum", False), ("maximum", "exclusiveMaximum", True)):
        bound = number_of(schema, keyword, pointer)
        strict = schema.get(exclusive)
        if bound is not None:
            found = found.meet(_bounded(bound, strict is True, upper))
        if exclusive in schema and not isinstance(strict, bool):
            limit = number_of(schema, exclusive, pointer)
            found = found if limit is None else found.meet(_bounded(limit, True, upper))
    step = number_of(schema, "multipleOf", pointer)
    if step is not None and step <= 0:
        wrong(pointer, "multipleOf", "a number above 0")
    return found if step is None else found.meet(Numbers(multiples=frozenset({step})))


def _bounded(bound: Fraction, strict: bool, upper: bool) -> Numbers:
    return Numbers(high=bound, high_open=strict) if upper else Numbers(low=bound, low_open=strict)


def texts_of(context: Context, schema: Schema, pointer: str) -> Expr:
    require: set[Pattern] = set()
    extra: list[Expr] = []
    regex = text_of(schema, "pattern", pointer)
    if regex is not None:
        extra += _pattern(context, regex, pointer, require)
    name = text_of(schema, "format", pointer)
    if name in KNOWN_FORMATS:
        require.add(Pattern("format", name or ""))
    elif name is not None:
        context.warn(f"#{pointer}/format: {name!r} is an annotation here, not enforced")
    low, high = count_of(schema, "minLength", pointer) or 0, count_of(schema, "maxLength", pointer)
    return conj(Texts(frozenset(require), low=low, high=high, origin=pointer), *extra)


def _pattern(context: Context, regex: str, pointer: str, require: set[Pattern]) -> list[Expr]:
    try:
        require.add(checked_pattern(regex))
    except RegexError as error:
        return [context.unsupported(child_pointer(pointer, "pattern"), "pattern", f"{error}; rewrite the pattern without it")]
    return []


def checked_pattern(regex: str) -> Pattern:
    """The pattern, both its readings made once so that a later use cannot fail. Raises RegexError."""
    pattern = Pattern("search", regex)
    _ = pattern.narrow, pattern.wide
    return pattern


def arrays_of(context: Context, schema: Schema, pointer: str) -> Expr:
    """``items`` as a list is draft 7's tuple, then ``additionalItems`` is the rest; else ``prefixItems`` and ``items``."""
    items = schema.get("items")
    if isinstance(items, list):
        prefix_name, rest_name = "items", "additionalItems"
        context.note("tuple items", pointer)
    else:
        prefix_name, rest_name = "prefixItems", "items"
    prefix = schema.get(prefix_name, [])
    if not isinstance(prefix, list):
        wrong(pointer, prefix_name, "a list of schemas")
    base = child_pointer(pointer, prefix_name)
    rest = Node(child_pointer(pointer, rest_name)) if rest_name in schema else conj()
    low, high = count_of(schema, "minItems", pointer) or 0, count_of(schema, "maxItems", pointer)
    unique = schema.get("uniqueItems", False)
    if not isinstance(unique, bool):
        wrong(pointer, "uniqueItems", "true or false")
    return Arrays(
        tuple(Node(f"{base}/{index}") for index in range(len(prefix))), rest, low, high, _contains(schema, pointer),
        True if unique else None, origin=pointer,
    )  # fmt: skip


def _contains(schema: Schema, pointer: str) -> tuple[Counted, ...]:
    if "contains" not in schema:
        return ()
    low = count_of(schema, "minContains", pointer)
    item = Node(child_pointer(pointer, "contains"))
    return (Counted(0, item, 1 if low is None else low, count_of(schema, "maxContains", pointer)),)


def objects_of(context: Context, schema: Schema, pointer: str) -> Expr:
    declared = mapping_of(schema, "properties", pointer)
    base = child_pointer(pointer, "properties")
    props = tuple((name, Node(child_pointer(base, name))) for name in declared)
    rest, extra = _pattern_rules(context, schema, pointer)
    if "additionalProperties" in schema:
        others = Keys(forbid=frozenset(p for keys, _ in rest for p in keys.require), without=frozenset(declared))
        rest.append((others, Node(child_pointer(pointer, "additionalProperties"))))
    if "propertyNames" in schema:
        context.note("propertyNames", pointer)
        banned = neg(Node(child_pointer(pointer, "propertyNames")))
        rest.extend((keys, FALSE) for keys in context.keys_of(banned))
    required = names_of(schema["required"], "required", pointer) if "required" in schema else []
    if any(name not in declared for name in required):
        context.note("required outside properties", pointer)
    low, high = count_of(schema, "minProperties", pointer) or 0, count_of(schema, "maxProperties", pointer)
    return conj(Objects(props, tuple(rest), tuple(required), low, high, origin=pointer), *extra)


def _pattern_rules(context: Context, schema: Schema, pointer: str) -> tuple[list[tuple[Keys, Expr]], list[Expr]]:
    rules: list[tuple[Keys, Expr]] = []
    extra: list[Expr] = []
    base = child_pointer(pointer, "patternProperties")
    for regex in mapping_of(schema, "patternProperties", pointer):
        try:
            keys = Keys(require=frozenset({checked_pattern(regex)}))
            rules.append((keys, Node(child_pointer(base, regex))))
        except RegexError as error:
            extra.append(context.unsupported(base, "patternProperties", f"{error}; rewrite the pattern without it"))
    return rules, extra


def list_nodes(schema: Schema, keyword: str, pointer: str) -> list[Expr]:
    base = child_pointer(pointer, keyword)
    return [Node(f"{base}/{index}") for index in range(len(schemas_of(schema[keyword], keyword, pointer)))]
