"""Other ways to the same results: float64 and plain Python integers, sorted lists, one bit at a time."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from kernels.plain import weights

F64 = NDArray[np.float64]


def bit(words: torch.Tensor, token: int) -> bool:
    return bool((int(words[token // 32]) >> (token % 32)) & 1)


def pack(allowed: list[int], num_words: int) -> torch.Tensor:
    """int32[num_words] with exactly these bits set."""
    values = [0] * num_words
    for token in allowed:
        values[token // 32] |= 1 << (token % 32)
    return torch.tensor([v - (1 << 32) if v >= 1 << 31 else v for v in values], dtype=torch.int32)


def softmax64(x: NDArray[np.float32], temperature: float) -> F64:
    scaled = (x.astype(np.float64) - float(x.max())) / temperature
    power = np.exp(scaled)
    return power / power.sum()


def total_order(x: NDArray[np.float32]) -> list[int]:
    return sorted(range(len(x)), key=lambda i: (-float(x[i]), i))


def keep64(x: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float) -> tuple[set[int], bool]:
    """The kept set by float64 probabilities, and whether a border is too near for float64 to tell."""
    p, order = softmax64(x, temperature), total_order(x)
    near = False
    if min_p > 0:
        ratio = p[order] / p[order[0]]
        near |= bool((np.abs(ratio / min_p - 1) < 1e-5).any())
        order = [i for i, r in zip(order, ratio, strict=True) if r >= min_p]
    if 0 < top_k < len(x):
        order = order[:top_k]
    if top_p < 1:
        running = np.cumsum(p[order] / p[order].sum())
        near |= bool((np.abs(running - top_p) < 1e-6).any())
        order = order[: int(np.argmax(running >= top_p)) + 1] if running[-1] >= top_p else order
    return set(order), near


def keep_exact(x: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The kept columns, ascending, from the masses by lists, fractions and Python integers; nothing may differ."""
    xmax, t = x.max(), np.float32(temperature)
    mass = [int(m) for m in weights.masses(x, xmax, t)]
    order = total_order(x)
    if min_p > 0:
        limit = weights.min_p_threshold(xmax, t, np.float32(min_p))
        order = [i for i in order if x[i] >= limit]
    if 0 < top_k < len(x):
        order = order[:top_k]
    if top_p < 1:
        wanted = Fraction(float(np.float32(top_p))) * sum(mass[i] for i in order)
        running, kept = 0, []
        for i in order:
            kept.append(i)
            running += mass[i]
            if running >= wanted:
                break
        order = kept
    return sorted(order)


def chi_square_p(observed: NDArray[np.int64], probabilities: F64) -> float:
    """p-value of counts against probabilities; cells that expect fewer than 10 are pooled, impossible ones must be 0."""
    if observed[probabilities == 0].any():
        return 0.0
    expected = probabilities * observed.sum()
    small = expected < 10
    seen = np.append(observed[~small], observed[small].sum()).astype(np.float64)
    wanted = np.append(expected[~small], expected[small].sum())
    if wanted[-1] < 10:
        at = int(np.argmin(wanted[:-1]))
        seen[at] += seen[-1]
        wanted[at] += wanted[-1]
        seen, wanted = seen[:-1], wanted[:-1]
    if seen.size < 2:
        return 1.0
    return float(stats.chi2.sf(((seen - wanted) ** 2 / wanted).sum(), seen.size - 1))
