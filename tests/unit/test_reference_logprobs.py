"""Log-probabilities, ranks and p(token) from a descriptor."""

import numpy as np
import pytest
import torch

from kernels.reference import Overlay, SampleInputs, SampleRows, TokenList, probability, sample
from tests.reference_oracle import total_order

INF, NAN = float("inf"), float("nan")
PARAMS = [
    {},
    {"temperature": 0.5},
    {"temperature": 0.0},
    {"top_k": 7},
    {"top_p": 0.8, "temperature": 2.0},
    {"min_p": 0.05},
    {"top_k": 30, "top_p": 0.9, "min_p": 0.01, "temperature": 0.7},
]


def batch(rows=6, vocab_size=200, seed=0, dtype=torch.bfloat16):
    logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)).mul(2).to(dtype)
    words = torch.randint(-(1 << 31), 1 << 31, (rows, 7), generator=torch.Generator().manual_seed(seed + 1))
    return logits, words.to(torch.int32)


@pytest.mark.parametrize("params", PARAMS)
def test_raw_is_the_log_softmax_of_untouched_logits(params):  # spec 111
    logits, words = batch()
    result = sample(logits, SampleRows.uniform(6, seed=5, **params), vocab_size=190, bitmask=words, logprobs="raw", num_logprobs=5)
    wanted = torch.log_softmax(logits[:, :190].double(), dim=1)
    for r in range(6):
        token = int(result.token[r])
        assert float(result.logprob[r]) == pytest.approx(float(wanted[r, token]), abs=1e-5)
        assert int(result.rank[r]) == 1 + int((logits[r, :190] > logits[r, token]).sum())  # spec 112
        order = total_order(logits[r, :190].float().numpy())[:5]
        assert result.top_ids[r].tolist() == order
        assert np.allclose(result.top_logprobs[r].numpy(), wanted[r, order].numpy(), atol=1e-5)


@pytest.mark.parametrize("params", PARAMS)
def test_processed_is_of_the_kept_distribution(params):  # spec 111
    logits, words = batch()
    rows = SampleRows.uniform(6, seed=5, **params)
    result = sample(logits, rows, vocab_size=190, bitmask=words, logprobs="processed", num_logprobs=300, return_probs=True)
    if params.get("temperature") == 0.0:  # a greedy row: softmax at T = 1 over what is allowed
        result.probs = sample(logits, SampleRows.uniform(6), vocab_size=190, bitmask=words, return_probs=True).probs
    for r in range(6):
        probs, x = result.probs[r].double(), logits[r].float()
        kept = torch.nonzero(probs).flatten().tolist()
        order = sorted(kept, key=lambda i: (-float(x[i]), i))
        assert result.top_ids[r, : len(kept)].tolist() == order and (result.top_ids[r, len(kept) :] == -1).all()
        wanted = torch.full((200,), -INF, dtype=torch.double)
        wanted[kept] = torch.log_softmax(x[kept].double() / (params.get("temperature") or 1.0), dim=0)
        assert np.allclose(result.top_logprobs[r, : len(kept)].numpy(), wanted[order].numpy(), atol=2e-5)
        assert (result.top_logprobs[r, len(kept) :] == -INF).all()
        token = int(result.token[r])
        assert float(result.logprob[r]) == pytest.approx(float(wanted[token]), abs=2e-5)
        assert int(result.rank[r]) == 1 + sum(float(x[i]) > float(x[token]) for i in kept)


def test_rank_counts_strictly_more_likely_and_ids_break_ties():  # spec 112
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    words = torch.tensor([[0b01000]], dtype=torch.int32)
    result = sample(logits, SampleRows.uniform(1), vocab_size=5, bitmask=words, logprobs="raw", num_logprobs=2)
    assert result.token.tolist() == [3] and result.rank.tolist() == [1] and result.top_ids.tolist() == [[1, 2]]


def test_zero_top_entries_still_give_the_sampled_one():  # spec 112
    result = sample(torch.zeros(1, 4), SampleRows.uniform(1), vocab_size=4, logprobs="raw")
    assert result.top_ids.shape == (1, 0) and float(result.logprob[0]) == pytest.approx(-np.log(4))
    bare = sample(torch.zeros(1, 4), SampleRows.uniform(1), vocab_size=4)
    assert bare.logprob is None and bare.rank is None and bare.descriptor is None and bare.probs is None


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_infinity_and_nan_stay_apart(mode):
    result = sample(torch.tensor([[0.0, INF, NAN, INF]]), SampleRows.uniform(1), vocab_size=4, logprobs=mode, num_logprobs=4)
    assert result.logprob.tolist() == [0.0] and result.rank.tolist() == [1]
    assert not result.top_logprobs.isnan().any() and result.top_logprobs[0, 1] == -INF


@pytest.mark.parametrize("params", PARAMS)
def test_descriptor_gives_the_probability_of_every_token(params):
    logits, words = batch(seed=3)
    overlay = Overlay(bias=TokenList.of([[3, 50]] * 6, [[4.0, -2.0]] * 6), bans=TokenList.of([[9]] * 6))
    inputs = SampleInputs(logits, SampleRows.uniform(6, **params), 190, words, overlay=overlay)
    result = sample(logits, inputs.rows, vocab_size=190, bitmask=words, overlay=overlay, return_descriptor=True, return_probs=True)
    every = torch.arange(-1, 200, dtype=torch.int32).repeat(6, 1)
    got = probability(result.descriptor, inputs, every)
    assert not got[:, 0].any()
    assert torch.equal(got[:, 1:], result.probs)


def test_descriptor_of_dead_infinite_and_pruned_rows():
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, INF, 1.0], [-INF, -INF, -INF]])
    d2t = torch.tensor([0, 1, 5], dtype=torch.int32)
    inputs = SampleInputs(logits, SampleRows.uniform(3, top_k=2), 8, d2t=d2t)
    result = sample(logits, inputs.rows, vocab_size=8, d2t=d2t, return_descriptor=True)
    got = probability(result.descriptor, inputs, torch.tensor([[0, 2, 7, 1]] * 3, dtype=torch.int32))
    assert got[1].tolist() == [0, 1, 0, 0] and not got[2].any()
    assert got[0, 0] == 0 and got[0].sum() == pytest.approx(1) and got[0, 2] == pytest.approx(np.e / (1 + np.e))
