"""The fused sampler: mask, overlay, filters and draw of a batch of rows, each row by itself."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kernels.plain.keep import Kept, draw
from kernels.plain.live import SampleInputs
from kernels.plain.logprobs import LogprobOutput
from kernels.plain.overlay import Overlay
from kernels.plain.rows import RowDescriptor, SampleResult, SampleRows
from kernels.plain.weights import F32

LogprobMode = Literal["raw", "processed"]
_NOTHING = Kept(np.empty(0, np.int64), np.empty(0, np.uint64), 0, np.inf, -1, -np.inf, 0.0)


def sample(
    logits: Tensor,
    rows: SampleRows,
    *,
    vocab_size: int,
    bitmask: Tensor | None = None,
    row_index: Tensor | None = None,
    row_status: Tensor | None = None,
    d2t: Tensor | None = None,
    bit_offset: int = 0,
    overlay: Overlay | None = None,
    keep_ties: bool = False,
    logprobs: LogprobMode | None = None,
    num_logprobs: int = 0,
    return_descriptor: bool = False,
    return_probs: bool = False,
) -> SampleResult:
    """One token a row from logits [R, columns]; the order is bias, penalties, bans, temperature, min_p, top_k, top_p.

    Masks, row_index, row_status, d2t and bit_offset as in `RowMasks`; a row without bitmask and status is unguided.
    Never depends on a banned logit (raw log-probabilities excepted), never writes the logits.
    """
    inputs = SampleInputs(logits, rows, vocab_size, bitmask, row_index, row_status, d2t, bit_offset, overlay, keep_ties)
    out = _Outputs.of(inputs, logprobs, num_logprobs, return_probs)
    for i in range(len(rows)):
        out.fill(i, inputs)
    return out.result(return_descriptor)


@dataclass(slots=True)
class _Outputs:
    """What a launch leaves, filled row by row."""

    token: list[int]
    status: list[int]
    describing: list[Kept]
    logprobs: LogprobOutput | None
    probs: F32 | None

    @classmethod
    def of(cls, inputs: SampleInputs, mode: LogprobMode | None, n: int, return_probs: bool) -> "_Outputs":
        rows, width = inputs.logits.shape
        return cls(
            [],
            [],
            [],
            None if mode is None else LogprobOutput.of(mode, rows, n),
            np.zeros((rows, width), np.float32) if return_probs else None,
        )

    def fill(self, i: int, inputs: SampleInputs) -> None:
        live = inputs.live(i)
        kept, column = live.kept or _NOTHING, -1
        if live.kept is not None:
            column = int(kept.columns[0]) if kept.columns.size == 1 else draw(kept, inputs.bits(i))
        self.token.append(-1 if column < 0 else int(inputs.masks.tokens(np.array([column]))[0]))
        self.status.append(int(live.status))
        self.describing.append(replace(kept, columns=_NOTHING.columns, masses=_NOTHING.masses))
        if self.logprobs is not None:
            self.logprobs.fill(i, inputs.logits[i], live, column, inputs.masks)
        if self.probs is not None and kept.total:
            self.probs[i, kept.columns] = kept.masses.astype(np.float64) / kept.total

    def result(self, return_descriptor: bool) -> SampleResult:
        result = SampleResult(_i32(self.token), _i32(self.status))
        if self.logprobs is not None:
            self.logprobs.attach(result)
        result.descriptor = _descriptor(self.describing) if return_descriptor else None
        result.probs = None if self.probs is None else torch.from_numpy(self.probs)
        return result


def _descriptor(kept: list[Kept]) -> RowDescriptor:
    return RowDescriptor(
        xmax=_f32([k.xmax for k in kept]),
        threshold=_f32([k.threshold for k in kept]),
        tie_column=_i32([k.tie_column for k in kept]),
        mass=torch.tensor([k.total for k in kept], dtype=torch.int64),
        temperature=_f32([k.temperature for k in kept]),
    )


def _i32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _f32(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)
