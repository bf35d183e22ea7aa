"""SlotSampler: logits of a foreign engine, slots and parameters in, tokens out; the same as the reference, row by row."""

import numpy as np
import pytest
import torch

from gpu_worker.sampler import Sampled, SlotSampler
from gpu_worker.sampler.seeds import GLOBAL_SEED
from kernels.reference import SampleRows, SampleStatus, sample
from shared.bitmask import pack
from shared.errors import BadRequest
from shared.sampling_params import SamplingParams

VOCAB = 101


def logits(rows, seed=0):
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def test_a_step_is_the_reference_at_the_texts_position():
    sampler = SlotSampler(4, VOCAB)
    sampler.admit(2, SamplingParams(temperature=0.9, top_k=12, seed=5))
    sampler.admit(0, SamplingParams(temperature=1.3, top_p=0.8, seed=6))
    for position in range(20):
        given = logits(2, position)
        sampled = sampler.sample(given, [2, 0])
        rows = [SampleRows.uniform(1, temperature=0.9, top_k=12, seed=5, offset=position),
                SampleRows.uniform(1, temperature=1.3, top_p=0.8, seed=6, offset=position)]  # fmt: skip
        assert sampled.token_ids == [int(sample(given[i : i + 1], rows[i], vocab_size=VOCAB).token) for i in range(2)]


# spec 26
def test_a_guided_slot_uses_its_row_and_holds_without_one():
    sampler = SlotSampler(2, VOCAB)
    for slot in range(2):
        sampler.admit(slot, SamplingParams(temperature=1.0, seed=3), guided=True)
    row = pack([7, 100], VOCAB)
    first = sampler.sample(logits(2), [0, 1], {0: row})
    assert first.token_ids[0] in (7, 100) and first.token_ids[1] == -1
    assert first.statuses == [SampleStatus.OK, SampleStatus.HELD]
    same = sampler.sample(logits(2)[:1], [1], {1: row})  # the held step again: the position has not moved
    other = SlotSampler(1, VOCAB)
    other.admit(0, SamplingParams(temperature=1.0, seed=3))
    assert same.token_ids == other.sample(logits(2)[:1], [0], {0: row}).token_ids
    assert sampler.sample(logits(1), [0], {0: pack([], VOCAB)}) == Sampled([-1], [SampleStatus.DEAD])


# spec 93-101 103 106
def test_everything_that_works_on_a_row():
    """Bias, penalties, bans, allow-list, n-grams, minimal length and decay, against what they mean."""
    flat = torch.zeros(1, VOCAB)
    cases = {
        "logit_bias": (SamplingParams(temperature=0.0, logit_bias={"9": 1.0}), [9, 9]),
        "presence": (SamplingParams(temperature=0.0, logit_bias={"9": 1.0, "4": 0.5}, presence_penalty=0.8), [9, 4]),
        "bad": (SamplingParams(temperature=0.0, bad_words=["x"]), [1, 1]),
        "allowed": (SamplingParams(temperature=0.0, allowed_token_ids=[50, 60]), [50, 50]),
        "ngrams": (SamplingParams(temperature=0.0, no_repeat_ngram_size=1), [0, 1]),
        "min": (SamplingParams(temperature=0.0, min_tokens=1), [1, 0]),
    }
    for name, (params, expected) in cases.items():
        sampler = SlotSampler(1, VOCAB, encode=lambda text: [0] if text == "x" else [0, 3])
        sampler.admit(0, params, end_ids=[0] if name == "min" else [])
        assert [sampler.sample(flat, [0]).token_ids[0] for _ in range(2)] == expected, name


def test_top_p_decays_from_token_to_token():
    sampler = SlotSampler(1, VOCAB)
    sampler.admit(0, SamplingParams(temperature=1.0, top_p=1.0, top_p_decay=0.01, top_p_min=0.001, seed=1))
    given = logits(1)
    drawn = [sampler.sample(given, [0]).token_ids[0] for _ in range(6)]
    assert drawn[2:] == [int(given.argmax())] * 4


def test_logits_come_as_tensors_or_dlpack_and_are_not_written():
    given = logits(1)
    kept = given.clone()
    taken = []
    for offered in (given, given.numpy(), given.to(torch.bfloat16)):
        sampler = SlotSampler(1, VOCAB)
        sampler.admit(0, SamplingParams(temperature=0.0))
        taken += sampler.sample(offered, [0]).token_ids
    assert taken == [int(given.argmax())] * 3
    assert torch.equal(given, kept)


def test_a_slot_that_was_given_away_gets_no_token_of_the_old_text():
    sampler = SlotSampler(1, VOCAB)
    sampler.admit(0, SamplingParams(temperature=1.0, seed=1))
    sampler.launch(logits(1), [0])
    sampler.release(0)
    sampler.admit(0, SamplingParams(temperature=1.0, seed=2))
    sampler.take()
    fresh = SlotSampler(1, VOCAB)
    fresh.admit(0, SamplingParams(temperature=1.0, seed=2))
    assert sampler.sample(logits(1, 4), [0]) == fresh.sample(logits(1, 4), [0])


def test_what_does_not_fit_is_named():
    sampler = SlotSampler(2, VOCAB)
    for field, value in {"n": 2, "stop": ["a"], "logprobs": 1, "use_beam_search": True, "bad_words": ["a"]}.items():
        with pytest.raises(BadRequest) as caught:
            sampler.admit(0, SamplingParams(**{"temperature": None if field == "use_beam_search" else 1.0, field: value}))
        assert caught.value.field.startswith(field)
    sampler.admit(0, SamplingParams(seed=GLOBAL_SEED, temperature=1.0))
    for given, slots, rows in [
        (logits(2), [0], {}), (logits(2), [0, 0], {}), (logits(1), [1], {}), (logits(1)[0], [0], {}),
        (logits(1), [0], {0: np.zeros(2, np.int32)}), (logits(1), [0], {0: np.zeros(4, np.int64)}),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=r"logits|slot|mask row"):
            sampler.sample(given, slots, rows)
    with pytest.raises(ValueError, match="slot 2"):
        sampler.admit(2, SamplingParams())
