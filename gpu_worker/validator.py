"""The independent check of a finished guided text (R26): no engine of a grammar service has a part in it.

JSON by the standard library and ``jsonschema-rs``, regex by RE2 (no backtracking on what a user sends), choice by equality. For the
kinds without an independent checker here (ebnf, lark, structural_tag) the answer is None.
"""

from __future__ import annotations

import json
from typing import Any

from shared.guide import Guide


def is_valid(guide: Guide, text: str) -> bool | None:
    """True or False where this text can be judged under the guide, else None."""
    if guide.kind in ("json", "json_object", "json_schema"):
        return _json_valid(guide, text)
    if guide.kind == "regex":
        return _regex_valid(guide.text, text)
    return text in json.loads(guide.text) if guide.kind == "choice" else None


def _json_valid(guide: Guide, text: str) -> bool:
    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return False
    if guide.kind == "json_object":
        return isinstance(value, dict)
    return guide.kind == "json" or _schema_valid(json.loads(guide.text), value)


def _schema_valid(schema: Any, value: Any) -> bool:
    import jsonschema_rs

    # The schema is a user's: a reference to another document must not become a request of this process.
    return bool(jsonschema_rs.validator_for(schema, validate_formats=True, retriever=_no_document).is_valid(value))


def _regex_valid(pattern: str, text: str) -> bool | None:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options).fullmatch(text) is not None
    except re2.error:  # RE2 cannot read every pattern that an engine reads
        return None


def _no_document(uri: str) -> Any:
    raise ValueError(f"{uri} is not part of the schema")


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("duplicate key")
    return value
