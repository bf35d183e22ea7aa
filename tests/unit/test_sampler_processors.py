"""Logits processors: installed by entry point, named by a request, called for its rows alone; tiers."""

import sys

import numpy as np
import pytest
import torch

from gpu_worker.sampler.logits_processors import GROUP, load_processors
from gpu_worker.sampler.tiers import Tier, tier_of
from shared.errors import BadRequest, ConfigError, MaskstreamError
from shared.sampling_params import SamplingParams
from tests.sampling_bench import Bench, V, softmax, table

CALLS = []


def prefer_two(logits, contexts):
    """Adds 3 to token 2, where the last token is not 2; keeps a record of what it was called for."""
    CALLS.append([(list(context.prompt), list(context.output)) for context in contexts])
    for row, context in enumerate(contexts):
        if [*context.prompt, *context.output][-1] != 2:
            logits[row, 2] += 3.0
    return logits


def halve(logits, contexts):
    return logits / 2


def fail(logits, contexts):
    raise ZeroDivisionError("broken")


def narrow(logits, contexts):
    return logits[:, :3]


PROCESSORS = {"prefer_two": prefer_two, "halve": halve, "fail": fail, "narrow": narrow}
WANTED = {"temperature": 1.0, "logprobs": V, "logprobs_mode": "processed"}


def found(sequence, at=-1):
    probabilities = np.zeros(V)
    for token, logprob in sequence.logprobs[at].top:
        probabilities[token] = np.exp(logprob)
    return probabilities


@pytest.mark.parametrize("allowed", [None, {1, 2, 5, 9}])
@pytest.mark.parametrize("names", [["prefer_two", "halve"], ["halve", "prefer_two"]])
def test_the_distribution_is_the_processed_one(names, allowed):  # spec 100 R11
    guide = (lambda tokens: allowed) if allowed else None
    with Bench(processors=PROCESSORS) as bench:
        sequence = bench.start(guide=guide, prompt=[4], logits_processors=names, logit_bias={"5": 1.0}, **WANTED)
        bench.step()
        row = table()[4].astype(np.float64)
        expected = row / 2 + (1.5 if names[0] == "prefer_two" else 3.0) * np.eye(V)[2] + np.eye(V)[5]
        np.testing.assert_allclose(found(sequence), softmax(expected, allowed), rtol=2e-6, atol=1e-9)


def test_one_call_a_step_for_its_own_rows_alone():  # spec R11 78: one request never demotes another
    CALLS.clear()
    params = {"temperature": 1.0, "max_tokens": 9, "ignore_eos": True}
    with Bench() as bench:
        alone = bench.start(1, prompt=[4], seed=5, **params)
        bench.run(9)
    with Bench(processors=PROCESSORS) as bench:
        bench.start(0, prompt=[3, 4], seed=1, logits_processors=["prefer_two"], **params)
        other = bench.start(1, prompt=[4], seed=5, **params)
        bench.start(2, prompt=[6], seed=2, logits_processors=["prefer_two"], **params)
        bench.step()
        bench.step(held=[2])
        bench.run(9)
        assert other.tokens == alone.tokens
        assert [len(call) for call in CALLS[:3]] == [2, 1, 2]
        assert [call[0][0] for call in CALLS] == [[3, 4]] * 9 + [[6]]
        assert CALLS[2][0] == ([3, 4], bench.by_slot[0].tokens[:2])


def test_raw_log_probabilities_are_the_models():  # spec 111
    with Bench(processors=PROCESSORS) as bench:
        sequence = bench.start(prompt=[4], temperature=1.0, logprobs=V, logits_processors=["prefer_two"])
        plain = bench.start(1, prompt=[4], temperature=1.0, logprobs=V)
        bench.step()
        np.testing.assert_allclose(found(sequence), softmax(table()[4]), rtol=2e-6)
        assert sequence.logprobs[0].top == plain.logprobs[0].top
        entry = sequence.logprobs[0]
        assert dict(entry.top)[entry.token_id] == entry.logprob
        assert entry.top[entry.rank - 1][0] == entry.token_id


@pytest.mark.parametrize("name", ["fail", "narrow"])
def test_a_processor_that_fails_harms_its_own_request(name):
    with Bench(processors=PROCESSORS) as bench:
        bench.start(0, temperature=1.0, logits_processors=["halve", name])
        fine = bench.start(1, temperature=1.0, logits_processors=["halve"])
        plain = bench.start(2, temperature=1.0)
        _, result = bench.launch()
        assert set(result.slot_errors) == {0}
        assert isinstance(result.slot_errors[0], MaskstreamError)
        assert name in result.slot_errors[0].message
        assert result.slot_errors[0].field == "logits_processors"
        assert result.token[0] == -1
        assert min(result.token[[fine.slot, plain.slot]]) >= 0


def test_unknown_names_are_refused():  # spec 76
    with Bench(processors=PROCESSORS) as bench:
        with pytest.raises(BadRequest, match="fail, halve, narrow, prefer_two") as caught:
            bench.start(logits_processors=["halve", "os.system"])
        assert caught.value.field == "logits_processors[1]"


def install(folder, monkeypatch, target):
    info = folder / "installed-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nours = {target}\n")
    (folder / "installed_processor.py").write_text("def double(logits, contexts):\n    return logits * 2\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "installed_processor", raising=False)


def test_entry_points(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "installed_processor:double")
    processors = load_processors()
    assert processors["ours"](torch.ones(1, 2), []).tolist() == [[2.0, 2.0]]


def test_an_entry_point_that_is_broken_stops_the_start(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "installed_processor:nothing")
    with pytest.raises(ConfigError, match="'ours'"):
        load_processors()


FAST = {
    "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 1, "top_p_decay": 0.5, "repetition_penalty": 2.0,
    "presence_penalty": 1.0, "frequency_penalty": 1.0, "bad_words": ["x"], "no_repeat_ngram_size": 2, "logit_bias": {"1": 1.0},
    "allowed_token_ids": [1], "min_tokens": 3, "stop": ["x"], "stop_token_ids": [1], "stop_token_sequences": [[1, 2]],
    "logprobs": 3, "logprobs_mode": "processed", "n": 2, "best_of": 3,
}  # fmt: skip
FULL = {"use_beam_search": True, "logits_processors": ["x"]}


@pytest.mark.parametrize(("name", "value"), [*FAST.items(), *FULL.items()])
def test_tiers(name, value):  # spec 77 R11
    assert tier_of(SamplingParams(**{name: value})) is (Tier.FULL if name in FULL else Tier.FAST)
    assert tier_of(SamplingParams(**FAST)) is Tier.FAST
