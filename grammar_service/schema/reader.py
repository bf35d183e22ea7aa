"""JSON text to Python values, refusing what is ambiguous or too large before anything recursive sees it."""

from __future__ import annotations

import json
import re
from typing import Any

from shared.errors import BadRequest, GrammarTooLarge

MAX_DEPTH = 64
MAX_NODES = 20_000
Json = Any
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
_SUSPECT = re.compile(r"\\u(?:0000|[dD][89a-fA-F])|[\x00\ud800-\udfff]")


def read_json(text: str, *, max_depth: int = MAX_DEPTH, max_nodes: int = MAX_NODES) -> Json:
    """The value of ``text``. Raises BadRequest (not JSON, duplicate key, NUL, lone surrogate, NaN) and GrammarTooLarge
    (depth, nodes). Depth is counted on the text first, since the standard parser recurses."""
    if _depth(text) > max_depth:
        raise GrammarTooLarge(f"nested deeper than {max_depth} brackets", keyword="depth")
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_number)
    except BadRequest:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"not JSON: {error}", field="guide") from error
    _check_nodes(value, max_nodes, _SUSPECT.search(text) is not None)
    return value


def _depth(text: str) -> int:
    """The greatest number of brackets open at once, strings skipped."""
    depth = deepest = 0
    for found in _BRACKET.finditer(text):
        if found[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif found[0] in "]}":
            depth -= 1
    return deepest


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadRequest(f"the key {twice!r} is given twice in one object", field="guide")
    return value


def _no_constant(name: str) -> Json:
    raise BadRequest(f"{name} is not JSON", field="guide")


def _number(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise BadRequest(f"the number {text[:40]} is too large", field="guide")
    return value


def _check_nodes(value: Json, max_nodes: int, texts: bool) -> None:
    stack, count = [value], 0
    while stack:
        item = stack.pop()
        count += 1
        if count > max_nodes:
            raise GrammarTooLarge(f"more than {max_nodes} JSON values", keyword="nodes")
        if isinstance(item, dict):
            for key in item if texts else ():
                _check_text(key)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif texts and isinstance(item, str):
            _check_text(item)


def _check_text(text: str) -> None:
    if "\x00" in text:
        raise BadRequest("NUL is not allowed in a guide", field="guide")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise BadRequest("a lone surrogate is not a character", field="guide")
