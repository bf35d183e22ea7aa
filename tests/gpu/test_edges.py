"""Edges of the sampler: ties over slice borders, almost all tokens kept, single tokens at word edges, many changed tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kernels.reference import Overlay, SampleRows, TokenList, sample
from kernels.sample import CLUSTERS
from tests.gpu import cases
from tests.gpu.test_sample import compare, launch

pytestmark = pytest.mark.gpu


def _rows(count: int, **parameters: Any) -> SampleRows:
    rows = SampleRows.uniform(count, **parameters)
    rows.seed = torch.arange(count) * 7919 + 3
    rows.offset = torch.arange(count) * 104729
    return rows


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_ties_across_slices(dtype: str) -> None:  # spec 71, R16
    rng = np.random.default_rng(1)
    width = 65536
    logits = torch.from_numpy(rng.standard_normal((12, width)).astype(np.float32)).clamp(max=3)
    for row in range(12):  # equal maxima on both sides of where slices meet, for every cluster size
        at = np.concatenate([np.arange(-2, 3) + edge for edge in range(8192, width, 8192)])
        logits[row, torch.from_numpy(at)] = 8.0 + row % 3
    for parameters in (
        {"top_k": 3},
        {"top_k": 17},
        {"top_p": 0.4},
        {"top_p": 0.9},
        {"top_k": 30, "top_p": 0.7},
        {"temperature": 0.0},
    ):
        compare(CLUSTERS, logits.to(cases.DTYPES[dtype]), _rows(12, **parameters), vocab_size=width)


@pytest.mark.parametrize("width", [33, 100, 8193, 32000])
def test_all_but_one_kept(width: int) -> None:  # spec 70, 71
    rng = np.random.default_rng(2)
    for kind in ("middle", "ties"):
        for dtype in cases.DTYPES.values():
            logits = cases.logits(rng, kind, 8, width, dtype)
            for parameters in ({"top_k": width - 1}, {"top_p": 1 - 2.0**-24}, {"top_k": width - 1, "top_p": 1 - 2.0**-24}):
                compare(CLUSTERS, logits, _rows(8, **parameters), vocab_size=width)


@pytest.mark.parametrize("temperature", [1e-4, 1e-2, 0.1, 1.0, 10.0, 100.0])
def test_temperatures(temperature: float) -> None:  # spec 68
    rng = np.random.default_rng(3)
    for kind in ("peaked", "flat", "ties"):
        logits = cases.logits(rng, kind, 8, 32000, torch.bfloat16)
        for more in ({}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.1}, {"top_p": 0.7, "min_p": 0.01}):
            compare((1, 8), logits, _rows(8, temperature=temperature, **more), vocab_size=32000)


@pytest.mark.parametrize("scale", [1e-6, 3e-5, 1e-3, 30.0, 3e4, 1e30])
def test_magnitudes(scale: float) -> None:  # spec 68, 71
    """Logits near zero, exact zeros among them, and very large ones: every range that a histogram may leave out."""
    rng = np.random.default_rng(31)
    for shift in (0.0, scale, -3 * scale):
        x = (rng.standard_normal((12, 32000)) * scale + shift).astype(np.float32)
        x[rng.random(x.shape) < 0.2] = 0.0
        logits = torch.from_numpy(x).to(torch.bfloat16)
        for more in ({"top_p": 0.9}, {"top_p": 0.5, "temperature": scale}, {"top_p": 0.95, "min_p": 0.3}, {"temperature": scale}):
            compare((1, 4), logits, _rows(12, **more), vocab_size=32000)


def test_one_token_at_each_word_edge() -> None:  # spec 23, 26
    width = 4129  # words 0..129, the last with one column
    columns = [c for w in range(130) for c in (32 * w, 32 * w + 31) if c < width]
    rows = len(columns)
    allowed = np.zeros((rows, 130 * 32), dtype=bool)
    allowed[np.arange(rows), columns] = True
    allowed[:, width:] = True  # stray bits behind the vocabulary
    mask = torch.from_numpy(np.packbits(allowed, axis=1, bitorder="little").view(np.int32).reshape(rows, 130))
    logits = cases.logits(np.random.default_rng(4), "middle", rows, width, torch.bfloat16)
    for parameters in ({"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 5}, {}):
        for cluster in CLUSTERS:
            out = launch(logits, _rows(rows, **parameters), vocab_size=width, bitmask=mask, cluster=cluster)
            assert out.token.tolist() == columns


@pytest.mark.parametrize("touched", [2048, 2049, 4097])
def test_many_changed_tokens(touched: int) -> None:  # spec 93, 100, R19
    rng = np.random.default_rng(touched)
    ids = [rng.choice(32000, touched, replace=False).tolist() for _ in range(8)]
    overlay = Overlay(bias=TokenList.of(ids, [rng.normal(0, 2, touched).tolist() for _ in range(8)]))
    for dtype in cases.DTYPES.values():
        logits = cases.logits(rng, "middle", 8, 32000, dtype)
        compare(CLUSTERS, logits, cases.rows(rng, 8, "mixed"), vocab_size=32000, overlay=overlay)


@pytest.mark.parametrize("part", range(8))
def test_how_often_the_exponential_differs_from_the_cpus(part: int) -> None:  # spec R16
    """131,072 drawn rows in all: tokens that differ from the reference on the CPU's own exponential (printed)."""
    rng = np.random.default_rng(500 + part)
    differing = 0
    kinds = ("peaked", "middle", "flat", "ties")
    for i in range(16):
        logits = cases.logits(rng, kinds[i % 4], 1024, 4096, torch.bfloat16)
        rows = cases.rows(rng, 1024, "mixed")
        drawn = rows.temperature > 0
        want = sample(logits, rows, vocab_size=4096)
        differing += int((launch(logits, rows, vocab_size=4096).token.cpu() != want.token)[drawn].sum())
    print(f"DIFFERING {differing} of {16 * 1024}")
    assert differing <= 2
