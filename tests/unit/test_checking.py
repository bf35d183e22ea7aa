"""Parts of the check without a service: cases, trials, reports, encoders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.checking.cases import Case, generated, read_cases
from gpu_worker.checking.encoders import byte_encoder, load_encoder
from gpu_worker.checking.report import judged, refused, summarise
from gpu_worker.checking.trial import Trial, Verdict
from gpu_worker.grammar_link import Outcome, WalkStatus
from shared.bitmask import num_words, pack
from shared.errors import CompileTimeout, ConfigError, StepTimeout, UnsupportedSchema

V, STOP = 40, 39


def language(prefix: list[int]) -> list[int]:
    """Ascending tokens; the stop token after at least two."""
    last = prefix[-1] if prefix else -1
    return [*range(last + 1, STOP), *([STOP] if len(prefix) >= 2 else [])]


def run(ids: list[int], piece: int) -> tuple[Verdict, int]:
    trial = Trial(ids, frozenset([STOP]), V, piece)
    history: list[int] = []
    walks = 0
    while True:
        walk = trial.next_walk(1, 0)
        walks += 1
        history += walk.committed
        rows, prefix = [], list(history)
        if not walk.path:
            rows.append(pack(language(prefix), V))
        for token in walk.path:
            if token not in language(prefix):
                break
            prefix.append(token)
            rows.append(pack(language(prefix), V))
        words = np.array(rows) if rows else np.zeros((0, num_words(V)), np.int32)
        verdict = trial.take(Outcome(WalkStatus.OK, len(prefix) - len(history), len(rows)), words)
        if verdict is not None:
            return verdict, walks


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 32])
@pytest.mark.parametrize(
    ("ids", "producible", "at"),
    [([], False, 0), ([3], False, 1), ([3, 4], True, 2), (list(range(30)), True, 30), ([3, 4, 4], False, 2), ([5, 2], False, 1),
     ([*range(9), 0], False, 9)],
)  # fmt: skip
def test_verdict_goes_by_the_mask(ids: list[int], producible: bool, at: int, piece: int) -> None:
    verdict, _ = run(ids, piece)
    assert (verdict.producible, verdict.at) == (producible, at)


def test_a_piece_costs_one_walk() -> None:
    assert run(list(range(32)), 16)[1] == 3


def test_restart_goes_on_where_it_was() -> None:
    trial = Trial(list(range(10)), frozenset([STOP]), V, 4)
    trial.next_walk(1, 0)
    trial.take(Outcome(WalkStatus.OK, 0, 1), pack(range(V), V)[None])
    trial.next_walk(1, 0)
    trial.take(Outcome(WalkStatus.OK, 4, 4), np.repeat(pack(range(V), V)[None], 4, 0))
    walk = trial.next_walk(1, 0)
    assert list(walk.committed) == [0, 1, 2, 3] and list(walk.path) == [4, 5, 6, 7]
    assert trial.restart(1) == [0, 1, 2, 3] and trial.allowed == 5
    walk = trial.next_walk(2, 0)
    assert (list(walk.committed), list(walk.path)) == ([], [4])


def test_failed_walk_says_nothing_about_the_text() -> None:
    verdict = Trial([1], frozenset([STOP]), V).take(
        Outcome(WalkStatus.FAILED, error=StepTimeout("slow")), np.zeros((1, 2), np.int32)
    )
    assert verdict is not None and isinstance(verdict.error, StepTimeout)
    result = judged(Case(id="x", kind="regex"), [("t", False, verdict)], engine="e", compile_ms=1, warnings=[], num_tokens=0)
    assert result.verdict == "wrong" and "step_timeout" in result.wrong[0].why


@pytest.mark.parametrize(
    ("flags", "error", "verdict"),
    [({}, UnsupportedSchema("no"), "wrong"), ({"may_refuse": True}, UnsupportedSchema("no"), "refused"),
     ({"must_refuse": True}, UnsupportedSchema("no"), "refused"), ({"must_refuse": True}, CompileTimeout("late"), "wrong")],
)  # fmt: skip
def test_a_refusal_is_right_where_it_may_be_and_has_a_name(flags: dict, error: Exception, verdict: str) -> None:
    assert refused(Case(id="x", kind="regex", **flags), error).verdict == verdict


def test_summary_counts() -> None:
    results = [refused(Case(id="x", kind="regex", may_refuse=flag), UnsupportedSchema("no")) for flag in (True, False)]
    summary = summarise(results, 2.0, "bytes")
    assert (summary.cases, summary.refused, summary.wrong) == (2, 1, 1)


def test_schema_text_is_kept_as_written(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(
        '{"id":"a","kind":"json_schema","guide":{"maximum":12345678901234567890.5}}\n\n{"id":"b","kind":"choice","guide":["x"]}'
    )
    first, second = read_cases(file)
    assert "12345678901234567890.5" in first.make_guide().text
    assert second.make_guide().text == '["x"]'


@pytest.mark.parametrize(("spec", "check"), [
    ("nest:array:3", lambda s: s["items"]["items"]["items"] == {"type": "integer"}),
    ("nest:object:2", lambda s: s["properties"]["a"]["properties"]["a"] == {"type": "integer"}),
    ("const:5", lambda s: s == {"const": "aaaaa"}),
    ("optional:2", lambda s: list(s["properties"]) == ["p0", "p1"] and "required" not in s),
    ("enum:3", lambda s: s == {"enum": ["k0", "k1", "k2"]}),
])  # fmt: skip
def test_generated_guides(spec: str, check) -> None:
    assert check(json.loads(generated(spec)))


def test_encoders() -> None:
    encoder = byte_encoder()
    assert encoder.encode("aé") == [97, 195, 169] and encoder.vocabulary.stop_ids == [256]
    assert load_encoder("bytes").name == "bytes"
    with pytest.raises(ConfigError):
        load_encoder("/nowhere/tokenizer.json")
