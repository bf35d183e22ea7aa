"""Why and where sequences end, on the GPU: the launchers of cuda/finish.cu; meaning: kernels.reference.finish_reasons."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.build import Variant
from kernels.launch import I32, P, check_vector, launch, pointer, stream_of
from kernels.reference import FinishResult, StopWords, TokenList

_THREADS = 128


class _Args(ctypes.Structure):
    _fields_ = [
        *(
            (name, P)
            for name in (
                "tokens",
                "num_tokens",
                "length",
                "max_length",
                "end_start",
                "end_ids",
                "row_start",
                "word_start",
                "word_ids",
                "history",
                "reason",
                "kept",
            )
        ),
        *((name, I32) for name in ("batch", "most", "window", "pad")),
    ]


def variants() -> list[Variant]:
    return [_variant("finish_reasons"), _variant("shift_history")]


def finish_reasons(
    out: FinishResult,
    tokens: Tensor,
    num_tokens: Tensor,
    length: Tensor,
    max_length: Tensor,
    *,
    end_ids: TokenList,
    stop_words: StopWords,
    history: Tensor,
) -> None:
    """Judge the step's tokens i32[B, m]; arguments as in the reference, all on the device."""
    args = _args(tokens, num_tokens, history)
    batch = tokens.shape[0]
    for name, value in (("length", length), ("max_length", max_length), ("reason", out.reason), ("kept", out.kept)):
        setattr(args, name, pointer(check_vector(name, value, torch.int32, batch)))
    args.end_start, args.end_ids = pointer(end_ids.start), pointer(end_ids.ids)
    args.row_start, args.word_start = pointer(stop_words.row_start), pointer(stop_words.word_start)
    args.word_ids = pointer(stop_words.ids)
    _run("finish_reasons", args, tokens)


def shift_history(history: Tensor, tokens: Tensor, num_tokens: Tensor) -> None:
    """In place: the window of i32[B, L] last tokens moves on by the first num_tokens of each row of tokens."""
    _run("shift_history", _args(tokens, num_tokens, history), tokens)


def _args(tokens: Tensor, num_tokens: Tensor, history: Tensor) -> _Args:
    batch, most = tokens.shape
    for name, value in (("tokens", tokens), ("history", history)):
        if value.dtype != torch.int32 or not value.is_cuda or not value.is_contiguous() or value.shape[0] != batch:
            raise ValueError(f"{name} must be contiguous CUDA int32[{batch}, ...], not {value.dtype}{list(value.shape)}")
    check_vector("num_tokens", num_tokens, torch.int32, batch)
    return _Args(
        tokens=pointer(tokens),
        num_tokens=pointer(num_tokens),
        history=pointer(history),
        batch=batch,
        most=most,
        window=history.shape[1],
    )


def _run(kernel: str, args: _Args, where: Tensor) -> None:
    if args.batch:
        launch(_variant(kernel), args, grid=(-(-args.batch // _THREADS), 1), block=_THREADS, stream=stream_of(where))


def _variant(kernel: str) -> Variant:
    return Variant.of("finish.cu", kernel, NT=_THREADS)
