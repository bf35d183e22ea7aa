"""Row parameters as every rank needs them, worked out once on the host and sent to the device in one piece."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.reference import SampleRows, random_bits

LONGEST_LIST = 1024
"""Candidates that a rank gives of a row at most; a larger top_k is found by search."""
_NUCLEUS_LIST = 256
_LOG2E = np.float32(1.4426950408889634)
_FLT_MAX = float(np.finfo(np.float32).max)
_MANTISSA_BITS = 24
_DEVICE = ("top_k", "mantissa", "exponent", "bits", "temperature", "scale", "log_min_p", "greedy")
_HOST = ("listed", "whole", "weighed", "filtered")


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Device int64 or fp32 [R]: top_k (0: off), top_p = mantissa / 2^exponent exactly (mantissa 0: off), 64 random ``bits``,
    temperature, scale = log2(e) / T, log_min_p (NaN: off), greedy bool.

    Host bool [R], the same on every rank: ``listed`` rows may be settled by candidates alone, ``whole`` rows need the masses of the
    whole row for their draw, ``weighed`` ones for the share of top_p; ``filtered`` rows have top_k
    or top_p. ``candidates``: how many each rank gives (0: none);
    ``may_spill``: a list can prove too short.
    """

    top_k: Tensor
    mantissa: Tensor
    exponent: Tensor
    bits: Tensor
    temperature: Tensor
    scale: Tensor
    log_min_p: Tensor
    greedy: Tensor
    listed: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    weighed: NDArray[np.bool_]
    filtered: NDArray[np.bool_]
    candidates: int
    may_spill: bool

    @classmethod
    def of(cls, rows: SampleRows, columns: int, device: torch.device, *, keep_ties: bool = False) -> RowPlan:
        """``rows`` are on the host. Their order of filters and their rules are those of `kernels.reference.sample`."""
        temperature, top_p = rows.temperature.numpy(), rows.top_p.numpy()
        top_k = np.where((rows.top_k.numpy() > 0) & (rows.top_k.numpy() < columns), rows.top_k.numpy(), 0).astype(np.int64)
        greedy = ~(temperature > 0) | (rows.top_k.numpy() == 1) | (top_p <= 0)
        has_p = (top_p < 1) & ~greedy
        top_k[greedy] = 0
        mantissa, exponent = _fractions(np.where(has_p, top_p, np.float32(0.5)))
        mantissa = np.where(has_p, mantissa, 0)
        numbers = {"top_k": top_k, "mantissa": mantissa, "exponent": exponent, "bits": _bits(rows), "greedy": greedy}
        logs = _logs(rows.min_p.numpy())
        floats = {"temperature": temperature, "scale": _scales(temperature), "log_min_p": logs}
        packed = _packed(numbers, floats, device)
        listed = ~greedy & ((top_k > 0) | has_p) & (top_k <= LONGEST_LIST)
        nucleus = bool((listed & (top_k == 0)).any())
        candidates = min(max(int(top_k[listed].max(initial=0)), _NUCLEUS_LIST if nucleus else 0), columns)
        weighed = ~greedy & has_p & (top_k == 0)
        spill = bool(nucleus or (listed.any() and keep_ties))
        return cls(**packed, listed=listed, whole=~greedy & ~listed, weighed=weighed, filtered=(top_k > 0) | has_p,
                   candidates=candidates, may_spill=spill)  # fmt: skip

    def take(self, rows: Tensor, chosen: NDArray[np.bool_]) -> RowPlan:
        """The chosen rows, once by index on the device and once by flag on the host."""
        device = {name: getattr(self, name)[rows] for name in _DEVICE}
        host = {name: getattr(self, name)[chosen] for name in _HOST}
        return replace(self, **device, **host)


def _fractions(top_p: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """fp32 in (0, 1) as 24-bit mantissa and power of two, exactly."""
    fraction, power = np.frexp(top_p.astype(np.float64))
    return (fraction * 2**_MANTISSA_BITS).astype(np.int64), _MANTISSA_BITS - power.astype(np.int64)


def _bits(rows: SampleRows) -> NDArray[np.int64]:
    seed, offset, purpose = (t.numpy().astype(np.int64).view(np.uint64) for t in (rows.seed, rows.offset, rows.purpose))
    return random_bits(seed, offset, purpose).view(np.int64)


def _scales(temperature: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return np.minimum(_LOG2E / np.where(temperature > 0, temperature, np.float32(1)), np.float32(_FLT_MAX))


def _logs(min_p: NDArray[np.float32]) -> NDArray[np.float32]:
    """Python's logarithm, as the reference has it."""
    return np.array([math.log(p) if p > 0 else math.nan for p in min_p.tolist()], dtype=np.float32)


def _packed(numbers: dict[str, NDArray[Any]], floats: dict[str, NDArray[np.float32]], device: torch.device) -> dict[str, Tensor]:
    """One copy to the device for all of them."""
    whole = [*numbers.values(), *(f.astype(np.float32).view(np.int32) for f in floats.values())]
    sent = torch.from_numpy(np.stack([np.asarray(v, dtype=np.int64) for v in whole])).to(device)
    made = dict(zip((*numbers, *floats), sent, strict=True))
    bits = sent[len(numbers) :].int().view(torch.float32)
    made.update(zip(floats, bits, strict=True))
    made["greedy"] = made["greedy"] != 0
    return made
