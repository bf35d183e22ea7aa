"""A rolling 64-bit hash of a token prefix, the same in Python integers and in int64 tensors of any device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_ALL = (1 << 64) - 1


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def next_hash(before: int, token_id: int) -> int:
    """Hash of a prefix and one more token, as a signed 64-bit number; never 0, which stands for "no prefix"."""
    x = ((before & _ALL) + (token_id + 1) * _GOLDEN) & _ALL
    x = ((x ^ (x >> 30)) * _FIRST) & _ALL
    x = ((x ^ (x >> 27)) * _SECOND) & _ALL
    return _signed((x ^ (x >> 31)) | 1)


def extend_all(before: int, token_ids: Sequence[int]) -> list[int]:
    """The hash after each of ``token_ids``."""
    hashes = []
    for token_id in token_ids:
        before = next_hash(before, token_id)
        hashes.append(before)
    return hashes


def extend(before: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """``next_hash`` of int64 tensors of one shape."""
    x = before + (token_ids + 1) * _signed(_GOLDEN)
    x = (x ^ _shift(x, 30)) * _signed(_FIRST)
    x = (x ^ _shift(x, 27)) * _signed(_SECOND)
    return (x ^ _shift(x, 31)) | 1


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def positive(hashes: torch.Tensor) -> torch.Tensor:
    """The hash as a number in [0, 2**62), without the bit that is always set; for remainders."""
    return _shift(hashes, 2)
