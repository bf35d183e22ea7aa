"""The fused sampler: mask, overlay, filters and draw of a batch of rows, each row by itself."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kernels.plain import logprobs as logprob_rules
from kernels.plain.keep import Kept, draw
from kernels.plain.live import LiveRow, SampleInputs
from kernels.plain.overlay import Overlay
from kernels.plain.rows import RowDescriptor, SampleResult, SampleRows

LogprobMode = Literal["raw", "processed"]


def sample(logits: Tensor, rows: SampleRows, *, vocab_size: int, bitmask: Tensor | None = None,
           row_index: Tensor | None = None, row_status: Tensor | None = None, d2t: Tensor | None = None,
           bit_offset: int = 0, overlay: Overlay | None = None, keep_ties: bool = False,
           logprobs: LogprobMode | None = None, num_logprobs: int = 0, return_descriptor: bool = False,
           return_probs: bool = False) -> SampleResult:
    """One token a row from logits [R, columns]; the order is bias, penalties, bans, temperature, min_p, top_k, top_p.

    Masks, row_index, row_status, d2t and bit_offset as in `RowMasks`; a row without bitmask and status is unguided.
    Never depends on a banned logit (raw log-probabilities excepted), never writes the logits.
    """
    inputs = SampleInputs(logits, rows, vocab_size, bitmask, row_index, row_status, d2t, bit_offset, overlay, keep_ties)
    live = [inputs.live(i) for i in range(len(rows))]
    chosen = [_column(inputs, i, row) for i, row in enumerate(live)]
    result = SampleResult(_tokens(inputs, chosen), _i32([int(row.status) for row in live]))
    if logprobs is not None:
        logprob_rules.attach(result, logits, live, chosen, inputs.masks, logprobs, num_logprobs)
    if return_descriptor:
        result.descriptor = descriptor(live)
    if return_probs:
        result.probs = _probabilities(live, logits.shape[1])
    return result


def descriptor(live: list[LiveRow]) -> RowDescriptor:
    kept = [row.kept or Kept(row.columns, np.empty(0, np.uint64), 0, np.inf, -1, -np.inf, 0.0) for row in live]
    return RowDescriptor(
        xmax=_f32([k.xmax for k in kept]), threshold=_f32([k.threshold for k in kept]),
        tie_column=_i32([k.tie_column for k in kept]), mass=torch.tensor([k.total for k in kept], dtype=torch.int64),
        temperature=_f32([k.temperature for k in kept]))


def _column(inputs: SampleInputs, i: int, row: LiveRow) -> int | None:
    if row.kept is None:
        return None
    return int(row.kept.columns[0]) if row.kept.columns.size == 1 else draw(row.kept, inputs.bits(i))


def _tokens(inputs: SampleInputs, chosen: list[int | None]) -> Tensor:
    return _i32([-1 if c is None else int(inputs.masks.tokens(np.array([c]))[0]) for c in chosen])


def _probabilities(live: list[LiveRow], width: int) -> Tensor:
    """f32[R, width], the kept mass over its sum."""
    probs = np.zeros((len(live), width), dtype=np.float32)
    for row, out in zip(live, probs, strict=True):
        if row.kept is not None:
            out[row.kept.columns] = row.kept.masses.astype(np.float64) / row.kept.total
    return torch.from_numpy(probs)


def _i32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _f32(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)
