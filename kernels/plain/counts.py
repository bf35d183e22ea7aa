"""Occurrence state of slots, changed in place after the step's tokens are known.

counts int32 or uint16 [S, V] (uint16 stays at 65,535); seen int32[S, ceil(V/32)]. Negative slots (padding) and ids
outside [0, V) are ignored. Only the first num_tokens[b] of tokens i32[B, m] count: rejected drafts and truncated tokens
leave no trace.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_WORD = 32


def update_counts(counts: Tensor, tokens: Tensor, num_tokens: Tensor, slot: Tensor) -> None:
    """Add the committed tokens of B sequences to their slots."""
    for b, where in enumerate(slot.tolist()):
        if where >= 0:
            _add(counts[where], tokens[b, : int(num_tokens[b])].numpy())


def reset_counts(counts: Tensor, seen: Tensor, slot: int, prompt: Tensor, ignore_length: int = 0) -> None:
    """Give a slot to a new prompt i32[n]: its first `ignore_length` tokens weigh in for repetition only."""
    counts[slot] = 0
    seen[slot] = 0
    ids = prompt.numpy()
    _add(counts[slot], ids[ignore_length:])
    bits = np.zeros(seen.shape[1] * _WORD, dtype=np.uint8)
    bits[_inside(ids[:ignore_length], counts.shape[1])] = 1
    seen[slot] = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))


def reparent_counts(counts: Tensor, slots: Tensor, parents: Tensor) -> None:
    """Beam i32[n] slots take over the counts of their parents' slots, all at once, before the step's token is added."""
    moved = counts.numpy()[parents.numpy()]
    counts.numpy()[slots.numpy()] = moved


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
    """After each committed token: p = initial if token == reset_id else max(p * decay, minimum); all f32[S], ids i32[S].

    A decay of 1 leaves p as it is unless the reset id is met.
    """
    for b, where in enumerate(slot.tolist()):
        for token in tokens[b, : int(num_tokens[b])].tolist() if where >= 0 else ():
            if token == int(reset_id[where]):
                top_p[where] = initial[where]
            elif token >= 0:
                top_p[where] = torch.maximum(top_p[where] * decay[where], minimum[where])


def _inside(ids: NDArray[np.int32], vocab_size: int) -> NDArray[np.int32]:
    return ids[(ids >= 0) & (ids < vocab_size)]


def _add(counts: Tensor, ids: NDArray[np.int32]) -> None:
    row = counts.numpy()
    unique, times = np.unique(_inside(ids, row.size), return_counts=True)
    total = row[unique].astype(np.int64) + times
    row[unique] = np.minimum(total, np.iinfo(row.dtype).max).astype(row.dtype)
