"""Rare tokens, and draws at other positions and seeds, against enumerated probabilities (test_statistics has the filters).

All tests together reject a sound sampler less often than once in a million runs.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.reference import SampleRows
from kernels.sample import SampleOutput, sample_into
from tests.gpu import cases

pytestmark = pytest.mark.gpu
TESTS = 8
LEVEL = 1e-6 / TESTS


def p_value(statistic: float, freedom: float) -> float:
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def fits(counts: np.ndarray, expected: np.ndarray) -> float:
    """p-value of the G-test; bins of less than 10 expected draws are put together. A draw where none can fall: 0."""
    if counts[expected == 0].any():
        return 0.0
    rare = expected < 10
    counts = np.append(counts[~rare], counts[rare].sum()).astype(np.float64)
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 10 and len(expected) > 1:  # too little even together: into the largest bin
        at = int(np.argmax(expected[:-1]))
        counts[at], expected[at] = counts[at] + counts[-1], expected[at] + expected[-1]
        counts, expected = counts[:-1], expected[:-1]
    seen = counts > 0
    g = 2 * float((counts[seen] * np.log(counts[seen] / expected[seen])).sum())
    return p_value(max(g, 0.0), max(len(counts) - 1, 1))


def probabilities(x: np.ndarray) -> np.ndarray:
    w: np.ndarray = np.exp(x - x.max())
    return w / w.sum()


def draw(logits: torch.Tensor, count: int, batch: int, seed: int) -> torch.Tensor:
    """`count` tokens of one row [1, V] on the device: successive offsets of one seed, `batch` rows a launch."""
    out, found = SampleOutput.empty(batch, "cuda"), []
    rows = cases.on_gpu(SampleRows.uniform(batch, seed=seed))
    for start in range(0, count, batch):
        rows.offset = torch.arange(start, start + batch, device="cuda")
        sample_into(out, logits.expand(batch, -1), rows, vocab_size=logits.shape[1])
        found.append(out.token.clone())
    return torch.cat(found)[:count]


def histogram(tokens: torch.Tensor, width: int) -> np.ndarray:
    assert int(tokens.min()) >= 0
    return torch.bincount(tokens.long(), minlength=width).cpu().numpy()


def test_rare_tokens() -> None:  # spec R16
    """2^28 draws: tokens of probability 1e-7 come as often as they should."""
    p = np.array([1e-7, 2e-7, 1e-6, 0.3, 1e-7, 0.6, 1e-7])
    logits = torch.from_numpy(np.log(p / p.max()).astype(np.float32)[None])
    p = np.exp(logits[0].double().numpy())
    counts = np.zeros(len(p), dtype=np.int64)
    for part in range(16):
        counts += histogram(draw(logits.cuda(), 1 << 24, 1 << 20, 1000 + part), len(p))
    assert fits(counts, p / p.sum() * (1 << 28)) > LEVEL


@pytest.mark.parametrize("lag", [1, 2, 64])
def test_successive_positions_are_independent(lag: int) -> None:  # spec 85, R18
    width, count = 16, 1 << 22
    logits = torch.from_numpy(np.random.default_rng(6).standard_normal((1, width)).astype(np.float32)).cuda()
    tokens = draw(logits, count, 1 << 18, 4242).long().cpu()
    p = probabilities(logits[0].double().cpu().numpy())
    pairs = torch.bincount(tokens[:-lag] * width + tokens[lag:], minlength=width * width).numpy()
    assert fits(pairs, np.outer(p, p).ravel() * (count - lag)) > LEVEL


def test_successive_seeds_are_independent() -> None:  # spec 85, R18
    width, count = 16, 1 << 20
    logits = torch.from_numpy(np.random.default_rng(7).standard_normal((1, width)).astype(np.float32)).cuda()
    rows, out = cases.on_gpu(SampleRows.uniform(count, offset=5)), SampleOutput.empty(count, "cuda")
    rows.seed = torch.arange(count, device="cuda")
    sample_into(out, logits.expand(count, -1), rows, vocab_size=width)
    tokens, p = out.token.long().cpu(), probabilities(logits[0].double().cpu().numpy())
    pairs = torch.bincount(tokens[:-1] * width + tokens[1:], minlength=width * width).numpy()
    assert fits(pairs, np.outer(p, p).ravel() * (count - 1)) > LEVEL
