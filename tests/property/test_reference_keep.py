"""Kept sets and probabilities against float64 and against plain integers; nothing around a row changes it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.reference import SampleRows, sample
from tests.reference_oracle import keep64, keep_exact, softmax64

DTYPES = [torch.float32, torch.float16, torch.bfloat16]

FILTERS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.05, 0.3, 0.7, 1.0, 1.5, 10.0]),
        "top_k": st.sampled_from([0, 2, 3, 5, 50, 1000]),
        "top_p": st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 2.0**-24, 1.0]),
        "min_p": st.sampled_from([0.0, 1e-6, 0.05, 0.5, 1.0]),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(
        st.sampled_from([-8.0, -1.5, -0.0, 0.0, 0.125, 1.0, 1.0078125, 2.0, 6.0]) | st.floats(-20, 20, width=16),
        min_size=1,
        max_size=60,
    ),
    filters=FILTERS,
)
def test_kept_set_by_lists_and_python_integers(values, filters):  # spec 69-71, R16
    x = np.array(values, dtype=np.float32)
    probs = sample(
        torch.from_numpy(x)[None], SampleRows.uniform(1, **filters), vocab_size=x.size, return_probs=True, return_descriptor=True
    )
    kept = keep_exact(x, filters["temperature"], filters["top_k"], filters["top_p"], filters["min_p"])
    threshold, tie = float(probs.descriptor.threshold[0]), int(probs.descriptor.tie_column[0])
    assert [i for i, v in enumerate(x) if v > threshold or (v == threshold and i <= tie)] == kept
    assert int(probs.token[0]) in kept
    assert set(torch.nonzero(probs.probs[0]).flatten().tolist()) <= set(kept)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0, 15.0])
def test_kept_set_and_probabilities_by_float64(dtype, scale):  # spec 69, 81
    rng, near_borders, compared = np.random.default_rng(4), 0, 0
    for vocab_size in (33, 100, 8193, 32000):
        for temperature, k, p, m in (
            (1.0, 0, 0.9, 0.0),
            (0.6, 50, 1.0, 0.0),
            (1.3, 0, 1.0, 0.05),
            (0.8, 40, 0.95, 0.01),
            (1.0, vocab_size - 1, 0.999, 0.0),
            (2.0, 0, 0.3, 0.0),
        ):
            logits = torch.tensor(rng.standard_normal((1, vocab_size)) * scale).to(dtype)
            x = logits[0].float().numpy()
            rows = SampleRows.uniform(1, temperature=temperature, top_k=k, top_p=p, min_p=m)
            result = sample(logits, rows, vocab_size=vocab_size, return_probs=True, return_descriptor=True)
            threshold, tie = float(result.descriptor.threshold[0]), int(result.descriptor.tie_column[0])
            got = set(np.flatnonzero((x > threshold) | ((x == threshold) & (np.arange(vocab_size) <= tie))).tolist())
            want, near = keep64(x, temperature, k, float(np.float32(p)), m)
            near_borders += near
            compared += 1
            if not near:
                assert got == want
            exact = np.zeros(vocab_size)
            exact[sorted(got)] = softmax64(x, temperature)[sorted(got)]
            assert np.abs(result.probs[0].numpy() - exact / exact.sum()).sum() < 2e-5
    assert near_borders <= compared // 2


def mixed_rows(rows, rng):
    def pick(values, dtype):
        return torch.tensor(rng.choice(values, rows)).to(dtype)

    return SampleRows(
        pick([0.0, 0.5, 1.0, 2.0], torch.float32),
        pick([0, 1, 5, 50], torch.int32),
        pick([0.5, 0.9, 1.0], torch.float32),
        pick([0.0, 0.05], torch.float32),
        torch.tensor(rng.integers(-(1 << 62), 1 << 62, rows)),
        torch.arange(rows) * 1000,
    )


def take_rows(rows, index):
    names = ("temperature", "top_k", "top_p", "min_p", "seed", "offset", "purpose")
    return SampleRows(*(getattr(rows, n)[index] for n in names))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100, 8193])
def test_permutation_and_batch_of_one_change_no_bit(dtype, vocab_size):  # spec 88, R16, R18
    rng, rows = np.random.default_rng(vocab_size), 24
    logits = torch.tensor(rng.standard_normal((rows, vocab_size)) * 2).to(dtype)
    words = torch.tensor(rng.integers(-(1 << 31), 1 << 31, (rows, -(-vocab_size // 32) + 1)), dtype=torch.int32)
    status = torch.tensor(rng.choice([0, 1, 1, 2], rows), dtype=torch.int32)
    params = mixed_rows(rows, rng)

    def run(index):
        index = torch.tensor(index)
        result = sample(
            logits[index],
            take_rows(params, index),
            vocab_size=vocab_size,
            bitmask=words,
            row_index=index.to(torch.int32),
            row_status=status[index],
            logprobs="processed",
            num_logprobs=4,
            return_descriptor=True,
            return_probs=True,
        )
        descriptor = result.descriptor
        return [
            result.token,
            result.status,
            result.logprob,
            result.rank,
            result.top_ids,
            result.top_logprobs,
            result.probs,
            descriptor.xmax,
            descriptor.threshold,
            descriptor.tie_column,
            descriptor.mass,
            descriptor.temperature,
        ]

    together = run(range(rows))
    order = rng.permutation(rows).tolist()
    for shuffled, straight in zip(run(order), together, strict=True):
        assert torch.equal(shuffled, straight[order])
    for r in range(rows):
        for alone, straight in zip(run([r]), together, strict=True):
            assert torch.equal(alone, straight[r : r + 1])


@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"top_k": 9}, {"top_p": 0.8}, {"min_p": 0.1}])
def test_columns_beyond_the_vocabulary_and_strides_change_no_bit(params):
    logits = torch.randn(8, 500)
    wide = torch.full((16, 640), float("nan"))
    wide[::2, :500] = logits
    rows = SampleRows.uniform(8, seed=11, **params)
    assert torch.equal(sample(logits, rows, vocab_size=500).token, sample(wide[::2], rows, vocab_size=500).token)
