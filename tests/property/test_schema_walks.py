"""Random schemas through the real engine: what is walked under the mask is valid, and valid values can be written.

The long run, which prints what became of each keyword:
`SCHEMA_EXAMPLES=3000 SCHEMA_DEPTH=4 pytest -s tests/property/test_schema_walks.py`
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grammar_service.plan import plan_guide
from shared.errors import MaskstreamError
from tests.engine_probe import ByteMatcher, matcher_of, producible, walk
from tests.schema_strategy import documents, values
from tests.verdicts import keywords_of, settled, valid

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "150"))
DEPTH = int(os.environ.get("SCHEMA_DEPTH", "3"))
RELAXED = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
WALKS = 20
counts: Counter[str] = Counter()
by_keyword: Counter[tuple[str, str]] = Counter()
OUTCOMES = ("exact", "narrower", "rewritten", "refused", "unsatisfiable")


def _record(schema: Any, *outcomes: str) -> None:
    counts.update(outcomes)
    by_keyword.update((name, outcome) for name in keywords_of(schema) for outcome in outcomes)


@RELAXED
@given(documents(DEPTH), st.randoms(use_true_random=False))
def test_every_walk_under_the_mask_ends_in_a_valid_text(schema: Any, rng: random.Random) -> None:  # spec R1
    try:
        plan = plan_guide("json_schema", json.dumps(schema), max_whitespace=rng.choice([0, 8]))
    except MaskstreamError as error:
        _record(schema, "unsatisfiable" if error.code == "unsatisfiable" else "refused")
        return
    _record(schema, "narrower" if plan.warnings else "exact", *["rewritten"] * bool(plan.rewrites))
    matcher = matcher_of(plan)
    for _ in range(WALKS):
        text = walk(matcher, rng)
        if text is not None:
            counts["walks"] += 1
            assert settled(schema, json.loads(text)) is not False, (text, plan.text)


@RELAXED
@given(documents(), values)
def test_valid_values_can_be_written(schema: Any, value: Any) -> None:
    """Unless the plan says where it is narrower."""
    try:
        plan = plan_guide("json_schema", json.dumps(schema))
    except MaskstreamError:
        return
    expected = valid(schema, value)
    possible = producible(matcher_of(plan), json.dumps(value, ensure_ascii=False))
    if not expected or not plan.warnings:
        assert possible == expected, (value, plan.text)


@RELAXED
@given(documents(), values)
def test_the_other_engine_writes_no_invalid_value(schema: Any, value: Any) -> None:  # spec R2
    try:
        plan = plan_guide("json_schema", json.dumps(schema), engine="xgrammar")
    except MaskstreamError:
        return
    expected = valid(schema, value)
    possible = ByteMatcher(plan).produces(json.dumps(value, ensure_ascii=False))
    if not expected or not plan.warnings:
        assert possible == expected, (value, plan.text)


def test_print_what_became_of_the_schemas() -> None:
    print(dict(counts))
    print(f"{'keyword':24}" + "".join(f"{outcome:>15}" for outcome in OUTCOMES))
    for keyword in sorted({name for name, _ in by_keyword}):
        print(f"{keyword:24}" + "".join(f"{by_keyword[keyword, outcome]:15}" for outcome in OUTCOMES))
    assert counts["walks"] > 100
