"""A short soundness run on every change; `python -m tests.soundness` is the long one, with its figures in benchmarks/RESULTS.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.soundness import run_chunk
from tests.verdicts import keywords_of


@pytest.mark.slow
def test_some_hundred_schemas() -> None:  # spec R1, R2
    tally = run_chunk(7, 150, walks=5)
    print(f"\n{dict(tally.counts)}\n{tally.table()}")
    assert tally.wrong == []
    assert tally.counts["enforced"] > 90
    assert tally.counts["walks"] > 400
    assert tally.counts["valid values"] > 600 and tally.counts["invalid values"] > 100
    assert len(tally.keywords) > 30


@pytest.mark.soak
@pytest.mark.timeout(10_800)
@pytest.mark.parametrize("chunk", range(100, 132))
def test_three_thousand_schemas(chunk: int, tmp_path: Path) -> None:  # spec R1, R2
    tally = run_chunk(chunk, 100)
    (tmp_path / "tally.json").write_text(json.dumps(tally.counts))
    assert tally.wrong == []


def test_keywords_are_told_from_names() -> None:
    schema = {"properties": {"type": {"const": {"maximum": 1}}}, "dependencies": {"pattern": {"minimum": 1}}, "enum": [{"not": 1}]}
    assert keywords_of(schema) == {"properties", "const", "dependencies", "minimum", "enum"}
