"""Speculative verification on the GPU: the launchers of cuda/verify.cu; meaning: kernels.reference.verify.

One-hot drafters (n-gram, forced, greedy): `match` on the tokens that the target rows sampled, chains and trees. Drafts
drawn from a distribution: `reject`, chains only, on the descriptors of both sides. Neither allocates or synchronises.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.build import Variant
from kernels.inputs import GpuInputs
from kernels.launch import DTYPES, I32, P, check_vector, launch, pointer, stream_of
from kernels.probability import DescriptorArgs, SourceArgs, descriptor_args, source_args
from kernels.reference import Drafts, RowDescriptor, VerifyResult

MAX_DRAFTS = 256
_THREADS = 512
_CLUSTERS = (1, 4)


class _Outputs(ctypes.Structure):
    _fields_ = [(name, P) for name in ("tokens", "nodes", "emitted", "accepted", "status")]


class _MatchArgs(ctypes.Structure):
    _fields_ = [
        *((name, P) for name in ("drafts", "lengths", "parents", "sampled", "sampled_status")),
        ("out", _Outputs),
        ("n", I32),
        ("pad", I32),
    ]


class _RejectArgs(ctypes.Structure):
    _fields_ = [
        ("target", SourceArgs),
        ("p", DescriptorArgs),
        ("draft", SourceArgs),
        ("q", DescriptorArgs),
        *((name, P) for name in ("drafts", "lengths", "seed", "offset", "target_status")),
        ("out", _Outputs),
        ("n", I32),
        ("pad", I32),
    ]


def variants() -> list[Variant]:
    return [_match_variant(), *(_reject_variant(d, c) for d in DTYPES.values() for c in _CLUSTERS)]


def empty_result(batch: int, drafts: int, device: torch.device | str) -> VerifyResult:
    tokens, nodes = torch.empty((2, batch, drafts + 1), dtype=torch.int32, device=device)
    return VerifyResult(tokens, nodes, *torch.empty((3, batch), dtype=torch.int32, device=device))


def match(out: VerifyResult, drafts: Drafts, sampled: Tensor, status: Tensor) -> None:
    """Longest path of drafts that equal what the target rows sampled; sampled, status i32[B * (n + 1)]."""
    batch, n = _shape(out, drafts, sampled)
    args = _MatchArgs(
        pointer(drafts.tokens),
        pointer(drafts.lengths),
        pointer(drafts.parents),
        pointer(sampled),
        pointer(check_vector("status", status, torch.int32, batch * (n + 1))),
        _outputs(out),
        n,
        0,
    )
    if batch:
        launch(_match_variant(), args, grid=(batch, 1), block=32, stream=stream_of(sampled), shared_bytes=8 * (n + 1))


def reject(
    out: VerifyResult, drafts: Drafts, target: GpuInputs, p: RowDescriptor, status: Tensor, draft: GpuInputs, q: RowDescriptor
) -> None:
    """Accept by u * q < p, draw the rest from max(p - q, 0); raises ValueError for trees (their meaning: the reference)."""
    batch, n = _shape(out, drafts, status)
    if drafts.parents is not None:
        raise ValueError("trees of drafts that were drawn from distributions are verified by the reference only")
    if target.logits.dtype != draft.logits.dtype:
        raise ValueError(f"logits of one dtype, not {target.logits.dtype} and {draft.logits.dtype}")
    seed, offset = (check_vector(k, getattr(target.rows, k), torch.int64, batch * (n + 1)) for k in ("seed", "offset"))
    args = _RejectArgs(
        source_args(target.logits, target),
        descriptor_args(p),
        source_args(draft.logits, draft),
        descriptor_args(q),
        pointer(drafts.tokens),
        pointer(drafts.lengths),
        pointer(seed),
        pointer(offset),
        pointer(status),
        _outputs(out),
        n,
        0,
    )
    cluster = 4 if batch <= 128 else 1
    if batch:
        launch(
            _reject_variant(DTYPES[target.logits.dtype], cluster),
            args,
            grid=(batch, 1),
            block=_THREADS,
            stream=stream_of(status),
            cluster=cluster,
        )


def _shape(out: VerifyResult, drafts: Drafts, rows: Tensor) -> tuple[int, int]:
    batch, n = drafts.tokens.shape
    if n > MAX_DRAFTS or drafts.tokens.dtype != torch.int32 or not drafts.tokens.is_contiguous():
        raise ValueError(f"drafts must be contiguous int32[B, <={MAX_DRAFTS}], not {drafts.tokens.dtype}[{batch}, {n}]")
    check_vector("lengths", drafts.lengths, torch.int32, batch)
    check_vector("sampled tokens or status", rows, torch.int32, batch * (n + 1))
    if out.tokens.shape != (batch, n + 1) or out.nodes.shape != (batch, n + 1):
        raise ValueError(f"results must be [{batch}, {n + 1}], not {list(out.tokens.shape)}")
    return batch, n


def _outputs(out: VerifyResult) -> _Outputs:
    return _Outputs(*(pointer(t) for t in (out.tokens, out.nodes, out.emitted, out.accepted, out.status)))


def _match_variant() -> Variant:
    return Variant.of("verify.cu", "match", DTYPE=0, NT=_THREADS, OVERLAY=1)


def _reject_variant(dtype: int, cluster: int) -> Variant:
    return Variant.of("verify.cu", "reject", DTYPE=dtype, NT=_THREADS, C=cluster, OVERLAY=1)
