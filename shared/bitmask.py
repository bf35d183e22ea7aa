"""The packed row: ceil(V / 32) int32 words, bit (id % 32) of word id / 32, 1 = allowed. Rows travel as the smallest kind.

Bits at and above V are meaningless (engines do not promise to clear them): every function here ignores them.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int32]

SPARSE_MAX_IDS = 512
"""Above this many ids a SPARSE row (4 bytes an id) is not sent: the dense row takes part in pooling."""


class RowKind(enum.IntEnum):
    """How a row is written on the wire."""

    ALL = 0  # nothing below V is banned
    STOP_ONLY = 1  # just the request's own stop set
    SINGLE = 2  # one token id
    SPARSE = 3  # a list of ids, int32 little-endian
    POOL = 4  # index and generation of a row that the worker holds
    DENSE = 5  # the words, in a frame of their own


class EncodedRow(NamedTuple):
    """A row as its kind, the ids (STOP_ONLY, SINGLE, SPARSE) and the words (DENSE)."""

    kind: RowKind
    ids: tuple[int, ...] = ()
    words: Words | None = None


def num_words(vocab_size: int) -> int:
    """Words of a row for a (padded) vocabulary of ``vocab_size`` tokens."""
    return (vocab_size + 31) // 32


def _last_word_mask(vocab_size: int) -> int:
    used = vocab_size % 32
    return (1 << used) - 1 if used else 0xFFFFFFFF


def is_alive(words: Words, vocab_size: int) -> bool:
    """True if any bit below ``vocab_size`` is set; bit 31 (a negative word) counts."""
    last = num_words(vocab_size) - 1
    if words[:last].any():
        return True
    return bool(int(words[last]) & 0xFFFFFFFF & _last_word_mask(vocab_size))


def is_set(words: Words, token_id: int, vocab_size: int) -> bool:
    """True if ``token_id`` is in range and allowed."""
    return 0 <= token_id < vocab_size and bool((int(words[token_id >> 5]) >> (token_id & 31)) & 1)


def pack(token_ids: object, vocab_size: int) -> Words:
    """Row with just ``token_ids`` (any sequence of ints) allowed. Raises IndexError for an id outside [0, vocab_size)."""
    ids = np.asarray(token_ids, dtype=np.int64).reshape(-1)
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        raise IndexError(f"token id outside [0, {vocab_size})")
    words = np.empty(num_words(vocab_size), dtype=np.int32)
    pack_into(words, ids)
    return words


def pack_into(out: Words, token_ids: object) -> None:
    """Overwrites a contiguous row with just ``token_ids`` allowed; they must be in range, nothing is checked."""
    out[:] = 0
    words = out.view(np.uint32)
    ids = np.asarray(token_ids)
    if ids.size <= 4:  # most rows have one id
        for token_id in ids.tolist():
            words[token_id >> 5] |= np.uint32(1 << (token_id & 31))
    else:
        np.bitwise_or.at(words, ids >> 5, np.uint32(1) << (ids & 31).astype(np.uint32))


def unpack(words: Words, vocab_size: int) -> NDArray[np.bool_]:
    """Boolean array [vocab_size], True = allowed."""
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little")
    return bits[:vocab_size].astype(np.bool_)


def token_ids(words: Words, vocab_size: int) -> NDArray[np.int32]:
    """Allowed ids in ascending order; touches only non-zero words, so a sparse row costs little."""
    where = np.flatnonzero(words)
    bits = np.unpackbits(np.ascontiguousarray(words[where]).view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    row, bit = np.nonzero(bits)
    ids = (where[row] * 32 + bit).astype(np.int32)
    return ids[ids < vocab_size]


def count(words: Words, vocab_size: int) -> int:
    """Number of allowed tokens."""
    last = num_words(vocab_size) - 1
    head = int(np.bitwise_count(words[:last].view(np.uint32)).sum(dtype=np.int64))
    return head + int(int(words[last]) & 0xFFFFFFFF & _last_word_mask(vocab_size)).bit_count()


def clear_bit(words: Words, token_id: int) -> None:
    """Forbids one token in place."""
    words.view(np.uint32)[token_id >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (token_id & 31)))


def encode(words: Words, vocab_size: int, stop_ids: frozenset[int]) -> EncodedRow:
    """The smallest kind among ALL, STOP_ONLY, SINGLE, SPARSE and DENSE that says exactly this row."""
    allowed = count(words, vocab_size)
    if allowed == vocab_size:
        return EncodedRow(RowKind.ALL)
    if allowed > SPARSE_MAX_IDS or allowed * 4 >= words.nbytes:
        return EncodedRow(RowKind.DENSE, words=words)
    ids = tuple(int(i) for i in token_ids(words, vocab_size))
    if stop_ids and frozenset(ids) == stop_ids:
        return EncodedRow(RowKind.STOP_ONLY, ids)
    if len(ids) == 1:
        return EncodedRow(RowKind.SINGLE, ids)
    return EncodedRow(RowKind.SPARSE, ids)


def decode(row: EncodedRow, out: Words, vocab_size: int, stop_ids: frozenset[int]) -> None:
    """Writes the words of an encoded row (not POOL) into ``out`` [num_words]."""
    if row.kind is RowKind.DENSE:
        if row.words is None or row.words.shape != out.shape:
            raise ValueError(f"a DENSE row needs {out.shape[0]} words")
        out[:] = row.words
    elif row.kind is RowKind.ALL:
        out[:] = -1
    elif row.kind is RowKind.POOL:
        raise ValueError("a POOL row is read through its index")
    else:
        ids = sorted(stop_ids) if row.kind is RowKind.STOP_ONLY else row.ids
        out[:] = pack(ids, vocab_size)
