"""Philox4x32-10, the counter-based generator of every draw.

The key is a request's seed, the counter is (offset low, offset high, purpose, branch) with offset = absolute output
position of the token. Rows, batches, launches and held steps never enter: a request draws the same bits anywhere.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Bits = NDArray[np.uint64]

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


class Purpose(IntEnum):
    """What a draw at one output position is for; different purposes never share bits."""

    SAMPLE = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    BONUS = 4


def philox4x32(counter: Words, key: Words) -> Words:
    """Ten rounds: counter u32[..., 4], key u32[..., 2] -> u32[..., 4]; the leading axes broadcast."""
    wide = [np.asarray(counter)[..., i].astype(np.uint64) for i in range(4)]
    keys = [np.asarray(key)[..., i].astype(np.uint64) for i in range(2)]
    for turn in range(_ROUNDS):
        low_key, high_key = ((keys[i] + np.uint64(turn * _WEYL[i])) & _LOW for i in range(2))
        first, second = _MULTIPLIERS[0] * wide[0], _MULTIPLIERS[1] * wide[2]
        wide = [(second >> _SHIFT) ^ wide[1] ^ low_key, second & _LOW, (first >> _SHIFT) ^ wide[3] ^ high_key, first & _LOW]
    return np.stack(np.broadcast_arrays(*wide), axis=-1).astype(np.uint32)


def random_bits(seed: Bits, offset: Bits, purpose: Bits, branch: Bits | int = 0) -> Bits:
    """64 random bits a stream position: output word 0 is the low half, word 1 the high half.

    `branch` is the last counter word: 0, but for the siblings of a draft tree after the first.
    """
    seed, offset, purpose, last = (np.asarray(a, dtype=np.uint64) for a in (seed, offset, purpose, branch))
    counter = np.stack(np.broadcast_arrays(offset & _LOW, offset >> _SHIFT, purpose, last), axis=-1)
    words = philox4x32(counter.astype(np.uint32), np.stack([seed & _LOW, seed >> _SHIFT], axis=-1).astype(np.uint32))
    return words[..., 0].astype(np.uint64) | (words[..., 1].astype(np.uint64) << _SHIFT)
