"""Greedy texts of the demo model under bans and penalties, token for token those of another implementation (transformers)."""

from __future__ import annotations

import pytest
import torch

from gpu_worker.models.base import RunnerShape
from gpu_worker.models.load import load_model
from gpu_worker.models.prepare import default_folder
from tests.oracle_prompts import TEXTS, prompts_of
from tests.sampling_bench import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 12
NUM_PROMPTS = 8
BAD_WORDS = ["the", "Paris", "apple banana", "time"]
CASES = [
    ({}, {}),
    ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
    ({"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 1}),
    ({"bad_words": BAD_WORDS}, {"bad_words_ids": BAD_WORDS}),
    ({"min_tokens": 8, "end_id": 28}, {"min_new_tokens": 8, "eos_token_id": 28}),  # 28 is a comma
]
TOGETHER = (
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "bad_words": BAD_WORDS, "min_tokens": 6},
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "bad_words_ids": BAD_WORDS, "min_new_tokens": 6},
)


@pytest.fixture(scope="module")
def loaded():
    shape = RunnerShape(max_slots=NUM_PROMPTS, max_length=64, prefill_chunk=8)
    return load_model(str(default_folder()), shape, device="cpu", threads=1, say=lambda text: None)


@pytest.fixture(scope="module")
def oracle():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(default_folder(), dtype=torch.float32, local_files_only=True).eval()


KNOWN: dict[str, list[list[int]]] = {}


def ours(loaded, params, count=NUM_PROMPTS):
    """Prompts, and the tokens of their texts; made once."""
    key = f"{count} {params}"
    if key not in KNOWN:
        KNOWN[key] = _texts(loaded, params, count)
    return prompts_of(loaded.chat.encode, count), KNOWN[key]


def _texts(loaded, params, count):
    prompts, found = prompts_of(loaded.chat.encode, count), list[list[int]]()
    for start in range(0, count, NUM_PROMPTS):
        with Bench(runner=loaded.runner, vocabulary=loaded.vocabulary, encoder=loaded.chat) as bench:
            batch = enumerate(prompts[start : start + NUM_PROMPTS])
            sequences = [bench.start(slot, prompt=prompt, max_tokens=STEPS, **params) for slot, prompt in batch]
            bench.run(STEPS)
            assert not bench.errors
            found += [list(sequence.tokens) for sequence in sequences]
    return found


def theirs(oracle, loaded, prompts, options):
    options = dict(options)
    if "bad_words_ids" in options:
        words = [loaded.chat.encode(space + word) for word in options["bad_words_ids"] for space in ("", " ")]
        options["bad_words_ids"] = words
    end = options.setdefault("eos_token_id", loaded.vocabulary.stop_ids[0])
    with torch.inference_mode():
        ids = torch.tensor(prompts)
        out = oracle.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1, max_new_tokens=STEPS,
            pad_token_id=end, **options,
        )  # fmt: skip
    rows = out[:, len(prompts[0]) :].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in rows]  # what follows the end pads the batch


def compare(loaded, oracle, params, options, count):
    """Texts of the first ``count`` prompts that differ, as (text, ours, theirs)."""
    prompts, found = ours(loaded, params, count)
    expected = theirs(oracle, loaded, prompts, options)
    return [triple for triple in zip(TEXTS, found, expected, strict=False) if triple[1] != triple[2]]


# spec 93 101 102 103
@pytest.mark.parametrize(("params", "options"), CASES, ids=["+".join(params) or "plain" for params, _ in CASES])
def test_the_same_tokens(loaded, oracle, params, options):
    assert compare(loaded, oracle, params, options, NUM_PROMPTS) == []


def test_the_same_tokens_of_fifty_prompts(loaded, oracle):  # spec 93 101 102 103
    assert len(TEXTS) == 50
    assert compare(loaded, oracle, *TOGETHER, len(TEXTS)) == []


# spec 111 112
def test_log_probabilities_of_the_prompt(loaded, oracle):
    with Bench(runner=loaded.runner, vocabulary=loaded.vocabulary, encoder=loaded.chat) as bench:
        prompt = loaded.chat.encode(" ".join(TEXTS[:NUM_PROMPTS]))[:60]  # more than one chunk
        assert len(prompt) > loaded.runner.prefill_chunk
        sequence = bench.start(prompt=prompt, max_tokens=2, prompt_logprobs=3)
        plain = bench.start(1, prompt=prompt, max_tokens=2)
        bench.run(2)
        assert sequence.tokens == plain.tokens
        with torch.inference_mode():
            expected = torch.log_softmax(oracle(torch.tensor([prompt])).logits[0].double(), -1)
        assert len(sequence.scores.entries) == len(prompt) - 1
        for at, entry in enumerate(sequence.scores.entries):
            row = expected[at]
            assert entry.token_id == prompt[at + 1]
            assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=2e-3)
            assert [value for _, value in entry.top] == pytest.approx(row.topk(3).values.tolist(), abs=2e-3)


def test_the_parameters_change_the_texts(loaded):
    """The comparison above would say nothing where every case gave the plain text."""
    for params, _ in CASES[1:]:
        plain = ours(loaded, {name: value for name, value in params.items() if name == "end_id"})[1]
        assert sum(tokens != other for tokens, other in zip(ours(loaded, params)[1], plain, strict=True)) >= 1, params
