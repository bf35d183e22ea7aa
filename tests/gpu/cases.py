"""Random inputs for the kernels, and the reference with the GPU's exponential put in: then everything must be identical."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from kernels import weights as gpu_weights
from kernels.plain import weights as plain_weights
from kernels.reference import Overlay, Penalties, SampleRows, TokenList

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def on_gpu(value: Any) -> Any:
    """The same tensors, dataclasses of tensors and lists of them on the device."""
    if isinstance(value, torch.Tensor):
        return value.cuda()
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: on_gpu(getattr(value, f.name)) for f in fields(value) if f.init})
    return value


def strided_on_gpu(logits: torch.Tensor) -> torch.Tensor:
    """Logits on the device with the same gap between rows (a plain copy would close it)."""
    base = torch.empty((logits.shape[0], logits.stride(0)), dtype=logits.dtype, device="cuda")
    return base[:, : logits.shape[1]].copy_(logits)


@contextmanager
def gpu_exponential() -> Iterator[None]:
    """Within, the reference takes its weights from the device; selection, sums and draws stay its own."""
    plain = plain_weights.masses

    def from_gpu(x: np.ndarray, xmax: np.float32, temperature: np.float32) -> np.ndarray:
        device = torch.from_numpy(np.array(x, dtype=np.float32)).cuda()
        return gpu_weights.masses(device, float(xmax), float(temperature)).cpu().numpy().view(np.uint64)

    plain_weights.masses = from_gpu
    try:
        yield
    finally:
        plain_weights.masses = plain


def logits(rng: np.random.Generator, kind: str, rows: int, width: int, dtype: torch.dtype, stride: int = 0) -> torch.Tensor:
    """[rows, width]; peaked, middle and flat rows, ties, extremes; `stride` leaves a gap between rows."""
    x = rng.standard_normal((rows, max(stride, width)))
    if kind == "peaked":
        x = x * 2
        x[np.arange(rows)[:, None], rng.integers(0, width, (rows, min(8, width)))] += 12
    elif kind == "middle":
        x = x * 3
    elif kind == "equal":
        x = np.full_like(x, 1.25)
    elif kind == "ties":
        x = np.round(x * 2) / 2
    elif kind == "sorted":
        x = np.sort(x, axis=1)
    elif kind == "special":
        for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
            x[rng.random(x.shape) < 0.002] = value
        x[::2][np.isposinf(x[::2])] = 1.0
    return torch.from_numpy(x.astype(np.float32)).to(dtype)[:, :width]


def bitmask(rng: np.random.Generator, kind: str, rows: int, vocab_size: int) -> torch.Tensor | None:
    words = -(-vocab_size // 32)
    if kind == "none":
        return None
    allowed = np.zeros((rows, words * 32), dtype=bool)
    if kind == "one_banned":
        allowed[:] = True
        allowed[np.arange(rows), rng.integers(0, vocab_size, rows)] = False
    elif kind == "half":
        allowed = rng.random(allowed.shape) < 0.5
    elif kind == "blocks":
        allowed = np.repeat(rng.random((rows, words)) < 0.5, 32, axis=1)
    elif kind == "few":
        allowed[np.arange(rows)[:, None], rng.integers(0, vocab_size, (rows, 128))] = True
    elif kind == "one":
        allowed[np.arange(rows), rng.integers(0, vocab_size, rows)] = True
        allowed[:, vocab_size:] = True
    elif kind == "dead":
        allowed[::2] = True
        allowed[:, vocab_size:] = True
    return torch.from_numpy(np.packbits(allowed, axis=1, bitorder="little").view(np.int32).reshape(rows, words))


PARAMETERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "hot": {"temperature": 3.0},
    "k50": {"temperature": 0.9, "top_k": 50},
    "k1000": {"temperature": 1.3, "top_k": 1000},
    "k5000": {"temperature": 1.3, "top_k": 5000},
    "p95": {"temperature": 1.0, "top_p": 0.95},
    "p30": {"temperature": 0.7, "top_p": 0.3},
    "p_all": {"temperature": 1.0, "top_p": 1 - 2.0**-24},
    "min_p": {"temperature": 1.0, "min_p": 0.05},
    "k50_p90": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "all": {"temperature": 1.1, "top_k": 700, "top_p": 0.9, "min_p": 0.001},
    "k5000_p": {"temperature": 1.5, "top_k": 5000, "top_p": 0.8},
    "cold": {"temperature": 1e-4},
    "colder": {"temperature": 1e-6, "top_p": 0.9},
    "hottest": {"temperature": 100.0, "top_p": 0.5},
}


def rows(rng: np.random.Generator, count: int, kind: str) -> SampleRows:
    """One set of parameters for all rows, or `mixed`: each row its own; seeds and offsets always differ."""
    names = list(PARAMETERS)
    made = [SampleRows.uniform(1, **PARAMETERS[names[i % len(names)] if kind == "mixed" else kind]) for i in range(count)]
    out = SampleRows(*(torch.cat([getattr(r, f.name) for r in made]) for f in fields(SampleRows)))
    out.seed = torch.from_numpy(rng.integers(-(1 << 63), 1 << 63, count))
    out.offset = torch.from_numpy(rng.integers(0, 1 << 40, count))
    return out


def overlay(rng: np.random.Generator, count: int, vocab_size: int, touched: int = 200) -> Overlay:
    """Bias, bans and penalties; every fourth row has none of them."""
    some = min(vocab_size, 30)
    lists = [[] if i % 4 == 3 else rng.choice(vocab_size, some, replace=False).tolist() for i in range(count)]
    bans = [[] if i % 4 == 3 else rng.choice(vocab_size, some, replace=False).tolist() for i in range(count)]
    values = [rng.normal(0, 4, len(ids)).tolist() for ids in lists]
    counts = np.zeros((count + 1, vocab_size), dtype=np.int32)
    seen = rng.random((count + 1, -(-vocab_size // 32) * 32)) < touched / vocab_size
    for row in counts:
        np.add.at(row, rng.integers(0, vocab_size, touched), 1)
    slot = np.where(np.arange(count) % 4 == 3, -1, rng.permutation(count + 1)[:count]).astype(np.int32)
    prefix = rng.integers(-1, vocab_size, (count, 3)).astype(np.int32)
    penalties = Penalties(
        *(torch.from_numpy(rng.uniform(low, high, count).astype(np.float32)) for low, high in ((0.7, 1.5), (-1, 1), (-0.5, 0.5))),
        torch.from_numpy(slot),
        torch.from_numpy(counts),
        torch.from_numpy(np.packbits(seen, axis=1, bitorder="little").view(np.int32)),
        torch.from_numpy(prefix),
    )
    return Overlay(TokenList.of(lists, values), penalties, TokenList.of(bans))
