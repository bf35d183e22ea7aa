"""One step of beam search on the GPU: the launchers of cuda/beam.cu; meaning: kernels.reference.beam_step."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.build import Variant
from kernels.launch import I32, P, launch, pointer, stream_of
from kernels.reference import BeamParams, BeamState, BeamStep

MAX_BEAMS = 64
_THREADS = 512
_SHARED_BYTES = 51200


class _Args(ctypes.Structure):
    _fields_ = [
        *(
            (name, P)
            for name in (
                "logprobs",
                "width",
                "length_penalty",
                "diversity",
                "early_stopping",
                "end_id",
                "max_length",
                "cum",
                "tokens",
                "length",
                "pool_score",
                "pool_cum",
                "pool_tokens",
                "pool_length",
                "done",
                "parent",
                "token",
                "best",
                "old_tokens",
            )
        ),
        *((name, I32) for name in ("beams", "vocab_size", "longest", "pad")),
    ]


@dataclass(slots=True)
class BeamWorkspace:
    """best i64[B, W, 2 * W] and old_tokens i32[B, W, L]: scratch, made once."""

    best: Tensor
    old_tokens: Tensor

    @classmethod
    def of(cls, state: BeamState) -> BeamWorkspace:
        requests, beams = state.cum.shape
        best = torch.empty((requests, beams, 2 * beams), dtype=torch.int64, device=state.cum.device)
        return cls(best, torch.empty_like(state.tokens))


def variants() -> list[Variant]:
    return [_variant(kernel) for kernel in ("beam_candidates", "beam_merge", "beam_finalize")]


def beam_step(out: BeamStep, logprobs: Tensor, state: BeamState, params: BeamParams, workspace: BeamWorkspace) -> None:
    """Advance every request that is not done by one token; logprobs f32[B, W, V] (-inf or NaN: not allowed)."""
    requests, beams = state.cum.shape
    if logprobs.dtype != torch.float32 or logprobs.shape[:2] != state.cum.shape or not logprobs.is_contiguous():
        raise ValueError(f"logprobs must be contiguous float32[{requests}, {beams}, V], not {list(logprobs.shape)}")
    args = _args(state, params, workspace)
    args.logprobs, args.vocab_size = pointer(logprobs), logprobs.shape[2]
    args.parent, args.token = pointer(out.parent), pointer(out.token)
    if requests:
        launch(
            _variant("beam_candidates"),
            args,
            grid=(beams, requests),
            block=_THREADS,
            stream=stream_of(logprobs),
            shared_bytes=_SHARED_BYTES,
        )
        launch(_variant("beam_merge"), args, grid=(requests, 1), block=32, stream=stream_of(logprobs))


def finalize_beams(state: BeamState, params: BeamParams, workspace: BeamWorkspace) -> None:
    """End of generation: live beams of requests that are not done join the pool."""
    if state.cum.shape[0]:
        launch(
            _variant("beam_finalize"),
            _args(state, params, workspace),
            grid=(state.cum.shape[0], 1),
            block=32,
            stream=stream_of(state.cum),
        )


def _args(state: BeamState, params: BeamParams, workspace: BeamWorkspace) -> _Args:
    beams, longest = state.tokens.shape[1:]
    if beams > MAX_BEAMS:
        raise ValueError(f"at most {MAX_BEAMS} beams, not {beams}")
    args = _Args(beams=beams, longest=longest, best=pointer(workspace.best), old_tokens=pointer(workspace.old_tokens))
    for group in (state, params):
        for name in group.__slots__:
            value: Tensor = getattr(group, name)
            if not value.is_cuda or not value.is_contiguous():
                raise ValueError(f"{name} must be contiguous on the device")
            setattr(args, name, pointer(value))
    return args


def _variant(kernel: str) -> Variant:
    return Variant.of("beam.cu", kernel, NT=_THREADS)
