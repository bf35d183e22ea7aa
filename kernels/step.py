"""The frame of a captured step: launchers of cuda/step.cu. Nothing is allocated and nothing waits, so all of it may be captured."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kernels.build import Variant
from kernels.launch import I32, I64, P, launch
from kernels.reference import SampleRows

THREADS = 256


@dataclass(frozen=True, slots=True)
class SlotState:
    """What the device owns of each slot. tokens int64 [slots, T]; positions, lengths, epoch int64 [slots]; counter
    int64 [1] (the last launch that committed); action int32 [slots] (of the launch at work)."""

    tokens: Tensor
    positions: Tensor
    lengths: Tensor
    epoch: Tensor
    counter: Tensor
    action: Tensor

    @classmethod
    def empty(cls, slots: int, width: int, device: torch.device) -> SlotState:
        positions, lengths, epoch = (torch.zeros(slots, dtype=torch.int64, device=device) for _ in range(3))
        return cls(
            tokens=torch.zeros((slots, width), dtype=torch.int64, device=device), positions=positions, lengths=lengths, epoch=epoch,
            counter=torch.zeros(1, dtype=torch.int64, device=device), action=torch.zeros(slots, dtype=torch.int32, device=device),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PinnedDescriptor:
    """A launch's descriptor in pinned memory: sealed int64 [1] (the launch number, written last), action int32, epoch int64, the
    sampling parameters, all [slots]; rows int32 [slots, W]."""

    sealed: Tensor
    action: Tensor
    epoch: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    seed: Tensor
    offset: Tensor
    rows: Tensor

    @classmethod
    def empty(cls, slots: int, words: int) -> PinnedDescriptor:
        i32, i64, f32 = torch.int32, torch.int64, torch.float32
        kinds = {"sealed": i64, "action": i32, "epoch": i64, "temperature": f32, "top_p": f32, "min_p": f32}
        kinds |= {"top_k": i32, "seed": i64, "offset": i64}
        made = {name: torch.zeros(1 if name == "sealed" else slots, dtype=kind, pin_memory=True) for name, kind in kinds.items()}
        return cls(**made, rows=torch.zeros((slots, words), dtype=i32, pin_memory=True))


@dataclass(frozen=True, slots=True)
class PinnedResult:
    """What a launch did, in pinned memory: launch int64 [1] (written last), token, status, action int32 and epoch int64 [slots]."""

    launch: Tensor
    token: Tensor
    status: Tensor
    action: Tensor
    epoch: Tensor

    @classmethod
    def empty(cls, slots: int) -> PinnedResult:
        made = [torch.zeros(size, dtype=kind, pin_memory=True) for kind, size in (
            (torch.int64, 1), (torch.int32, slots), (torch.int32, slots), (torch.int32, slots), (torch.int64, slots))]  # fmt: skip
        return cls(*made)


class _State(ctypes.Structure):
    _fields_ = [(name, P) for name in ("tokens", "positions", "lengths", "epoch", "counter", "action")]

    @classmethod
    def of(cls, state: SlotState) -> _State:
        return cls(*(getattr(state, field.name).data_ptr() for field in fields(state)))


class _Descriptor(ctypes.Structure):
    _fields_ = [(field.name, P) for field in fields(PinnedDescriptor)]


class _Rows(ctypes.Structure):
    _fields_ = [(name, P) for name in ("temperature", "top_p", "min_p", "top_k", "seed", "offset", "status", "bitmask")]


class _Begin(ctypes.Structure):
    _fields_ = [("descriptor", _Descriptor), ("state", _State), ("rows", _Rows), ("words", I32), ("width", I32)]


class _Commit(ctypes.Structure):
    _fields_ = [("state", _State), *((name, P) for name in ("token", "status", "out_token", "out_status", "out_action", "out_epoch",
                                                            "out_launch")), ("slots", I32), ("width", I32)]  # fmt: skip


class _Set(ctypes.Structure):
    _fields_ = [
        ("state", _State),
        *((name, I64) for name in ("token", "position", "length", "epoch")),
        ("slot", I32),
        ("width", I32),
    ]


def variants() -> list[Variant]:
    return [_variant(name) for name in ("step_begin", "step_commit", "step_set")]


def _variant(kernel: str) -> Variant:
    return Variant.of("step.cu", kernel, NT=THREADS)


def step_begin(
    descriptor: PinnedDescriptor, state: SlotState, rows: SampleRows, status: Tensor, bitmask: Tensor, stream: int
) -> None:
    """Behind the wait: actions, parameters and guided rows of this launch, from pinned memory to the device."""
    slots, width = state.tokens.shape
    pinned = _Descriptor(*(getattr(descriptor, field.name).data_ptr() for field in fields(descriptor)))
    names = ("temperature", "top_p", "min_p", "top_k", "seed", "offset")
    out = _Rows(*(getattr(rows, name).data_ptr() for name in names), status.data_ptr(), bitmask.data_ptr())
    args = _Begin(pinned, _State.of(state), out, bitmask.shape[1], width)
    launch(_variant("step_begin"), args, grid=(slots, 1), block=THREADS, stream=stream)


def step_commit(state: SlotState, token: Tensor, status: Tensor, result: PinnedResult, stream: int) -> None:
    """After sampling: commits the slots that got a token and tells the host."""
    slots, width = state.tokens.shape
    outs = (result.token, result.status, result.action, result.epoch, result.launch)
    args = _Commit(_State.of(state), token.data_ptr(), status.data_ptr(), *(out.data_ptr() for out in outs), slots, width)
    launch(_variant("step_commit"), args, grid=(1, 1), block=THREADS, stream=stream)


def step_set(state: SlotState, slot: int, *, token: int, position: int, length: int, epoch: int, stream: int) -> None:
    """Writes one slot's state; the values travel with the launch, so nothing is copied."""
    args = _Set(_State.of(state), token, position, length, epoch, slot, state.tokens.shape[1])
    launch(_variant("step_set"), args, grid=(1, 1), block=1, stream=stream)
