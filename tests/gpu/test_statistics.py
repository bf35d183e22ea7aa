"""What the device draws is distributed as the formula says: G-tests with stated counts, family-wise level 1e-6.

Narrow rows take 2^24 draws a test, wide ones 2^20. Expected counts come from float64 on the CPU; tokens expected fewer than 20
times are counted together.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from kernels.reference import SampleRows
from kernels.sample import SampleOutput, sample_into
from tests.gpu import cases

pytestmark = pytest.mark.gpu
LEVEL = 1e-6 / 32
"""Of one test: there are fewer than 32 in this file."""
NARROW, WIDE = 1 << 24, 1 << 20
PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 1.2, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.02},
    {"temperature": 0.9, "top_k": 30, "top_p": 0.8, "min_p": 0.01},
]


def histogram(logits: torch.Tensor, draws: int, rows_a_launch: int, mask: torch.Tensor | None, **parameters: Any) -> torch.Tensor:
    """int64[V] on the CPU: how often each token of one row of logits [1, V] came in `draws` draws of other seeds and offsets."""
    width = logits.shape[1]
    many = logits.cuda().expand(rows_a_launch, width).contiguous()
    rows = cases.on_gpu(SampleRows.uniform(rows_a_launch, **parameters))
    rows.seed = torch.arange(rows_a_launch, device="cuda") * 7919 + 11
    out, found = SampleOutput.empty(rows_a_launch, "cuda"), torch.zeros(width, dtype=torch.int64, device="cuda")
    bitmask = None if mask is None else mask.cuda().expand(rows_a_launch, -1).contiguous()
    for step in range(draws // rows_a_launch):
        rows.offset = torch.full((rows_a_launch,), step, dtype=torch.int64, device="cuda")
        sample_into(out, many, rows, vocab_size=width, bitmask=bitmask)
        found += torch.bincount(out.token, minlength=width)
    return found.cpu()


def expected(logits: torch.Tensor, mask: torch.Tensor | None, **parameters: Any) -> np.ndarray:
    """float64[V]: mask, temperature, exact k, renormalised shortest prefix, min_p against the largest; no ties in these logits."""
    x = logits[0].double().numpy() / parameters["temperature"]
    if mask is not None:
        x = np.where(np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[: len(x)] != 0, x, -np.inf)
    p = np.exp(x - x.max())
    order = np.argsort(-p, kind="stable")
    keep = np.zeros(len(p), bool)
    keep[order[: parameters.get("top_k") or len(p)]] = True
    p = np.where(keep, p, 0.0)
    p /= p.sum()
    if parameters.get("top_p", 1.0) < 1.0:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= parameters["top_p"]]] = 0.0
    p[p < p.max() * parameters.get("min_p", 0.0)] = 0.0
    return p / p.sum()


def g_test(found: torch.Tensor, p: np.ndarray) -> float:
    """The probability of a deviation this large. Raises where a token of probability 0 came."""
    counts = found.numpy().astype(np.float64)
    if counts[p == 0].any():
        raise AssertionError(f"tokens outside of the kept set came {int(counts[p == 0].sum())} times")
    mean = p * counts.sum()
    rare = mean < 20
    seen, mean = np.append(counts[~rare], counts[rare].sum()), np.append(mean[~rare], mean[rare].sum())
    seen, mean = seen[mean > 0], mean[mean > 0]
    g = 2 * float(np.sum(np.where(seen > 0, seen * np.log(np.maximum(seen, 1) / mean), 0.0)))
    return upper_tail(g, max(len(seen) - 1, 1))


def upper_tail(statistic: float, degrees: int) -> float:
    """Of the chi-square distribution."""
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _distinct(seed: int, width: int, scale: float) -> torch.Tensor:
    """fp32 [1, width] without ties."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy((rng.permutation(width) / width * scale).astype(np.float32))[None]


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda p: "-".join(p))
def test_narrow_rows(parameters: dict[str, Any], guided: bool) -> None:  # spec 69, R16, R17
    logits = _distinct(3, 64, 6.0)
    mask = cases.bitmask(np.random.default_rng(4), "half", 1, 64) if guided else None
    found = histogram(logits, NARROW, 1 << 14, mask, **parameters)
    assert g_test(found, expected(logits, mask, **parameters)) > LEVEL


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("parameters", PARAMETERS[:3], ids=lambda p: "-".join(p))
def test_wide_rows(parameters: dict[str, Any], guided: bool) -> None:  # spec 69, R16, R17
    logits = _distinct(5, 128256, 20.0)
    mask = cases.bitmask(np.random.default_rng(6), "half", 1, 128256) if guided else None
    found = histogram(logits, WIDE, 512, mask, **parameters)
    assert g_test(found, expected(logits, mask, **parameters)) > LEVEL


def test_successive_offsets_are_independent() -> None:  # spec 88, R18
    """2^22 pairs of one seed at offsets t and t + 1, eight tokens: the 64 pairs come as the product of their probabilities."""
    logits, rows_a_launch = _distinct(7, 8, 2.0), 1 << 14
    rows = cases.on_gpu(SampleRows.uniform(rows_a_launch, temperature=1.0))
    rows.seed = torch.arange(rows_a_launch, device="cuda")
    many, out = logits.cuda().expand(rows_a_launch, 8).contiguous(), SampleOutput.empty(rows_a_launch, "cuda")
    found, last = torch.zeros(64, dtype=torch.int64, device="cuda"), None
    for step in range((1 << 22) // rows_a_launch + 1):
        rows.offset = torch.full((rows_a_launch,), step, dtype=torch.int64, device="cuda")
        sample_into(out, many, rows, vocab_size=8)
        if last is not None:
            found += torch.bincount(last * 8 + out.token, minlength=64)
        last = out.token.clone()
    p = expected(logits, None, temperature=1.0)
    assert g_test(found.cpu(), np.outer(p, p).ravel()) > LEVEL


@pytest.mark.parametrize("parameters", PARAMETERS[:3], ids=lambda p: "-".join(p))
def test_torch_draws_the_same_distribution(parameters: dict[str, Any]) -> None:
    """Two samples, 2^22 draws each: ours, and multinomial of torch on probabilities that torch operations filter."""
    logits = _distinct(8, 512, 8.0)
    p = torch.from_numpy(expected(logits, None, **parameters)).float().cuda()
    theirs = sum(torch.bincount(torch.multinomial(p.expand(64, -1), 1 << 14, True).view(-1), minlength=512) for _ in range(4))
    ours = histogram(logits, 1 << 22, 1 << 14, None, **parameters)
    assert isinstance(theirs, torch.Tensor)
    assert two_samples(ours, theirs.cpu()) > LEVEL


@pytest.mark.skipif(
    "MASKSTREAM_PEERS" not in os.environ, reason="MASKSTREAM_PEERS names no libpeers.so (benchmarks/peers/build.sh)"
)
@pytest.mark.parametrize("parameters", [PARAMETERS[0], {"temperature": 1.0, "top_p": 0.9}], ids=["plain", "top_p"])
def test_flashinfer_draws_the_same_distribution(parameters: dict[str, Any]) -> None:
    """Two samples, 2^20 draws each, 128,256 tokens of which half are banned."""
    from benchmarks.kernels_peers import Peers

    logits, count, width = _distinct(9, 128256, 20.0), 512, 128256
    mask = cases.bitmask(np.random.default_rng(10), "half", 1, width)
    assert mask is not None
    ours = histogram(logits, WIDE, count, mask, **parameters)
    peers = Peers(os.environ["MASKSTREAM_PEERS"], count, width)
    theirs, masks = torch.zeros(width, dtype=torch.int64, device="cuda"), mask.cuda().expand(count, -1).contiguous()
    many = (logits.cuda() / parameters["temperature"]).expand(count, width).contiguous()
    peers.mask(many, masks)
    for step in range(WIDE // count):
        peers.draw(many, parameters.get("top_p", 1.0), seed=step)
        theirs += torch.bincount(peers.out, minlength=width)
    assert two_samples(ours, theirs.cpu()) > LEVEL


def two_samples(a: torch.Tensor, b: torch.Tensor) -> float:
    """Chi-square of two histograms with equal totals; tokens that came fewer than 40 times in both together are one bin."""
    both = torch.stack([a, b]).double()
    rare = both.sum(0) < 40
    both = torch.cat([both[:, ~rare], both[:, rare].sum(1, keepdim=True)], 1)
    both = both[:, both.sum(0) > 0]
    statistic = float(((both[0] - both[1]) ** 2 / both.sum(0)).sum())
    return upper_tail(statistic, max(both.shape[1] - 1, 1))
