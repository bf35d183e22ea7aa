"""Verdicts of two validators of other authors on values, values that come near to given ones, and how they are spelled."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import jsonschema_rs
from hypothesis import assume
from jsonschema import FormatChecker
from jsonschema.validators import validator_for

NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
DATA = ("enum", "const", "default", "dependentRequired", "required")
SCALARS = [None, True, 0, 1, -1, 2.5, 7, "", "a", "ab", "2024-02-29", [], {}]


def verdict(schema: Any, value: Any) -> bool | None:
    """Whether ``value`` is valid, formats included; None where the two differ, or a number is beyond what they can hold."""
    if not _finite(value):
        return None
    try:
        first = bool(validator_for(schema)(schema, format_checker=FormatChecker()).is_valid(value))
        second = bool(jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value))
    except (ValueError, TypeError):  # a pattern that one cannot read; additionalItems beside a boolean items
        return None
    return first if first == second else None


def settled(schema: Any, value: Any) -> bool | None:
    """``verdict``, and None where a reference loops in place: it has no meaning, and a validator recurses over it."""
    try:
        return verdict(schema, value)
    except RecursionError:
        return None


def valid(schema: Any, value: Any) -> bool:
    """For property tests: an example without a settled verdict is left out."""
    judged = settled(schema, value)
    assume(judged is not None)
    return bool(judged)


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(_finite(part) for part in parts)


def spelled(value: Any, spaced: bool) -> str | None:
    """The value as JSON in the spelling that plans promise: whole numbers without a fraction, no exponents. None for others."""
    text = json.dumps(_whole(value), ensure_ascii=False, separators=None if spaced else (",", ":"))
    return None if any(mark in text for mark in ("e+", "e-", "Infinity", "NaN")) else text


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return {name: _whole(item) for name, item in value.items()} if isinstance(value, dict) else value


def mutated(value: Any, rng: random.Random) -> Any:
    """The value with its properties shuffled, and often with one thing changed in it."""
    if isinstance(value, dict) and value:
        items = list(value.items())
        rng.shuffle(items)
        name, item = items.pop()
        if rng.random() < 0.2:
            return dict(items)
        return {**dict(items), name: mutated(item, rng)}
    if isinstance(value, list) and value:
        at = rng.randrange(len(value))
        changed = [mutated(value[at], rng)] if rng.random() < 0.7 else rng.choice([[], [value[at], value[at]]])
        return [*value[:at], *changed, *value[at + 1 :]]
    return value if rng.random() < 0.5 else rng.choice(SCALARS)


def keywords_of(schema: Any) -> set[str]:
    """Names at the places of keywords: everything but the names of properties and what stands in enum, const and the like."""
    if isinstance(schema, list):
        return {name for part in schema for name in keywords_of(part)}
    if not isinstance(schema, dict):
        return set()
    found = set(schema) - {"$defs", "definitions", "$schema"}
    for name, part in schema.items():
        if name in NAMED and isinstance(part, dict):
            found |= keywords_of(list(part.values()))
        elif name == "dependencies":
            found |= keywords_of([item for item in part.values() if isinstance(item, dict)])
        elif name not in DATA:
            found |= keywords_of(part)
    return found
