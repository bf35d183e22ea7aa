"""Rows before the draw: logits with everything that says which of them may be used, described one row at a time."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kernels.plain.keep import Filters, Kept, keep
from kernels.plain.masks import Columns, RowMasks
from kernels.plain.overlay import Overlay
from kernels.plain.philox import Purpose, random_bits
from kernels.plain.rows import SampleRows, SampleStatus
from kernels.plain.weights import F32

_NO_COLUMNS = np.empty(0, dtype=np.int64)
_NO_LOGITS = np.empty(0, dtype=np.float32)


@dataclass(slots=True)
class LiveRow:
    """A row after mask and overlay: usable columns ascending and their adjusted logits; `kept` None: dead or held."""

    columns: Columns
    x: F32
    status: SampleStatus
    kept: Kept | None = None


@dataclass(slots=True)
class SampleInputs:
    """R rows of logits f32/f16/bf16 [R, columns], their parameters, masks (see `RowMasks`) and overlay.

    Without a bitmask and a row_status every row is unguided; with a bitmask alone every row is guided by the mask of its
    own index. Raises ValueError for wrong shapes and dtypes. Nothing here writes the logits.
    """

    logits: Tensor
    rows: SampleRows
    vocab_size: int
    bitmask: Tensor | None = None
    row_index: Tensor | None = None
    row_status: Tensor | None = None
    d2t: Tensor | None = None
    bit_offset: int = 0
    overlay: Overlay | None = None
    keep_ties: bool = False
    masks: RowMasks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.masks = RowMasks.of(
            self.logits, self.vocab_size, self.bitmask, self.row_index, self.row_status, self.bit_offset, self.d2t
        )
        if len(self.rows) != self.logits.shape[0]:
            raise ValueError(f"{len(self.rows)} rows of parameters for {self.logits.shape[0]} rows of logits")

    def live(self, i: int) -> LiveRow:
        """Row i with its kept set; depends on no banned logit."""
        row = self.adjusted(i)
        if row.x.size:
            row.kept = keep(row.columns, row.x, self.filters(i))
        return row

    def adjusted(self, i: int) -> LiveRow:
        """Row i after mask and overlay, NaN and -inf removed (both count as banned)."""
        if self.masks.held(i):
            return LiveRow(_NO_COLUMNS, _NO_LOGITS, SampleStatus.HELD)
        columns = self.masks.allowed(i)
        x = take(self.logits[i], columns)
        if self.overlay is not None:
            x = self.overlay.adjust(i, self.masks.tokens(columns), x)
        return usable(columns, x)

    def filters(self, i: int) -> Filters:
        rows = self.rows
        return Filters(float(rows.temperature[i]), int(rows.top_k[i]), float(rows.top_p[i]), float(rows.min_p[i]), self.keep_ties)

    def bits(self, i: int, purpose: int | None = None, branch: int = 0) -> int:
        """64 random bits of row i's stream for its own purpose or the one given."""
        seed, offset = (np.array(int(t[i]) & (1 << 64) - 1, dtype=np.uint64) for t in (self.rows.seed, self.rows.offset))
        use = int(self.rows.purpose[i]) if purpose is None else Purpose(purpose)
        return int(random_bits(seed, offset, np.array(use, np.uint64), branch))


def take(logits: Tensor, columns: Columns) -> F32:
    """fp32 logits of ascending columns of one row; the whole row without a copy where nothing is left out."""
    if columns.size == logits.numel():
        whole: F32 = logits.detach().to(torch.float32).numpy()
        return whole
    picked: F32 = logits.detach()[torch.from_numpy(columns)].to(torch.float32).numpy()
    return picked


def usable(columns: Columns, x: F32) -> LiveRow:
    status = SampleStatus.OK
    good = x > -np.inf
    if not good.all():
        status |= SampleStatus.NAN if np.isnan(x).any() else SampleStatus.OK
        columns, x = columns[good], x[good]
    if x.size == 0:
        return LiveRow(columns, x, status | SampleStatus.DEAD)
    status |= SampleStatus.POS_INF if np.isposinf(x.max()) else SampleStatus.OK
    return LiveRow(columns, x, status)
