"""What goes into and comes out of a sampling launch, row by row."""

from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

import torch
from torch import Tensor


class RowStatus(IntEnum):
    """How a row is treated. HOLD (and any unknown value): token -1, nothing else of the row is read or written."""

    UNGUIDED = 0
    GUIDED = 1
    HOLD = 2


class SampleStatus(IntFlag):
    """What the sampler says of a row; bits combine, except HELD, which stands alone."""

    OK = 0
    DEAD = 1
    NAN = 2
    POS_INF = 4
    HELD = 8


def _absent() -> Tensor:
    return torch.empty(0, dtype=torch.int32)


@dataclass(slots=True)
class SampleRows:
    """Parameters of R rows, 1-D tensors of length R.

    temperature f32 (<= 0 is greedy), top_k i32 (1 is greedy; <= 0 or >= V is off), top_p f32 (<= 0 is greedy; >= 1 is
    off), min_p f32 (<= 0 is off), seed i64 (a uint64 reinterpreted), offset i64 (absolute output position),
    purpose i32 (`Purpose`; SAMPLE if not given). Raises ValueError for another dtype, rank or length.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    offset: Tensor
    purpose: Tensor = field(default_factory=_absent)

    def __post_init__(self) -> None:
        rows = self.temperature.numel()
        if self.purpose.numel() == 0:
            self.purpose = torch.zeros(rows, dtype=torch.int32)
        for name, dtype in _ROW_DTYPES.items():
            value: Tensor = getattr(self, name)
            if value.dtype != dtype or value.ndim != 1 or value.numel() != rows:
                raise ValueError(f"{name} must be {dtype}[{rows}], not {value.dtype}{list(value.shape)}")

    def __len__(self) -> int:
        return self.temperature.numel()

    @classmethod
    def uniform(
        cls,
        rows: int,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        offset: int = 0,
        purpose: int = 0,
    ) -> "SampleRows":
        """The same parameters in every row; the seed may be any uint64."""
        signed = seed - (1 << 64) if seed >= 1 << 63 else seed
        values = (temperature, top_k, top_p, min_p, signed, offset, purpose)
        return cls(*(torch.full((rows,), v, dtype=d) for v, d in zip(values, _ROW_DTYPES.values(), strict=True)))


_ROW_DTYPES = {
    "temperature": torch.float32,
    "top_k": torch.int32,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "seed": torch.int64,
    "offset": torch.int64,
    "purpose": torch.int32,
}


@dataclass(slots=True)
class RowDescriptor:
    """A row's distribution in six numbers; with the logit of a token (mask and overlay applied) they give p(token).

    A column is kept iff its adjusted logit x is above `threshold`, or equals it and the column is <= `tie_column`.
    Its weight is `weights(x, xmax, temperature)` in units of 2^-44, its probability weight / mass. temperature 0: the
    row is one-hot at `tie_column` with weight = mass = 2^44. mass 0: dead or held row, every probability is 0.
    xmax, threshold, temperature f32[R]; tie_column i32[R]; mass i64[R].
    """

    xmax: Tensor
    threshold: Tensor
    tie_column: Tensor
    mass: Tensor
    temperature: Tensor


@dataclass(slots=True)
class SampleResult:
    """token i32[R] (target id, -1 if dead or held), status i32[R] (`SampleStatus` bits); the rest only if asked for.

    logprob f32[R], rank i32[R] (1 = most likely; 0 and -inf where there is no token); top_ids i32[R, n] padded -1,
    top_logprobs f32[R, n] padded -inf; descriptor; probs f32[R, columns] (0 where not kept).
    """

    token: Tensor
    status: Tensor
    logprob: Tensor | None = None
    rank: Tensor | None = None
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None
    descriptor: RowDescriptor | None = None
    probs: Tensor | None = None
