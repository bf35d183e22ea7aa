"""Rows by content: kinds, sharing, bounds, the frames of an answer."""

from __future__ import annotations

import numpy as np
import pytest

from grammar_service.frames import Frames
from grammar_service.row_pool import RowPool
from grammar_service.rows import Row, RowStore
from shared.bitmask import SPARSE_MAX_IDS, EncodedRow, RowKind, Words, decode, num_words, pack
from shared.protocol import WireRow

SIZE = 40_001  # not a multiple of 32
STOPS = frozenset((3, 40_000))


@pytest.fixture
def store() -> RowStore:
    return RowStore(SIZE, 1 << 20)


def read(row: WireRow, frames: list[bytes]) -> Words:
    """What a worker makes of a wire row."""
    out = np.zeros(num_words(SIZE), dtype=np.int32)
    ids = (row.value,) if row.kind == RowKind.SINGLE else tuple(np.frombuffer(row.ids, dtype="<i4").tolist())
    words = np.frombuffer(frames[row.value], dtype=np.int32) if row.kind == RowKind.DENSE else None
    decode(EncodedRow(RowKind(row.kind), ids, words), out, SIZE, STOPS)
    return out


@pytest.mark.parametrize(
    ("token_ids", "kind"),
    [
        (range(SIZE), RowKind.ALL),
        (STOPS, RowKind.STOP_ONLY),
        ([31], RowKind.SINGLE),
        ([0, 31, 32, 39_999], RowKind.SPARSE),
        ([], RowKind.DENSE),
        (range(SPARSE_MAX_IDS + 1), RowKind.DENSE),
        (range(1, SIZE), RowKind.DENSE),
    ],
)
def test_the_smallest_kind_says_exactly_the_row(store: RowStore, token_ids: object, kind: RowKind) -> None:  # spec 21, R13
    words = pack(sorted(token_ids), SIZE)  # type: ignore[call-overload]
    frames = Frames(RowPool())
    row = frames.wire(store.intern(words), STOPS)
    assert row.kind == kind
    assert (read(row, frames.frames) == words).all() or kind is RowKind.ALL
    if kind is RowKind.ALL:
        assert (read(row, frames.frames)[: SIZE // 32] == -1).all()


def test_equal_rows_are_one_object_and_one_frame(store: RowStore) -> None:  # spec R13
    words = pack(range(2_000), SIZE)
    first, second = store.intern(words), store.intern(words.copy())
    other = store.intern(pack(range(3_000), SIZE))
    assert first is second
    frames = Frames(RowPool())
    wire = [frames.wire(row, STOPS) for row in (first, other, second)]
    assert [row.value for row in wire] == [0, 1, 0]
    assert len(frames.frames) == 2


def test_the_store_keeps_to_its_bytes() -> None:  # spec R13
    store = RowStore(SIZE, 50_000)
    for last in range(1_000, 1_200):
        store.intern(pack(range(last), SIZE))
    assert store.num_bytes <= 50_000
    assert len(store) < 12


def test_a_row_that_was_dropped_is_made_anew(store: RowStore) -> None:
    words = pack(range(2_000), SIZE)
    small = RowStore(SIZE, 1)
    row = small.intern(words)
    small.intern(pack([1], SIZE))
    assert small.intern(words) is not row
    assert (small.intern(words).words == row.words).all()


def test_rows_are_alive_by_bits_below_the_vocabulary_only() -> None:  # spec 26
    words = np.zeros(num_words(SIZE), dtype=np.int32)
    words[-1] = -2  # every bit but that of token 40,000
    assert not Row(words.tobytes(), SIZE).alive
    words[0] = -(1 << 31)
    assert Row(words.tobytes(), SIZE).alive


def test_a_forbidden_token_leaves_the_others(store: RowStore) -> None:  # spec R6
    row = store.intern(pack([5, 31, 40_000], SIZE))
    assert store.without(row, 31).id_set == {5, 40_000}
    assert row.id_set == {5, 31, 40_000}
    assert not store.without(store.intern(pack([5], SIZE)), 5).alive


def test_a_row_cannot_be_changed(store: RowStore) -> None:
    with pytest.raises(ValueError, match="read-only"):
        store.intern(pack([5], SIZE)).words[0] = 1


def test_membership_is_by_range_and_bit(store: RowStore) -> None:
    row = store.intern(pack([5, 40_000], SIZE))
    assert [row.allows(token) for token in (5, 6, 40_000, -1, 1 << 32)] == [True, False, True, False, False]
