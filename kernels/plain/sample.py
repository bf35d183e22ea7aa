"""The fused sampler: mask, overlay, filters and draw of a batch of rows, each row by itself."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kernels.plain import logprobs as logprob_rules
from kernels.plain.keep import Filters, Kept, draw, keep
from kernels.plain.masks import Columns, RowMasks
from kernels.plain.overlay import Overlay
from kernels.plain.philox import random_bits
from kernels.plain.rows import RowDescriptor, SampleResult, SampleRows, SampleStatus
from kernels.plain.weights import F32

LogprobMode = Literal["raw", "processed"]


@dataclass(slots=True)
class LiveRow:
    """A row after mask and overlay: allowed columns ascending with their adjusted logits, NaN and -inf removed."""

    columns: Columns
    x: F32
    status: SampleStatus
    kept: Kept | None = None  # None: dead or held


def live_row(logits: F32, row: int, masks: RowMasks, overlay: Overlay | None) -> LiveRow:
    if masks.held(row):
        return LiveRow(np.empty(0, np.int64), np.empty(0, np.float32), SampleStatus.HELD)
    columns = masks.allowed(row)
    x = logits[columns]
    if overlay is not None:
        x = overlay.adjust(row, masks.tokens(columns), x)
    status = SampleStatus.OK
    usable = x > -np.inf
    if not usable.all():
        status |= SampleStatus.NAN if np.isnan(x).any() else SampleStatus.OK
        columns, x = columns[usable], x[usable]
    if x.size == 0:
        return LiveRow(columns, x, status | SampleStatus.DEAD)
    status |= SampleStatus.POS_INF if np.isposinf(x.max()) else SampleStatus.OK
    return LiveRow(columns, x, status)


def sample(logits: Tensor, rows: SampleRows, *, vocab_size: int, bitmask: Tensor | None = None,
           row_index: Tensor | None = None, row_status: Tensor | None = None, d2t: Tensor | None = None,
           bit_offset: int = 0, overlay: Overlay | None = None, keep_ties: bool = False,
           logprobs: LogprobMode | None = None, num_logprobs: int = 0, return_descriptor: bool = False,
           return_probs: bool = False) -> SampleResult:
    """One token a row from logits [R, columns]; the order is bias, penalties, bans, temperature, min_p, top_k, top_p.

    Masks, row_index, row_status, d2t and bit_offset as in `RowMasks`; a row without bitmask and status is unguided.
    Never depends on a banned logit (raw log-probabilities excepted), never writes the logits.
    """
    if len(rows) != logits.shape[0]:
        raise ValueError(f"{len(rows)} rows of parameters for {logits.shape[0]} rows of logits")
    masks = RowMasks.of(logits, vocab_size, bitmask, row_index, row_status, bit_offset, d2t)
    live = describe(logits, rows, masks, overlay, keep_ties)
    chosen = _draw_all(live, rows)
    token = [-1 if c is None else int(masks.tokens(np.array([c]))[0]) for c in chosen]
    result = SampleResult(_i32(token), _i32([int(r.status) for r in live]))
    if logprobs is not None:
        logprob_rules.attach(result, logits, live, chosen, masks, logprobs, num_logprobs)
    if return_descriptor:
        result.descriptor = descriptor(live)
    if return_probs:
        result.probs = probabilities(live, logits.shape[1])
    return result


def describe(logits: Tensor, rows: SampleRows, masks: RowMasks, overlay: Overlay | None,
             keep_ties: bool) -> list[LiveRow]:
    """Every row with its kept set."""
    values = logits.detach().to(torch.float32).numpy()
    live = [live_row(values[i], i, masks, overlay) for i in range(len(rows))]
    for i, row in enumerate(live):
        if row.x.size:
            row.kept = keep(row.columns, row.x, _filters(rows, i, keep_ties))
    return live


def descriptor(live: list[LiveRow]) -> RowDescriptor:
    kept = [row.kept or Kept(row.columns, np.empty(0, np.uint64), 0, np.inf, -1, -np.inf, 0.0) for row in live]
    return RowDescriptor(
        xmax=_f32([k.xmax for k in kept]), threshold=_f32([k.threshold for k in kept]),
        tie_column=_i32([k.tie_column for k in kept]), mass=torch.tensor([k.total for k in kept], dtype=torch.int64),
        temperature=_f32([k.temperature for k in kept]))


def probabilities(live: list[LiveRow], width: int) -> Tensor:
    """f32[R, width], the kept mass over its sum."""
    probs = np.zeros((len(live), width), dtype=np.float32)
    for row, out in zip(live, probs, strict=True):
        if row.kept is not None:
            out[row.kept.columns] = row.kept.masses.astype(np.float64) / row.kept.total
    return torch.from_numpy(probs)


def stream_bits(rows: SampleRows) -> list[int]:
    """The 64 random bits of each row."""
    seed, offset = (t.numpy().view(np.uint64) for t in (rows.seed.contiguous(), rows.offset.contiguous()))
    return [int(b) for b in random_bits(seed, offset, rows.purpose.numpy().astype(np.uint64))]


def _filters(rows: SampleRows, i: int, keep_ties: bool) -> Filters:
    k = int(rows.top_k[i])
    return Filters(float(rows.temperature[i]), k, float(rows.top_p[i]), float(rows.min_p[i]), keep_ties)


def _draw_all(live: list[LiveRow], rows: SampleRows) -> list[int | None]:
    bits = stream_bits(rows)
    return [None if row.kept is None else draw(row.kept, bits[i]) for i, row in enumerate(live)]


def _i32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _f32(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)
