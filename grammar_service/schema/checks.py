"""Typed access to keyword values: each returns the value or raises BadRequest naming pointer and keyword."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NoReturn

from grammar_service.schema.expr import exact
from shared.errors import BadRequest

Schema = dict[str, Any]
TYPE_NAMES = ("null", "boolean", "integer", "number", "string", "array", "object")


def wrong(pointer: str, keyword: str, expected: str) -> NoReturn:
    raise BadRequest(f"{keyword} must be {expected}", field="guide", pointer=pointer, keyword=keyword)


def count_of(schema: Schema, keyword: str, pointer: str) -> int | None:
    value = schema.get(keyword)
    if value is None and keyword not in schema:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        wrong(pointer, keyword, "a whole number, not negative")
    return int(value)


def number_of(schema: Schema, keyword: str, pointer: str) -> Fraction | None:
    value = schema.get(keyword)
    if value is None and keyword not in schema:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        wrong(pointer, keyword, "a number")
    return exact(value)


def mapping_of(schema: Schema, keyword: str, pointer: str) -> Schema:
    value = schema.get(keyword, {})
    if not isinstance(value, dict):
        wrong(pointer, keyword, "an object")
    return value


def schemas_of(value: Any, keyword: str, pointer: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        wrong(pointer, keyword, "a list of schemas, not empty")
    return value


def names_of(value: Any, keyword: str, pointer: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        wrong(pointer, keyword, "a list of names")
    return list(dict.fromkeys(value))


def text_of(schema: Schema, keyword: str, pointer: str) -> str | None:
    value = schema.get(keyword)
    if value is None and keyword not in schema:
        return None
    if not isinstance(value, str):
        wrong(pointer, keyword, "a string")
    return value


def types_of(schema: Schema, pointer: str) -> tuple[str, ...]:
    """The types asked for, each once; all of them where ``type`` is absent. OpenAPI's ``nullable`` adds null to ``type``."""
    value = schema.get("type")
    if "type" not in schema:
        return ("null", "boolean", "number", "string", "array", "object")
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(name in TYPE_NAMES for name in names):
        wrong(pointer, "type", f"one or several of {', '.join(TYPE_NAMES)}")
    if schema.get("nullable") is True and "null" not in names:
        names = [*names, "null"]
    return tuple(dict.fromkeys(names))
