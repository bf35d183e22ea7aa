"""Random schemas through the real engine: what is walked under the mask is valid, and valid values can be written."""

from __future__ import annotations

import json
import math
import os
import random
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from grammar_service.plan import plan_guide
from shared.errors import MaskstreamError
from tests.engine_probe import ByteMatcher, matcher_of, producible, walk
from tests.schema_strategy import documents, values

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "150"))
RELAXED = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
WALKS = 20
counts: Counter[str] = Counter()


def _finite(value: Any) -> bool:
    """Validators take numbers beyond binary range for infinite; those texts are left out."""
    if isinstance(value, float):
        return math.isfinite(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(_finite(part) for part in parts)


def _valid(schema: Any, value: Any) -> bool:
    """A reference that loops in place has no meaning, and the validator recurses over it: left out."""
    try:
        return bool(Draft202012Validator(schema).is_valid(value))
    except RecursionError:
        assume(False)
        raise


@RELAXED
@given(documents(), st.randoms(use_true_random=False))
def test_every_walk_under_the_mask_ends_in_a_valid_text(schema: Any, rng: random.Random) -> None:  # spec R1
    try:
        plan = plan_guide("json_schema", json.dumps(schema), max_whitespace=rng.choice([0, 8]))
    except MaskstreamError as error:
        counts[error.code] += 1
        return
    counts["enforced"] += 1
    matcher = matcher_of(plan)
    for _ in range(WALKS):
        text = walk(matcher, rng)
        if text is not None and _finite(value := json.loads(text)):
            counts["walks"] += 1
            assert _valid(schema, value), (text, plan.text)


@RELAXED
@given(documents(), values)
def test_valid_values_can_be_written(schema: Any, value: Any) -> None:
    """Unless the plan says where it is narrower."""
    try:
        plan = plan_guide("json_schema", json.dumps(schema))
    except MaskstreamError:
        return
    valid = _valid(schema, value)
    possible = producible(matcher_of(plan), json.dumps(value, ensure_ascii=False))
    if not valid or not plan.warnings:
        assert possible == valid, (value, plan.text)


@RELAXED
@given(documents(), values)
def test_the_other_engine_writes_no_invalid_value(schema: Any, value: Any) -> None:  # spec R2
    try:
        plan = plan_guide("json_schema", json.dumps(schema), engine="xgrammar")
    except MaskstreamError:
        return
    valid = _valid(schema, value)
    possible = ByteMatcher(plan).produces(json.dumps(value, ensure_ascii=False))
    if not valid or not plan.warnings:
        assert possible == valid, (value, plan.text)


def test_print_what_became_of_the_schemas() -> None:
    print(dict(counts))
    assert counts["walks"] > 100
