"""The capability table against the engines themselves: each row is what the engine does, on the version that is installed."""

from __future__ import annotations

import importlib.metadata
import json
from typing import Any

import pytest

from grammar_service.capability import PROVED_VERSIONS, TABLE, Capability, rows_of
from grammar_service.plan import plan_guide
from grammar_service.schema.expand import KNOWN_KEYWORDS
from shared.errors import UnsupportedSchema
from tests.capability_probes import PROBES
from tests.engine_probe import ByteMatcher, matcher_of, producible

ROWS = [(row, engine) for row in TABLE for engine in ("llguidance", "xgrammar")]


def test_the_engines_are_those_that_the_table_was_proved_on() -> None:  # spec R1
    assert {name: importlib.metadata.version(name) for name in PROVED_VERSIONS} == PROVED_VERSIONS


def test_every_keyword_has_a_row_and_every_row_a_probe() -> None:
    assert {name for name in KNOWN_KEYWORDS if not rows_of(name)} == set()
    assert {(row.keyword, row.context) for row in TABLE} == set(PROBES)


@pytest.mark.parametrize(("row", "engine"), ROWS, ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]))
def test_a_row_says_what_the_engine_does(row: Capability, engine: str) -> None:  # spec R1, R2
    schema, possible, impossible = PROBES[row.keyword, row.context]
    level = row.llguidance if engine == "llguidance" else row.xgrammar
    if level == "refused":
        with pytest.raises(UnsupportedSchema) as caught:
            plan_guide("json_schema", json.dumps(schema), engine=engine)
        assert caught.value.keyword == row.keyword
        return
    written = _writer(schema, engine)
    assert [value for value in possible if not written(value)] == []
    assert [value for value in impossible if written(value)] == []


def _writer(schema: Any, engine: str) -> Any:
    plan = plan_guide("json_schema", json.dumps(schema), engine=engine)
    assert plan.engine == engine
    if engine == "xgrammar":
        matcher = ByteMatcher(plan)
        return lambda value: matcher.produces(json.dumps(value, ensure_ascii=False))
    other = matcher_of(plan)
    return lambda value: producible(other, json.dumps(value, ensure_ascii=False))
