"""Schemas of the shapes that people send (tests/corpus), with valid and invalid texts, token by token through the real service."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
FILES = sorted((Path(__file__).parents[1] / "corpus").glob("*.jsonl"))
# What no engine enforces; everything else is accepted, and every text of it is right.
REFUSED = {
    "record-tagged-map": "minProperties",  # names that are not declared may repeat, so they count once
    "record-palindrome-reference": "pattern",  # a back-reference is not regular
    "record-distinct-points": "uniqueItems",  # over arrays of any integers
    "record-external": "unevaluatedItems",
}


@pytest.mark.slow
def test_the_corpus_is_right(tmp_path: Path) -> None:  # spec R1, R2, R4
    file = tmp_path / "corpus.jsonl"
    file.write_text("".join(path.read_text() for path in FILES))
    command = [sys.executable, "-m", "shared.cli", "check", str(file), "--jobs", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.stdout, done.stderr
    *results, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result for result in results if result["verdict"] == "wrong"] == []
    refused = {result["id"]: result["error"]["keyword"] for result in results if result["verdict"] == "refused"}
    assert refused == REFUSED
    assert len(results) >= 70 and summary["texts"] > 250 and done.returncode == 0
