"""The set that the front works with is the schema's: both accept the same values, and so do the cases it is solved to."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from jsonschema import Draft202012Validator

from grammar_service.schema.document import Document
from grammar_service.schema.expr import Node, neg
from grammar_service.schema.solver import Solver
from shared.errors import MaskstreamError
from tests.schema_strategy import documents, values
from tests.verdicts import valid

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "300"))
RELAXED = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@RELAXED
@given(documents(), values)
def test_a_value_is_in_the_set_when_the_schema_accepts_it(schema: Any, value: Any) -> None:  # spec R1
    try:
        solver = Solver(Document(schema))
        inside = solver.accepts(Node(""), value)
    except MaskstreamError:
        assume(False)
    assert inside == valid(schema, value)


@RELAXED
@given(documents(), values)
def test_the_cases_are_the_schema_and_their_complement_is_not(schema: Any, value: Any) -> None:  # spec R1
    solver = Solver(Document(schema))
    try:
        solver.exact = True
        cases = solver.cases(Node(""))
        outside = solver.cases(neg(Node("")))
    except MaskstreamError:
        assume(False)
    expected = valid(schema, value)
    assert any(solver.accepts(case, value) for case in cases) == expected
    assert any(solver.accepts(case, value) for case in outside) != expected


@RELAXED
@given(documents(), values)
def test_frugal_cases_are_never_wider(schema: Any, value: Any) -> None:  # spec R1
    solver = Solver(Document(schema))
    try:
        accepted = any(solver.accepts(case, value) for case in solver.cases(Node("")))
    except MaskstreamError:
        assume(False)
    if accepted:
        assert valid(schema, value)


@pytest.mark.parametrize("value", [{"a": {"a": {}}}, {"a": 1}, {}, []])
def test_recursion_through_a_property(value: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    assert Solver(Document(schema)).accepts(Node(""), value) == Draft202012Validator(schema).is_valid(value)
