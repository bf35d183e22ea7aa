"""Penalties in place and the state they read, changed after each step: launchers of cuda/penalties.cu and counts.cu."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.build import Variant
from kernels.launch import DTYPES, I32, I64, P, check_logits, check_vector, launch, pointer, stream_of
from kernels.overlay import OverlayArgs, overlay_args
from kernels.reference import Overlay, Penalties

_THREADS = 256


class _PenaltyArgs(ctypes.Structure):
    _fields_ = [("logits", P), ("stride", I64), ("overlay", OverlayArgs), ("width", I32), ("vocab_size", I32)]


class _CountArgs(ctypes.Structure):
    _fields_ = [
        *((name, P) for name in ("counts", "seen", "counted", "tokens", "num_tokens", "slot", "parents", "moved")),
        ("counts_stride", I64),
        ("seen_stride", I64),
        ("counted_stride", I64),
        *((name, I32) for name in ("batch", "most", "vocab_size", "counts_bytes")),
    ]


class _DecayArgs(ctypes.Structure):
    _fields_ = [
        *((name, P) for name in ("top_p", "tokens", "num_tokens", "slot", "initial", "decay", "minimum", "reset_id")),
        ("batch", I32),
        ("most", I32),
    ]


def variants() -> list[Variant]:
    return [
        *(Variant.of("penalties.cu", "penalties", DTYPE=d, NT=_THREADS) for d in DTYPES.values()),
        *(_count_variant(name) for name in ("update_counts", "reset_counts", "move_counts", "update_top_p_decay")),
    ]


def penalties_into(logits: Tensor, state: Penalties, *, vocab_size: int) -> None:
    """In place on logits [R, columns], for engines that sample elsewhere; columns at and above V are not touched."""
    dtype, (rows, width) = check_logits(logits), logits.shape
    width = min(width, vocab_size)
    args = _PenaltyArgs(pointer(logits), logits.stride(0), overlay_args(Overlay(penalties=state), rows), width, vocab_size)
    if rows and width:
        launch(variants()[dtype], args, grid=(-(-width // _THREADS), rows), block=_THREADS, stream=stream_of(logits))


def update_counts(counts: Tensor, tokens: Tensor, num_tokens: Tensor, slot: Tensor, counted: Tensor | None = None) -> None:
    """Add the committed tokens of B sequences to their slots; `counted` int32[S, ceil(V/32)] gets a bit for each."""
    batch, most = tokens.shape
    args = _counts(counts, None, counted, tokens, num_tokens, slot, batch)
    args.batch, args.most = batch, most
    _run("update_counts", args, batch * most, tokens)


def reset_counts(
    counts: Tensor,
    seen: Tensor,
    slot: Tensor,
    prompt: Tensor,
    length: Tensor,
    ignore_length: int = 0,
    counted: Tensor | None = None,
) -> None:
    """Give slot i32[1] to a new prompt i32[length[0]]: its first `ignore_length` tokens weigh in for repetition only."""
    args = _counts(counts, seen, counted, prompt, length, slot, 1)
    args.batch, args.most = 1, ignore_length
    _run("reset_counts", args, 1, prompt)


def reparent_counts(counts: Tensor, slots: Tensor, parents: Tensor, workspace: Tensor) -> None:
    """Beam slots i32[n] take over the counts of their parents' slots, all at once; workspace [n, V] like counts."""
    n = check_vector("slots", slots, torch.int32, 0).numel()
    if workspace.dtype != counts.dtype or workspace.numel() < n * counts.shape[1] or not workspace.is_contiguous():
        raise ValueError(f"workspace must be contiguous {counts.dtype}[{n}, {counts.shape[1]}]")
    for parent in (check_vector("parents", parents, torch.int32, n), None):
        args = _CountArgs(
            counts=pointer(counts),
            counts_stride=counts.stride(0),
            counts_bytes=counts.itemsize,
            slot=pointer(slots),
            parents=pointer(parent),
            moved=pointer(workspace),
            batch=n,
            vocab_size=counts.shape[1],
        )
        if n:
            launch(
                _count_variant("move_counts"),
                args,
                grid=(-(-counts.shape[1] // _THREADS), n),
                block=_THREADS,
                stream=stream_of(slots),
            )


def update_top_p_decay(
    top_p: Tensor,
    tokens: Tensor,
    num_tokens: Tensor,
    slot: Tensor,
    *,
    initial: Tensor,
    decay: Tensor,
    minimum: Tensor,
    reset_id: Tensor,
) -> None:
    """After each committed token: p = initial if token == reset_id else max(p * decay, minimum); all f32[S], ids i32[S]."""
    batch, most = tokens.shape
    floats = (
        check_vector(n, t, torch.float32, 1)
        for n, t in (("top_p", top_p), ("initial", initial), ("decay", decay), ("minimum", minimum))
    )
    first, *rest = (pointer(t) for t in floats)
    args = _DecayArgs(
        first,
        pointer(tokens),
        pointer(check_vector("num_tokens", num_tokens, torch.int32, batch)),
        pointer(check_vector("slot", slot, torch.int32, batch)),
        *rest,
        pointer(check_vector("reset_id", reset_id, torch.int32, 1)),
        batch,
        most,
    )
    _run("update_top_p_decay", args, batch, tokens)


def _counts(
    counts: Tensor, seen: Tensor | None, counted: Tensor | None, tokens: Tensor, num_tokens: Tensor, slot: Tensor, batch: int
) -> _CountArgs:
    if counts.dtype not in (torch.int32, torch.uint16) or counts.ndim != 2 or not tokens.is_contiguous():
        raise ValueError(f"counts must be int32 or uint16 [S, V] and tokens contiguous, not {counts.dtype}")
    check_vector("num_tokens", num_tokens, torch.int32, batch)
    return _CountArgs(
        pointer(counts),
        pointer(seen),
        pointer(counted),
        pointer(tokens),
        pointer(num_tokens),
        pointer(check_vector("slot", slot, torch.int32, batch)),
        None,
        None,
        counts.stride(0),
        0 if seen is None else seen.stride(0),
        0 if counted is None else counted.stride(0),
        0,
        0,
        counts.shape[1],
        counts.itemsize,
    )


def _run(kernel: str, args: ctypes.Structure, threads: int, where: Tensor) -> None:
    if threads:
        launch(_count_variant(kernel), args, grid=(-(-threads // _THREADS), 1), block=_THREADS, stream=stream_of(where))


def _count_variant(kernel: str) -> Variant:
    return Variant.of("counts.cu", kernel, NT=_THREADS)
