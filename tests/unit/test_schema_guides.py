"""Every line of the guide cases through the plan and the engine that it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grammar_service.plan import plan_guide
from shared.errors import MaskstreamError
from tests.engine_probe import ByteMatcher, matcher_of, producible

CASES = [json.loads(line) for line in (Path(__file__).parents[1] / "cases" / "guides.jsonl").read_text().splitlines()]


def _guide(case: dict[str, Any]) -> Any:
    kind, _, size = case.get("generate", "").rpartition(":")
    if not kind:
        return case["guide"]
    opener = {"nest:array": '{"type":"array","items":', "nest:object": '{"type":"object","properties":{"a":'}[kind]
    closer = "}" * opener.count("{")
    return opener * int(size) + "{}" + closer * int(size)


@pytest.mark.parametrize("engine", ["auto", "xgrammar"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_guide_is_enforced_or_refused(case: dict[str, Any], engine: str) -> None:  # spec R1, R2, R4
    if case["kind"] == "lark" and engine == "xgrammar":
        pytest.skip("lark is llguidance's own")
    try:
        plan = plan_guide(case["kind"], _guide(case), engine=engine)
    except MaskstreamError:
        assert case["must_refuse"] or case["may_refuse"]
        return
    assert not case["must_refuse"]
    if plan.engine == "xgrammar":
        possible = ByteMatcher(plan).produces
    else:
        matcher = matcher_of(plan)
        possible = lambda text: producible(matcher, text)  # noqa: E731
    assert [text for text in case["accept"] if not possible(text)] == []
    assert [text for text in case["reject"] if possible(text)] == []
