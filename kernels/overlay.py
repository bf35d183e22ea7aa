"""Argument block of bias, penalties and bans (kernels.reference.Overlay) for the kernels that read it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.launch import I32, I64, P, check_vector, pointer
from kernels.reference import Overlay, Penalties, TokenList


class OverlayArgs(ctypes.Structure):
    """OverlayArgs of overlay.cuh."""

    _fields_ = [
        *(
            (name, P)
            for name in (
                "bias_start",
                "bias_ids",
                "bias_values",
                "ban_start",
                "ban_ids",
                "repetition",
                "presence",
                "frequency",
                "slot",
                "counts",
                "seen",
                "counted",
                "prefix",
            )
        ),
        ("counts_stride", I64),
        ("seen_stride", I64),
        ("counted_stride", I64),
        ("counts_bytes", I32),
        ("prefix_length", I32),
    ]


def overlay_args(overlay: Overlay | None, rows: int) -> OverlayArgs:
    if overlay is None:
        return OverlayArgs()
    args = OverlayArgs(
        *_list("bias", overlay.bias, rows),
        pointer(None if overlay.bias is None else overlay.bias.values),
        *_list("bans", overlay.bans, rows),
    )
    if overlay.penalties is not None:
        _penalties(args, overlay.penalties, rows)
    return args


def _list(name: str, tokens: TokenList | None, rows: int) -> tuple[int | None, int | None]:
    if tokens is None:
        return None, None
    check_vector(f"{name}.start", tokens.start, torch.int32, rows + 1)
    return pointer(tokens.start), pointer(check_vector(f"{name}.ids", tokens.ids, torch.int32, 0))


def _penalties(args: OverlayArgs, p: Penalties, rows: int) -> None:
    for name in ("repetition", "presence", "frequency"):
        setattr(args, name, pointer(check_vector(name, getattr(p, name), torch.float32, rows)))
    args.slot = pointer(check_vector("slot", p.slot, torch.int32, rows))
    if p.counts.dtype not in (torch.int32, torch.uint16) or p.seen.dtype != torch.int32:
        raise ValueError(f"counts must be int32 or uint16 and seen int32, not {p.counts.dtype} and {p.seen.dtype}")
    args.counts, args.counts_stride, args.counts_bytes = pointer(p.counts), p.counts.stride(0), p.counts.itemsize
    args.seen, args.seen_stride = pointer(p.seen), p.seen.stride(0)
    counted: Tensor | None = getattr(p, "counted", None)
    if counted is not None:
        args.counted, args.counted_stride = pointer(counted), counted.stride(0)
    if p.prefix is not None:
        args.prefix, args.prefix_length = pointer(p.prefix), p.prefix.shape[1]
