"""Rows by content: equal rows are one object, encoded once.

A row repeats an earlier one 99 times of 100, so the work of a row is a hash and a look-up. The hash (xxh3-128) is not proof
against an adversary: on a hit the words are compared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import xxhash

from shared.bitmask import RowKind, Words, clear_bit, encode, is_alive
from shared.protocol import WireRow

_NO_STOPS: frozenset[int] = frozenset()
POOLED_IDS = 4  # a reference takes 10 bytes


class Row:
    """An immutable row: ``words`` int32 [ceil(V / 32)] over ``data``, its kind (never STOP_ONLY), the ids of a small one, and how
    it travels inline (None: its words in a frame). ``pooled``: a reference to it is shorter. ``plain``: it allows two tokens or
    more."""

    __slots__ = ("alive", "data", "id_set", "ids", "inline", "kind", "plain", "pooled", "words")

    def __init__(self, data: bytearray, vocab_size: int) -> None:
        self.data = data  # a bytearray is compared with any buffer at the speed of memory; nobody writes to it
        self.words: Words = np.frombuffer(data, dtype=np.int32)
        self.words.flags.writeable = False
        self.alive = is_alive(self.words, vocab_size)
        encoded = encode(self.words, vocab_size, _NO_STOPS)
        self.kind = encoded.kind
        self.plain = self.alive and self.kind is not RowKind.SINGLE
        self.id_set = frozenset(encoded.ids)
        self.ids = np.asarray(encoded.ids, dtype="<i4").tobytes() if encoded.kind is RowKind.SPARSE else b""
        self.inline = _inline(self)
        self.pooled = self.inline is None or len(self.ids) >= 4 * POOLED_IDS

    def allows(self, token_id: int) -> bool:
        """True if the token's bit is set."""
        return 0 <= token_id < len(self.data) * 8 and bool((self.data[token_id >> 3] >> (token_id & 7)) & 1)


def _inline(row: Row) -> WireRow | None:
    if row.kind is RowKind.DENSE or not row.alive:
        return None
    return WireRow(row.kind, next(iter(row.id_set))) if row.kind is RowKind.SINGLE else WireRow(row.kind, 0, row.ids)


class RowStore:
    """Rows of one vocabulary, least recently used ones dropped beyond ``max_bytes``. Not thread-safe."""

    def __init__(self, vocab_size: int, max_bytes: int) -> None:
        self.vocab_size = vocab_size
        self._max_bytes = max_bytes
        self._rows: OrderedDict[bytes, Row] = OrderedDict()
        self.num_bytes = 0
        self.nothing = self.intern(np.zeros((vocab_size + 31) // 32, dtype=np.int32))

    def __len__(self) -> int:
        return len(self._rows)

    def intern(self, words: Words) -> Row:
        """The row with these words."""
        (row,) = self.intern_all([np.ascontiguousarray(words).data.cast("B")])
        return row

    def _add(self, key: bytes, view: memoryview) -> Row:
        row = Row(bytearray(view), self.vocab_size)
        replaced = self._rows.get(key)  # a collision: the newer row takes the place
        self.num_bytes += _size(row) - (_size(replaced) if replaced else 0)
        self._rows[key] = row
        while self.num_bytes > self._max_bytes and len(self._rows) > 1:
            self.num_bytes -= _size(self._rows.popitem(last=False)[1])
        return row

    def intern_all(self, rows: Sequence[memoryview]) -> list[Row]:
        """``intern`` for the bytes of a row each."""
        known, move_to_end, key_of = self._rows, self._rows.move_to_end, xxhash.xxh3_128_digest
        found = []
        for view in rows:
            key = key_of(view)
            row = known.get(key)
            if row is None or row.data != view:
                row = self._add(key, view)
            else:
                move_to_end(key)
            found.append(row)
        return found

    def without(self, row: Row, token_id: int) -> Row:
        """The row with one token forbidden."""
        words = row.words.copy()
        clear_bit(words, token_id)
        return self.intern(words)


def _size(row: Row) -> int:
    return len(row.data) + len(row.ids) + 500
