"""The frame of a captured step: launchers of cuda/step.cu and step_frame.cu. Nothing is allocated and nothing waits, so all of it
may be captured."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from kernels.block import Block, Fields
from kernels.build import Variant
from kernels.inputs import CountedPenalties
from kernels.launch import I32, I64, P, launch
from kernels.logprobs import LogprobTensors
from kernels.reference import Overlay, SampleRows

THREADS, OPEN_THREADS = 256, 1024
FRAME = ("step_feed", "step_ready", "step_open", "step_set")
ASK_RAW, ASK_PROCESSED = 1, 2
_PARAMETERS = ("temperature", "top_p", "min_p", "top_k", "seed", "offset")


@dataclass(frozen=True, slots=True)
class StepSizes:
    """``slots`` and ``most`` (T) of the arrays; V ``vocab_size``; ``words`` of a mask row; ``listed``: entries that the lists of
    bias, of bans and of new counts hold; ``num_top`` alternatives told; ``kept`` rows of logits; ``cached`` mask rows that stay."""

    slots: int
    most: int
    vocab_size: int
    words: int
    listed: int = 1 << 18
    num_top: int = 20
    kept: int = 16
    cached: int = 0

    @property
    def rows(self) -> int:
        return self.slots * self.most


def descriptor_fields(s: StepSizes) -> Fields:
    """A launch's descriptor. ``sealed`` (the launch number) is written last. Of each slot: action (SlotAction), depth (positions
    that may be sampled), epoch, asks (0, ASK_RAW, ASK_PROCESSED), keep (where its logits go, -1), the penalties and whose counts
    they read (``penalised``, -1), ``fresh`` (its counts begin anew with ``fresh_*[fresh_start[slot] :]``: count + 2^16 * seen).
    Parameters [T, slots]. Mask rows [slots * T, words]; ``cached``: the row's place in the cache (-1: none), ``fill``: it is new
    there. Lists of row r are those from ``bias_from[slot]``, ``ban_from[r]`` on; on the device they lie from ``*_start[r]`` to
    ``*_start[r + 1]``."""
    f32, i32, i64 = np.float32, np.int32, np.int64
    slots, rows, starts, some = (s.slots,), (s.rows,), (s.rows + 1,), (s.listed,)
    return {
        "sealed": (i64, (1,)), "action": (i32, slots), "depth": (i32, slots), "epoch": (i64, slots),
        **{name: (kind, (s.most, s.slots)) for name, kind in zip(_PARAMETERS, (f32, f32, f32, i32, i64, i64), strict=True)},
        "cached": (i32, rows), "fill": (i32, rows),
        "asks": (i32, slots), "keep": (i32, slots), "bias_from": (i32, slots), "bias_start": (i32, starts), "ban_from": (i32, rows),
        "ban_start": (i32, starts), "repetition": (f32, slots), "presence": (f32, slots), "frequency": (f32, slots),
        "penalised": (i32, slots), "fresh": (i32, slots), "fresh_start": (i32, (s.slots + 1,)),
        "rows": (i32, (s.rows, s.words)), "bias_ids": (i32, some), "bias_values": (f32, some), "ban_ids": (i32, some),
        "fresh_ids": (i32, some), "fresh_counts": (i32, some),
    }  # fmt: skip


def draft_fields(s: StepSizes) -> Fields:
    """Drafts of a launch, written before it: drafts int32 [slots, T - 1], num_drafts int32 [slots]."""
    return {"drafts": (np.int32, (s.slots, max(s.most - 1, 1))), "num_drafts": (np.int32, (s.slots,))}


def result_fields(s: StepSizes) -> Fields:
    """What a launch did: launch (written last); waited_ns, how long a ready forward waited for its flag; token and status [T,
    slots]; action and epoch [slots]; log-probabilities of rows that asked, [T, slots] and [T, slots, n]."""
    rows, top = (s.most, s.slots), (s.most, s.slots, s.num_top)
    return {
        "launch": (np.int64, (1,)), "waited_ns": (np.int64, (1,)), "token": (np.int32, rows), "status": (np.int32, rows), "action":
        (np.int32, (s.slots,)), "epoch": (np.int64, (s.slots,)), "logprob": (np.float32, rows), "rank": (np.int32, rows), "top_ids":
        (np.int32, top), "top_logprobs": (np.float32, top),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlotState:
    """What the device owns of each slot. tokens int64 [slots, T]; positions, lengths, epoch int64 [slots]; counter int64 [1] (the
    last launch that committed); clock int64 [2], when the forward was done and when the wait was over; of the launch at work:
    action, num_drafts, emitted int32 [slots], drafts int32 [slots * (T - 1)]."""

    tokens: Tensor
    positions: Tensor
    lengths: Tensor
    epoch: Tensor
    counter: Tensor
    clock: Tensor
    action: Tensor
    drafts: Tensor
    num_drafts: Tensor
    emitted: Tensor

    @classmethod
    def empty(cls, slots: int, width: int, device: torch.device) -> SlotState:
        positions, lengths, epoch = (torch.zeros(slots, dtype=torch.int64, device=device) for _ in range(3))
        action, num_drafts, emitted = (torch.zeros(slots, dtype=torch.int32, device=device) for _ in range(3))
        return cls(
            torch.zeros((slots, width), dtype=torch.int64, device=device), positions, lengths, epoch,
            torch.zeros(1, dtype=torch.int64, device=device), torch.zeros(2, dtype=torch.int64, device=device), action,
            torch.zeros(max(slots * (width - 1), 1), dtype=torch.int32, device=device), num_drafts, emitted,
        )  # fmt: skip


def head_bytes(s: StepSizes) -> int:
    """Bytes of the device's copy of a descriptor's numbers."""
    return Block.layout({name: kind for name, kind in descriptor_fields(s).items() if name in HEAD})[1]


@dataclass(frozen=True, slots=True)
class StepRowTensors:
    """What the sampler reads: parameters, status and index of each row, mask rows [rows + cached, words]."""

    rows: SampleRows
    status: Tensor
    index: Tensor
    bitmask: Tensor


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """What a step with overlays and log-probabilities has besides: asks int32 [rows], the overlay of its rows with counts uint16
    and bits by slot, ``counted_slot`` int32 [slots] (-1: its tokens are not counted)."""

    asks: Tensor
    counted_slot: Tensor
    overlay: Overlay
    penalties: CountedPenalties


class _State(ctypes.Structure):
    _fields_ = [(field.name, P) for field in fields(SlotState)]

    @classmethod
    def of(cls, state: SlotState) -> _State:
        return cls(*(getattr(state, field.name).data_ptr() for field in fields(state)))


_NAMES = tuple(descriptor_fields(StepSizes(1, 1, 1, 1)))
HEAD = _NAMES[: _NAMES.index("rows")]
"""Arrays that step_open brings to the device as one; the others are read where they lie."""


class _Descriptor(ctypes.Structure):
    _fields_ = [(name, P) for name in _NAMES]


class _Rows(ctypes.Structure):
    _fields_ = [(name, P) for name in (*_PARAMETERS, "status", "index", "bitmask")]


class _Features(ctypes.Structure):
    _fields_ = [(name, P) for name in (
        "asks", "bias_start", "bias_ids", "bias_values", "ban_start", "ban_ids", "repetition", "presence", "frequency",
        "penalised", "prefix", "counted_slot", "counts", "seen", "counted")]  # fmt: skip


class _Begin(ctypes.Structure):
    _fields_ = [("descriptor", _Descriptor), ("state", _State), ("rows", _Rows), ("more", _Features), *(
        (name, I32) for name in ("words", "slots", "width", "most", "cache", "vocab_size"))]  # fmt: skip


class _Feed(ctypes.Structure):
    _fields_ = [("state", _State), ("drafts", P), ("num_drafts", P), ("slots", I32), ("most", I32)]


class _Open(ctypes.Structure):
    _fields_ = [("pinned", P), ("head", P), ("bytes", I32), ("pad", I32)]


class _Ready(ctypes.Structure):
    _fields_ = [("clock", P)]


class _Ask(ctypes.Structure):
    _fields_ = [*((name, P) for name in ("asks", "column", "raw", "processed")), ("rows", I32), ("pad", I32)]


class _Told(ctypes.Structure):
    _fields_ = [(name, P) for name in ("logprob", "rank", "top_ids", "top_logprobs")]

    @classmethod
    def of(cls, told: LogprobTensors) -> _Told:
        return cls(told.logprob.data_ptr(), told.rank.data_ptr(), told.top_ids.data_ptr(), told.top_logprobs.data_ptr())


class _Tell(ctypes.Structure):
    _fields_ = [("raw", _Told), ("processed", _Told), ("to", _Told), *((n, P) for n in ("asks", "token", "keep", "action", "logits",
                "kept")), ("stride", I64), *((n, I32) for n in ("n", "slots", "width", "vocab_size"))]  # fmt: skip


class _Commit(ctypes.Structure):
    _fields_ = [("state", _State), *((n, P) for n in ("token", "status", "emitted", "out_token", "out_status", "out_action",
                "out_epoch", "out_waited", "out_launch")), *((n, I32) for n in ("slots", "active", "width", "most"))]  # fmt: skip


class _Set(ctypes.Structure):
    _fields_ = [
        ("state", _State),
        *((name, I64) for name in ("token", "position", "length", "epoch")),
        ("slot", I32),
        ("most", I32),
    ]


def variants() -> list[Variant]:
    return [_variant(f"step_{name}") for name in ("feed", "ready", "open", "begin", "ask", "tell", "commit", "set")]


def _variant(kernel: str) -> Variant:
    file = "step_frame.cu" if kernel in FRAME else "step.cu"
    return Variant.of(file, kernel, NT=THREADS)


def step_feed(drafts: Block, state: SlotState, active: int, stream: int) -> None:
    """Before the forward of the first ``active`` slots: their drafts behind their golden tokens."""
    args = _Feed(_State.of(state), *drafts.addresses(("drafts", "num_drafts")), active, state.tokens.shape[1])
    launch(_variant("step_feed"), args, grid=(1, 1), block=THREADS, stream=stream)


def step_ready(state: SlotState, stream: int) -> None:
    """Behind the forward, before the wait: the time."""
    launch(_variant("step_ready"), _Ready(state.clock.data_ptr()), grid=(1, 1), block=1, stream=stream)


def step_begin(
    descriptor: Block, head: Tensor, state: SlotState, out: StepRowTensors, more: StepFeatures | None, sizes: StepSizes, width: int,
    stream: int,
) -> None:  # fmt: skip
    """Behind the wait: actions, parameters, guided rows and overlays of this launch, from pinned memory to the device. ``head``
    uint8 gets the descriptor's numbers, those of a step without features where ``more`` is None."""
    count, num_bytes = len(out.rows), descriptor.offset("asks" if more is None else "rows")
    start = _Open(descriptor.address("sealed"), head.data_ptr(), num_bytes, 0)
    launch(_variant("step_open"), start, grid=(1, 1), block=OPEN_THREADS, stream=stream)
    where = [head.data_ptr() + descriptor.offset(name) if name in HEAD else descriptor.address(name) for name in _NAMES]
    rows = _Rows(*(getattr(out.rows, name).data_ptr() for name in _PARAMETERS), *(t.data_ptr() for t in (
        out.status, out.index, out.bitmask)))  # fmt: skip
    args = _Begin(
        _Descriptor(*where), _State.of(state), rows, _Features() if more is None else _features(more),
        sizes.words, sizes.slots, width, sizes.most, sizes.rows, sizes.vocab_size,
    )  # fmt: skip
    launch(_variant("step_begin"), args, grid=(count, 1), block=THREADS, stream=stream)


def _features(more: StepFeatures) -> _Features:
    bias, bans, p = more.overlay.bias, more.overlay.bans, more.penalties
    if bias is None or bans is None or bias.values is None or p.counted is None:
        raise ValueError("a step with features has lists, counts and their bits")
    tensors: Sequence[Tensor | None] = (
        more.asks, bias.start, bias.ids, bias.values, bans.start, bans.ids, p.repetition, p.presence, p.frequency, p.slot,
        p.prefix, more.counted_slot, p.counts, p.seen, p.counted,
    )  # fmt: skip
    return _Features(*(None if tensor is None else tensor.data_ptr() for tensor in tensors))


def step_ask(asks: Tensor, column: Tensor, raw: Tensor, processed: Tensor, stream: int) -> None:
    """Columns int32 [rows] whose log-probabilities of either kind are wanted, -1 where they are not."""
    rows = raw.numel()
    args = _Ask(*(t.data_ptr() for t in (asks, column, raw, processed)), rows, 0)
    launch(_variant("step_ask"), args, grid=(-(-rows // THREADS), 1), block=THREADS, stream=stream)


def step_tell(
    told: tuple[LogprobTensors, LogprobTensors], result: Block, descriptor: Block, head: Tensor, more: StepFeatures, state:
    SlotState, token: Tensor, logits: Tensor, kept: Tensor, sizes: StepSizes, width: int, stream: int,
) -> None:  # fmt: skip
    """Log-probabilities (raw, processed) of the rows that asked, and the logits of the slots that keep them."""
    to = _Told(*result.addresses(("logprob", "rank", "top_ids", "top_logprobs")))
    pointers = (more.asks.data_ptr(), token.data_ptr(), head.data_ptr() + descriptor.offset("keep"), state.action.data_ptr(),
    logits.data_ptr(),
                kept.data_ptr())  # fmt: skip
    args = _Tell(_Told.of(told[0]), _Told.of(told[1]), to, *pointers, logits.stride(0), sizes.num_top, sizes.slots, width,
                 sizes.vocab_size)  # fmt: skip
    launch(_variant("step_tell"), args, grid=(logits.shape[0], 1), block=THREADS, stream=stream)


def step_commit(
    state: SlotState, token: Tensor, status: Tensor, emitted: Tensor | None, result: Block, sizes: StepSizes, width: int,
    stream: int,
) -> None:  # fmt: skip
    """After sampling: commits the slots that got tokens and tells the host. ``emitted`` int32 [active]: of a slot's rows."""
    outs = result.addresses(("token", "status", "action", "epoch", "waited_ns", "launch"))
    pointers = (token.data_ptr(), status.data_ptr(), None if emitted is None else emitted.data_ptr())
    active = token.numel() // width
    args = _Commit(_State.of(state), *pointers, *outs, sizes.slots, active, width, sizes.most)
    launch(_variant("step_commit"), args, grid=(1, 1), block=THREADS, stream=stream)


def step_set(state: SlotState, slot: int, *, token: int, position: int, length: int, epoch: int, stream: int) -> None:
    """Writes one slot's state; the values travel with the launch, so nothing is copied."""
    args = _Set(_State.of(state), token, position, length, epoch, slot, state.tokens.shape[1])
    launch(_variant("step_set"), args, grid=(1, 1), block=1, stream=stream)
