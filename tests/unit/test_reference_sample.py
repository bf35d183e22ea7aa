"""The sampler's edges: greedy, ties, degenerate rows, dtypes, states, pruned vocabularies."""

import numpy as np
import pytest
import torch

from kernels.plain.keep import Kept, draw
from kernels.reference import RowStatus, SampleRows, SampleStatus, apply_bitmask, random_bits, sample
from tests.reference_oracle import pack

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
INF, NAN = float("inf"), float("nan")
SAMPLED = {"temperature": 1.0}
GREEDY = {"temperature": 0.0}
ALL_FILTERS = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01}


def one(values, *, vocab_size=None, params=SAMPLED, **options):
    logits = torch.tensor([values], dtype=torch.float32)
    rows = SampleRows.uniform(1, **params)
    return sample(logits, rows, vocab_size=vocab_size or len(values), **options)


def kept_columns(result, row=0):
    return torch.nonzero(result.probs[row]).flatten().tolist()


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"top_k": 1},
        {"top_p": 0.0},
        {"top_p": -0.5},
        {"temperature": 0.0, "top_k": 5, "top_p": 0.5},
    ],
)
def test_every_greedy_spelling_is_the_lowest_argmax(params):  # spec 66, 84, R16
    result = one([1, 3, 2, 3, -1], params=params, return_probs=True)
    assert result.token.tolist() == [1] and kept_columns(result) == [1]


def test_greedy_uses_no_random_number():
    logits = torch.randn(1, 50)
    tokens = {
        int(sample(logits, SampleRows.uniform(1, temperature=0, seed=s, offset=s), vocab_size=50).token[0]) for s in range(20)
    }
    assert tokens == {int(logits.argmax())}


@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 0},
        {"top_k": -3},
        {"top_k": 100},
        {"top_k": 2**31 - 1},
        {"top_p": 1.0},
        {"top_p": 7.0},
        {"min_p": 0.0},
        {"min_p": -1.0},
    ],
)
def test_neutral_sentinels_change_nothing(params):  # spec 82
    logits = torch.randn(16, 100)
    rows = [SampleRows.uniform(16, seed=3, **p) for p in ({}, params)]
    plain, neutral = (sample(logits, r, vocab_size=100, return_probs=True) for r in rows)
    assert torch.equal(plain.token, neutral.token) and torch.equal(plain.probs, neutral.probs)


def test_negative_zero_equals_zero():
    assert one([-0.0, 0.0, -1], params=GREEDY).token.tolist() == [0]
    assert one([0.0, -0.0, -1], params=GREEDY).token.tolist() == [0]
    assert kept_columns(one([-0.0, 0.0, -1], params={"top_k": 2}, return_probs=True)) == [0, 1]


def test_exactly_k_ties_to_the_lowest_id():  # spec 69, R16
    result = one([2, 5, 5, 5, 1, 5], params={"top_k": 3}, return_probs=True)
    assert kept_columns(result) == [1, 2, 3]
    assert kept_columns(one([2, 5, 5, 5, 1, 5], params={"top_k": 3}, keep_ties=True, return_probs=True)) == [1, 2, 3, 5]


def test_k_one_below_the_vocabulary_drops_the_last_of_equals():
    assert kept_columns(one([1.0] * 33, params={"top_k": 32}, return_probs=True)) == list(range(32))


def test_top_p_keeps_the_shortest_prefix():  # spec 71, R16
    quarter = [0.0] * 4
    for p, kept in ((0.25, 1), (0.250001, 2), (0.5, 2), (0.75, 3), (1 - 2.0**-24, 4), (1e-45, 1)):
        assert len(kept_columns(one(quarter, params={"top_p": p}, return_probs=True))) == kept
    tied = one(quarter, params={"top_p": 0.3}, keep_ties=True, return_probs=True)
    assert kept_columns(tied) == [0, 1, 2, 3]


def test_min_p_keeps_ties_at_the_border():  # spec 70
    x = [0.0, float(np.float32(np.log(0.5))), float(np.float32(np.log(0.5))), -0.8]
    assert kept_columns(one(x, params={"min_p": 0.5}, return_probs=True)) == [0, 1, 2]
    assert kept_columns(one([1, 3, 3, 2], params={"min_p": 1.0}, return_probs=True)) == [1, 2]
    assert kept_columns(one([1, 3, 3, 2], params={"min_p": 4.0}, return_probs=True)) == [1, 2]


def test_top_p_is_taken_of_what_min_p_and_top_k_left():  # spec 69
    x = [float(v) for v in np.log([0.4, 0.3, 0.2, 0.1])]
    assert kept_columns(one(x, params={"top_k": 2, "top_p": 0.55}, return_probs=True)) == [0]
    assert kept_columns(one(x, params={"top_k": 2, "top_p": 0.6}, return_probs=True)) == [0, 1]
    assert kept_columns(one(x, params={"min_p": 0.7, "top_p": 0.55}, return_probs=True)) == [0]


@pytest.mark.parametrize("params", [SAMPLED, GREEDY, ALL_FILTERS])
def test_nan_counts_as_banned(params):  # spec 87, R17
    values = [NAN, 1.0, NAN, 3.0]
    result = one(values, params=params, return_probs=True)
    clean = one([-INF, 1.0, -INF, 3.0], params=params, return_probs=True)
    assert result.status.tolist() == [SampleStatus.NAN] and clean.status.tolist() == [SampleStatus.OK]
    assert torch.equal(result.token, clean.token) and torch.equal(result.probs, clean.probs)


@pytest.mark.parametrize("params", [SAMPLED, GREEDY, ALL_FILTERS])
def test_infinity_takes_its_lowest_id(params):  # spec R17
    assert one([0, INF, 5, INF], params=params).token.tolist() == [1]
    both = one([NAN, INF, 5, INF], params=params)
    assert both.token.tolist() == [1] and both.status.tolist() == [SampleStatus.NAN | SampleStatus.POS_INF]


@pytest.mark.parametrize("params", [SAMPLED, GREEDY, ALL_FILTERS])
@pytest.mark.parametrize("values", [[NAN, NAN], [-INF, -INF], [NAN, -INF]])
def test_a_row_without_a_token_is_dead(values, params):  # spec R17
    result = one(values, params=params, return_probs=True)
    assert result.token.tolist() == [-1] and int(result.status[0]) & SampleStatus.DEAD
    assert not result.probs.any()


def test_a_dead_row_harms_no_other():  # spec R17
    logits, rows = torch.randn(4, 64), SampleRows.uniform(4, seed=9)
    alone = sample(logits, rows, vocab_size=64).token.tolist()
    words = torch.full((4, 2), -1, dtype=torch.int32)
    words[1] = 0
    logits[2] = NAN
    result = sample(logits, rows, vocab_size=64, bitmask=words)
    assert result.token.tolist() == [alone[0], -1, -1, alone[3]]
    assert result.status.tolist() == [0, SampleStatus.DEAD, SampleStatus.DEAD | SampleStatus.NAN, 0]


@pytest.mark.parametrize("state", [RowStatus.HOLD, 3, -1])
def test_a_held_row_touches_nothing(state):
    logits = torch.full((2, 40), NAN)
    logits[1] = torch.arange(40.0)
    status = torch.tensor([state, 0], dtype=torch.int32)
    result = sample(
        logits,
        SampleRows.uniform(2, temperature=0),
        vocab_size=40,
        row_status=status,
        logprobs="raw",
        num_logprobs=2,
        return_descriptor=True,
        return_probs=True,
    )
    assert result.token.tolist() == [-1, 39] and result.status.tolist() == [SampleStatus.HELD, 0]
    assert result.rank.tolist() == [0, 1] and result.top_ids[0].tolist() == [-1, -1]
    assert int(result.descriptor.mass[0]) == 0 and not result.probs[0].any()


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100, 8193, 32000])
@pytest.mark.parametrize("params", [SAMPLED, GREEDY, ALL_FILTERS])
def test_one_allowed_token_at_each_word_edge(vocab_size, params):
    edges = sorted({t for t in (0, 31, 32, 63, 64, vocab_size // 2, vocab_size - 2, vocab_size - 1) if 0 <= t < vocab_size})
    words = torch.stack([pack([t], -(-vocab_size // 32)) for t in edges])
    logits = torch.randn(len(edges), vocab_size)
    result = sample(logits, SampleRows.uniform(len(edges), **params), vocab_size=vocab_size, bitmask=words)
    assert result.token.tolist() == edges


@pytest.mark.parametrize("params", [SAMPLED, GREEDY, ALL_FILTERS])
def test_bits_and_logits_beyond_the_vocabulary_are_ignored(params):  # spec 26
    logits = torch.full((1, 50), 100.0)
    logits[0, :33] = torch.randn(33)
    result = sample(logits, SampleRows.uniform(1, **params), vocab_size=33, bitmask=pack([5, *range(33, 64)], 2)[None])
    assert result.token.tolist() == [5]
    result = sample(logits, SampleRows.uniform(1, **params), vocab_size=33, bitmask=pack(list(range(33, 64)), 2)[None])
    assert result.status.tolist() == [SampleStatus.DEAD]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("params", [SAMPLED, GREEDY, ALL_FILTERS])
def test_banned_logits_are_never_looked_at_and_none_is_written(dtype, params):
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(8, 8193, generator=generator).to(dtype)
    words = torch.randint(-(1 << 31), 1 << 31, (8, 257), generator=generator).to(torch.int32)
    words[4:, 3:] = 0
    masked, poisoned = logits.clone(), logits.clone()
    apply_bitmask(masked, words, None, None, 8193)
    poisoned[masked == -INF] = NAN
    before = poisoned.view(torch.uint8).clone()
    rows = SampleRows.uniform(8, seed=4, **params)
    want = sample(masked, rows, vocab_size=8193, return_probs=True)
    got = sample(poisoned, rows, vocab_size=8193, bitmask=words, return_probs=True)
    assert torch.equal(got.token, want.token) and torch.equal(got.probs, want.probs)
    assert got.status.tolist() == [0] * 8
    assert torch.equal(poisoned.view(torch.uint8), before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_is_its_fp32_value(dtype):
    logits = torch.randn(6, 1000).to(dtype)
    rows = SampleRows.uniform(6, seed=1, **ALL_FILTERS)
    assert torch.equal(sample(logits, rows, vocab_size=1000).token, sample(logits.float(), rows, vocab_size=1000).token)


@pytest.mark.parametrize("params", [SAMPLED, GREEDY, ALL_FILTERS])
def test_pruned_vocabulary_with_every_mode(params):  # spec 63, R15
    targets = torch.tensor(np.sort(np.random.default_rng(8).choice(500, 90, replace=False)), dtype=torch.int32)
    d2t = targets - torch.arange(90, dtype=torch.int32)
    words = pack([int(t) for t in targets[::2]] + [1, 2, 3], 16)
    pruned, full = torch.randn(5, 90), torch.full((5, 500), -INF)
    full[:, targets.long()] = pruned
    rows = SampleRows.uniform(5, seed=2, **params)
    options = {"vocab_size": 500, "bitmask": words.repeat(5, 1), "logprobs": "processed", "num_logprobs": 3}
    small, large = sample(pruned, rows, d2t=d2t, **options), sample(full, rows, **options)
    assert torch.equal(small.token, large.token) and torch.equal(small.top_ids, large.top_ids)
    assert torch.equal(small.logprob, large.logprob)


def test_all_equal_logits_draw_each_id():
    rows = SampleRows.uniform(400)
    rows.offset = torch.arange(400)
    result = sample(torch.zeros(400, 8), rows, vocab_size=8)
    assert set(result.token.tolist()) == set(range(8))


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-45])
def test_tiny_temperatures_stay_finite(temperature):
    result = one([3e38, 500.0, 500.001, -3e38], params={"temperature": temperature}, return_probs=True)
    assert result.token.tolist() == [0] and result.probs.sum() == 1


def test_huge_temperature_is_uniform():
    probs = one([1.0, -5.0, 7.0, 2.0], params={"temperature": 1e30}, return_probs=True).probs
    assert probs.tolist() == [[0.25] * 4]


def test_wrong_parameters_are_refused_by_name():  # spec 83
    with pytest.raises(ValueError, match="top_k"):
        SampleRows(
            *(
                getattr(SampleRows.uniform(2), n) if n != "top_k" else torch.zeros(2, dtype=torch.int64)
                for n in ("temperature", "top_k", "top_p", "min_p", "seed", "offset")
            )
        )
    with pytest.raises(ValueError, match="3 rows of parameters for 2"):
        sample(torch.zeros(2, 5), SampleRows.uniform(3), vocab_size=5)
    with pytest.raises(ValueError, match="no bitmask"):
        sample(torch.zeros(1, 5), SampleRows.uniform(1), vocab_size=5, row_status=torch.ones(1, dtype=torch.int32))


def test_the_draw_takes_the_first_running_mass_above_the_target():
    kept = Kept(np.array([2, 5, 7, 9]), np.array([0, 1, 0, 3], dtype=np.uint64), 4, 0.0, 9, 0.0, 1.0)
    shares = [(0, 5), ((1 << 62) - 1, 5), (1 << 62, 9), ((1 << 64) - 1, 9)]
    assert [draw(kept, bits) for bits, _ in shares] == [column for _, column in shares]


@pytest.mark.parametrize("purpose", [0, 1, 4])
def test_the_bits_are_those_of_seed_offset_and_purpose(purpose):  # spec 88, R18
    seed, offset = (1 << 64) - 77, (1 << 40) + 5
    bits = int(random_bits(np.uint64(seed), np.uint64(offset), np.uint64(purpose)))
    result = sample(torch.zeros(1, 4096), SampleRows.uniform(1, seed=seed, offset=offset, purpose=purpose), vocab_size=4096)
    assert result.token.tolist() == [bits >> 52]


def test_token_and_distribution_come_from_one_call():  # spec 123: what a draft is verified with is what it was drawn from
    logits = torch.randn(64, 50, generator=torch.Generator().manual_seed(3)) * 3
    made = []
    for seed in (1, 2):
        rows = SampleRows.uniform(64, seed=seed, temperature=0.8, top_k=12, top_p=0.9)
        rows.offset = torch.arange(64)
        made.append(sample(logits, rows, vocab_size=50, return_probs=True, return_descriptor=True))
    first, second = made
    drawn = first.probs.gather(1, first.token[:, None].long())
    assert (drawn > 0).all()
    assert torch.allclose(first.probs.sum(1), torch.ones(64))
    assert torch.equal(first.probs, second.probs) and not torch.equal(first.token, second.token)
    assert ((first.probs > 0).sum(1) <= 12).all()
    assert (first.descriptor.mass > 0).all()
