"""The benchmark of the sampler's features runs on any machine: a GPU's time is not spent on finding out that it does not."""

import json

import pytest

from benchmarks import sampler_cost

FEATURES = {"guide", "bias", "bans", "penalties", "decay", "finish", "logprobs", "top"}


def test_every_feature_is_measured_and_written(tmp_path):  # spec R11
    out = tmp_path / "cost.json"
    assert sampler_cost.main(["--device", "cpu", "--rows", "1", "4", "--vocab-size", "300", "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    assert [(line["feature"], line["rows"]) for line in written["rows"]] == [
        (feature, rows) for rows in (1, 4) for feature in (*sampler_cost.SINGLE, "beams of 4")
    ]
    assert all(line["median_us"] > 0 for line in written["rows"])
    assert set(written["reached"]) == {"1", "4"}


def test_all_is_all():
    assert sampler_cost.SINGLE["all"] == FEATURES


@pytest.mark.parametrize("feature", ["bias", "bans", "penalties", "guide"])
def test_a_feature_changes_what_the_launch_reads(feature):
    step = sampler_cost.make_step(2, 300, "cpu", 1)
    overlay = step._overlay(frozenset({feature}))
    assert (overlay is None) == (feature == "guide")
    if overlay is not None:
        assert [name for name in overlay.__slots__ if getattr(overlay, name) is not None] == [feature]
