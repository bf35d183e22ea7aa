"""What a captured step works on: tensors of the device, and of each place of the ring what host and device share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.block import Block
from kernels.inputs import CountedPenalties
from kernels.logprobs import LogprobTensors
from kernels.reference import Drafts, Overlay, SampleRows, TokenList, VerifyResult
from kernels.sample import SampleOutput
from kernels.step import (
    SlotState,
    StepFeatures,
    StepRowTensors,
    StepSizes,
    descriptor_fields,
    draft_fields,
    head_bytes,
    result_fields,
)
from kernels.verify import empty_result


class StepShape(NamedTuple):
    """One captured graph: the first ``active`` slots, ``width`` positions each, with or without overlays and log-probabilities."""

    active: int
    width: int
    full: bool


@dataclass(frozen=True, slots=True)
class LaunchBuffers:
    """What belongs to one place of the ring: drafts, descriptor and result; ``kept`` float32 [kept, V] on the device, logits that
    are told; the device address of its flag."""

    drafts: Block
    descriptor: Block
    result: Block
    kept: torch.Tensor
    flag_address: int = 0

    @classmethod
    def empty(cls, sizes: StepSizes, device: torch.device, *, pinned: bool, flag_address: int = 0) -> LaunchBuffers:
        drafts, descriptor, result = (
            Block(fields(sizes), device, pinned=pinned) for fields in (draft_fields, descriptor_fields, result_fields)
        )
        made = cls(drafts, descriptor, result, torch.empty((sizes.kept, sizes.vocab_size), device=device), flag_address)
        made.descriptor["cached"][:] = -1
        made.descriptor["keep"][:] = -1
        return made


@dataclass(frozen=True, slots=True)
class StepTensors:
    """The tensors of one shape: the first of those that all shapes share. ``head`` uint8: the numbers of the descriptor.
    ``verified`` where there is more than one position, ``more`` and what follows where the shape is full."""

    state: SlotState
    head: torch.Tensor
    rows: StepRowTensors
    output: SampleOutput
    drafts: Drafts | None
    verified: VerifyResult | None
    more: StepFeatures | None
    columns: tuple[torch.Tensor, torch.Tensor] | None
    told: tuple[LogprobTensors, LogprobTensors] | None


class StepBuffers:
    """Everything is made once; ``of`` gives a shape's part of it."""

    def __init__(self, sizes: StepSizes, device: torch.device) -> None:
        self.sizes, self._device, rows = sizes, device, sizes.rows
        self.state = SlotState.empty(sizes.slots, sizes.most, device)
        self._head = torch.zeros(head_bytes(sizes), dtype=torch.uint8, device=device)
        kinds = (torch.float32, torch.int32, torch.float32, torch.float32, torch.int64, torch.int64, torch.int32)
        self._parameters = [torch.zeros(rows, dtype=kind, device=device) for kind in kinds]
        self._status, self._index, *self._columns = (self._i32(rows) for _ in range(4))
        self._bitmask = self._i32((rows + sizes.cached, sizes.words))
        self._output = SampleOutput.empty(rows, device, descriptor=True)
        self._told = [LogprobTensors.empty(rows, sizes.num_top, device) for _ in range(2)]
        self._asks, self._counted_slot = self._i32(rows), self._i32(sizes.slots)
        self._bias = TokenList(self._i32(rows + 1), self._i32(sizes.listed), torch.zeros(sizes.listed, device=device))
        self._bans = TokenList(self._i32(rows + 1), self._i32(sizes.listed))
        self._prefix = self._i32(rows * max(sizes.most - 1, 1))
        repetition, presence, frequency = (torch.zeros(rows, device=device) for _ in range(3))
        self._penalties = CountedPenalties(
            repetition, presence, frequency, self._i32(rows),
            torch.zeros((sizes.slots, sizes.vocab_size), dtype=torch.uint16, device=device), self._i32((sizes.slots, sizes.words)),
            counted=self._i32((sizes.slots, sizes.words)),
        )  # fmt: skip

    def of(self, shape: StepShape) -> StepTensors:
        count = shape.active * shape.width
        rows = StepRowTensors(
            SampleRows(*(each[:count] for each in self._parameters)), self._status[:count], self._index[:count], self._bitmask
        )
        out = self._output
        output = SampleOutput(out.token[:count], out.status[:count], out.column[:count], out.descriptor if shape.full else None)
        drafts = verified = None
        if shape.width > 1:
            n = shape.width - 1
            drafts = Drafts(self.state.drafts[: shape.active * n].view(shape.active, n), self.state.num_drafts[: shape.active])
            verified = empty_result(shape.active, n, self._device)
        if not shape.full:
            return StepTensors(self.state, self._head, rows, output, drafts, verified, None, None, None)
        raw, processed = (each[:count] for each in self._columns)
        told = (self._first(self._told[0], count), self._first(self._told[1], count))
        return StepTensors(self.state, self._head, rows, output, drafts, verified, self._features(shape), (raw, processed), told)

    def _features(self, shape: StepShape) -> StepFeatures:
        count, p, n = shape.active * shape.width, self._penalties, shape.width - 1
        penalties = CountedPenalties(
            p.repetition[:count], p.presence[:count], p.frequency[:count], p.slot[:count], p.counts, p.seen,
            self._prefix[: count * n].view(count, n) if n else None, p.counted,
        )  # fmt: skip
        bias = TokenList(self._bias.start[: count + 1], self._bias.ids, self._bias.values)
        bans = TokenList(self._bans.start[: count + 1], self._bans.ids)
        return StepFeatures(self._asks[:count], self._counted_slot[: shape.active], Overlay(bias, penalties, bans), penalties)

    @staticmethod
    def _first(told: LogprobTensors, count: int) -> LogprobTensors:
        return LogprobTensors(told.logprob[:count], told.rank[:count], told.top_ids[:count], told.top_logprobs[:count])

    def _i32(self, shape: int | tuple[int, int]) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self._device)
