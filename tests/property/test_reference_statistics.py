"""Draws against enumerated distributions: chi-square with fixed seeds, family-wise level 1e-6 over this file."""

import numpy as np
import pytest
import torch

from kernels.plain.keep import draw_many
from kernels.plain.live import SampleInputs
from kernels.reference import SampleRows, random_bits, sample
from tests.reference_oracle import chi_square_p, keep64, softmax64

NUM_TESTS = 30  # at least as many p-values as this file takes
LEVEL = 1e-6 / NUM_TESTS
NARROW, WIDE, CHUNK = 1 << 24, 1 << 20, 1 << 20


def count(kept, seed, num_draws, width, first=0):
    """Columns drawn at the offsets first .. first + num_draws."""
    counts = np.zeros(width, dtype=np.int64)
    for start in range(first, first + num_draws, CHUNK):
        offsets = np.arange(start, min(start + CHUNK, first + num_draws), dtype=np.uint64)
        counts += np.bincount(draw_many(kept, random_bits(np.uint64(seed), offsets, np.uint64(0))), minlength=width)
    return counts


def row(x, **params):
    x = np.asarray(x, dtype=np.float32)
    return SampleInputs(torch.from_numpy(x)[None], SampleRows.uniform(1, **params), x.size).live(0).kept, x


def wanted(x, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    kept, near = keep64(x, temperature, top_k, float(np.float32(top_p)), min_p)
    assert not near
    p = np.zeros(x.size)
    index = sorted(kept)
    p[index] = softmax64(x, temperature)[index]
    return p / p.sum()


def test_vector_draws_are_the_samplers_draws():
    x = torch.randn(1, 300)
    rows = SampleRows.uniform(256, seed=6, top_p=0.9)
    rows.offset = torch.arange(256)
    tokens = sample(x.repeat(256, 1), rows, vocab_size=300).token.numpy()
    kept = SampleInputs(x, SampleRows.uniform(1, top_p=0.9), 300).live(0).kept
    assert (draw_many(kept, random_bits(np.uint64(6), np.arange(256, dtype=np.uint64), np.uint64(0))) == tokens).all()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7, "top_k": 50},
        {"temperature": 1.5, "top_p": 0.95},
        {"min_p": 0.02},
        {"top_k": 500, "top_p": 0.9, "temperature": 0.9},
    ],
)
def test_wide_rows(params):  # spec 69-71, 81; 2^20 draws of 32,000 tokens
    kept, x = row(np.random.default_rng(1).standard_normal(32000) * 2.5, **params)
    assert chi_square_p(count(kept, 101, WIDE, x.size), wanted(x, **params)) > LEVEL


@pytest.mark.parametrize("params", [{}, {"top_k": 5, "temperature": 0.8}])
def test_narrow_rows_short(params):
    kept, x = row(np.linspace(-3, 3, 33), **params)
    assert chi_square_p(count(kept, 5, WIDE, 33), wanted(x, **params)) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("params", [{"temperature": 1.3}, {"top_k": 9, "top_p": 0.97, "min_p": 0.001}])
def test_narrow_rows(params):  # 2^24 draws of 33 tokens
    kept, x = row(np.linspace(-2.5, 2.5, 33) ** 2, **params)
    assert chi_square_p(count(kept, 7, NARROW, 33), wanted(x, **params)) > LEVEL


@pytest.mark.slow
def test_tail_tokens():  # 2,000 tokens of about 1e-7 each: some 3,000 draws of 2^24 land there
    x = np.full(2003, np.log(1e-7), dtype=np.float32)
    x[[0, 700, 2002]] = np.log([0.2, 0.3, 0.4998])
    kept, x = row(x)
    p = wanted(x)
    counts = count(kept, 9, NARROW, x.size)
    tail = np.ones(x.size, bool)
    tail[[0, 700, 2002]] = False
    assert counts[tail].sum() > 2000
    cells = np.array([*counts[~tail], counts[1:700].sum(), counts[701:2002].sum()])
    assert chi_square_p(cells, np.array([*p[~tail], p[1:700].sum(), p[701:2002].sum()])) > LEVEL
    assert (
        chi_square_p(
            np.bincount(np.arange(2003)[tail] % 20, counts[tail]).astype(np.int64),
            np.bincount(np.arange(2003)[tail] % 20, p[tail]) / p[tail].sum(),
        )
        > LEVEL
    )


def pairs(first, second, cells):
    together = np.bincount(first * cells + second, minlength=cells * cells)
    return together, np.full(cells * cells, 1 / cells**2)


@pytest.mark.parametrize("step", [1, 2, 7, 4096])
def test_offsets_are_independent(step):  # spec R18
    kept, _ = row(np.zeros(16))
    offsets = np.arange(WIDE, dtype=np.uint64)
    a, b = (
        draw_many(kept, random_bits(np.uint64(3), offsets * np.uint64(2 * step) + np.uint64(s), np.uint64(0))) for s in (0, step)
    )
    assert chi_square_p(*pairs(a, b, 16)) > LEVEL


@pytest.mark.parametrize(("seeds", "purposes"), [((1, 2), (0, 0)), ((1, 1 << 32), (0, 0)), ((5, 5), (0, 1)), ((5, 5), (2, 3))])
def test_seeds_and_purposes_are_independent(seeds, purposes):  # spec 88, R18
    kept, _ = row(np.zeros(16))
    offsets = np.arange(WIDE, dtype=np.uint64)
    a, b = (draw_many(kept, random_bits(np.uint64(s), offsets, np.uint64(u))) for s, u in zip(seeds, purposes, strict=True))
    assert chi_square_p(*pairs(a, b, 16)) > LEVEL


def test_the_test_would_notice_one_percent():
    p = np.full(33, 1 / 33)
    skewed = p * (1 + 0.01 * np.where(np.arange(33) < 16, 1, -16 / 17))
    counts = np.random.default_rng(0).multinomial(NARROW, skewed)
    assert chi_square_p(counts, p) < LEVEL


def test_guided_draws_follow_the_renormalised_distribution():  # spec R16
    x = np.random.default_rng(2).standard_normal(64).astype(np.float32)
    words = torch.tensor([[0x0F0F0F0F, 0x11111111]], dtype=torch.int32)
    kept = SampleInputs(torch.from_numpy(x)[None], SampleRows.uniform(1), 64, words).live(0).kept
    allowed = [i for i in range(64) if (int(words[0, i // 32]) >> (i % 32)) & 1]
    p = np.zeros(64)
    p[allowed] = softmax64(x[allowed], 1.0)
    assert chi_square_p(count(kept, 21, WIDE, 64), p) > LEVEL
