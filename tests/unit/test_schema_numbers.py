"""Numbers that are bounded by their sign alone, and what an empty grammar proves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grammar_service.plan import plan_guide
from shared.errors import GrammarTooLarge, Unsatisfiable
from tests.engine_probe import accepts

SIGNS = [
    ({"minimum": 0}, ["0", "0.0", "1e2", "9" * 40, "0." + "0" * 30 + "1", "1.5"], ["-1", "-0.5"]),
    ({"exclusiveMinimum": 0}, ["1", "9" * 40 + ".5", "1e-9", "0.5"], ["0", "0.0", "-1", "0e5", "0." + "0" * 400 + "1"]),
    ({"maximum": 0}, ["0", "-1", "-" + "9" * 40, "-1e5"], ["1", "0.5"]),
    ({"exclusiveMaximum": 0}, ["-1", "-0.5", "-" + "9" * 40], ["0", "1", "-0.0"]),
]


@pytest.mark.parametrize(("bounds", "possible", "impossible"), SIGNS, ids=lambda value: str(value)[:24])
def test_a_sign_bounds_no_size(bounds: dict[str, Any], possible: list[str], impossible: list[str]) -> None:  # spec R1
    schema = json.dumps({"type": "number", **bounds})
    assert [text for text in possible if not accepts("json_schema", schema, text)] == []
    assert [text for text in impossible if accepts("json_schema", schema, text)] == []


def test_what_was_cut_empty_is_not_called_unsatisfiable() -> None:  # spec R4
    """{"ab1": "A", "cd1": "C"} fits, but two properties that only have to exist are written as one."""
    needs = [
        {"not": {"patternProperties": {name: {"not": {"type": "string", "pattern": text}}}}}
        for name, text in (("ab", "A"), ("cd", "C"))
    ]
    schema = {"type": "object", "allOf": [*needs, {"propertyNames": {"pattern": "^...$"}}]}
    with pytest.raises(GrammarTooLarge):
        plan_guide("json_schema", json.dumps(schema))
    with pytest.raises(Unsatisfiable):
        plan_guide("json_schema", json.dumps({"type": "object", "properties": {"a": False}, "required": ["a"]}))


def test_no_reader_rounds_a_number_onto_a_multiple_that_is_forbidden() -> None:  # spec R1
    half = json.dumps({"type": "number", "exclusiveMinimum": 2.5, "not": {"multipleOf": 0.5}})
    assert [
        text for text in ("3.1", "7.25", "3.0000001", "123456.789", "3.12345678901234567") if not accepts("json_schema", half, text)
    ] == []
    rounded = ("4142432154512631577202985.9", "3.00000000000000001", "3.5", "3.50", "4", "3.49999999999999999999")
    assert [text for text in rounded if accepts("json_schema", half, text)] == []
    seven = json.dumps({"type": "number", "not": {"multipleOf": 5}})
    assert [text for text in ("7", "-7.5", "99999999999999999999991") if not accepts("json_schema", seven, text)] == []
    assert [text for text in ("10", "-0", "10.0", "10.00000000000000000001") if accepts("json_schema", seven, text)] == []
