"""Requests that tests send to a whole system: guided and not, seeded, each with the check of its text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
SUM = 'root ::= number " + " number\nnumber ::= [1-9] [0-9]{0,4}\n'

Check = Callable[[str], bool]


def fits_person(text: str) -> bool:
    try:
        jsonschema.validate(json.loads(text), PERSON)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


GUIDES: list[tuple[dict[str, Any], Check]] = [
    ({"json": PERSON}, fits_person),
    ({"regex": DATE}, lambda text: re.fullmatch(DATE, text, re.ASCII) is not None),
    ({"choice": ["red", "green", "blue"]}, lambda text: text in ("red", "green", "blue")),
    ({"grammar": SUM}, lambda text: re.fullmatch(r"[1-9][0-9]{0,4} \+ [1-9][0-9]{0,4}", text) is not None),
]


def request(number: int) -> tuple[dict[str, Any], Check | None]:
    """The arguments of request ``number`` for ``AsyncClient.generate``, and the check of its text (None without a guide)."""
    common = {"prompt": f"request {number}", "max_tokens": 160, "temperature": 1.0, "seed": number, "deadline_s": 120.0}
    if number % 5 == 4:
        return common, None
    guide, check = GUIDES[number % 5]
    return common | {"structured_outputs": guide, "verify": True}, check
