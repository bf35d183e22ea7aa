"""Rows at odd vocabulary sizes, against Python sets: nothing above V is seen, nothing below it is lost."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared import bitmask
from shared.bitmask import RowKind


@st.composite
def rows(draw):
    """A vocabulary size, a set of ids, a stop set, and what stands in the bits above V."""
    size = draw(st.integers(1, 300) | st.sampled_from([4097, 8193]))
    ids = draw(st.sets(st.integers(0, size - 1), max_size=min(size, 200)) | st.just(set(range(size))))
    stops = draw(st.sets(st.integers(0, size - 1), max_size=3) | st.just(ids if len(ids) <= 3 else set()))
    return size, ids, frozenset(stops), draw(st.booleans())


def row_of(ids, size, dirty):
    words = bitmask.pack(sorted(ids), size)
    if dirty and size % 32:
        words.view(np.uint32)[-1] |= np.uint32(0xFFFFFFFF << (size % 32) & 0xFFFFFFFF)
    return words


@settings(deadline=None)
@given(rows())
def test_a_row_is_a_set(row):  # spec 21, 26
    size, ids, _, dirty = row
    words = row_of(ids, size, dirty)
    assert set(bitmask.token_ids(words, size).tolist()) == ids
    assert set(np.flatnonzero(bitmask.unpack(words, size)).tolist()) == ids
    assert bitmask.count(words, size) == len(ids)
    assert bitmask.is_alive(words, size) == bool(ids)
    assert all(bitmask.is_set(words, i, size) == (i in ids) for i in range(-1, size + 33))


@settings(deadline=None)
@given(rows())
def test_encode_and_decode(row):  # spec R13
    size, ids, stops, dirty = row
    words = row_of(ids, size, dirty)
    encoded = bitmask.encode(words, size, stops)
    out = np.full_like(words, 0x55555555)
    bitmask.decode(encoded, out, size, stops)
    assert set(bitmask.token_ids(out, size).tolist()) == ids
    smaller = {RowKind.ALL: len(ids) == size, RowKind.SINGLE: len(ids) == 1, RowKind.SPARSE: 4 * len(ids) < words.nbytes}
    smaller[RowKind.STOP_ONLY] = ids == stops and smaller[RowKind.SPARSE]
    assert smaller.get(encoded.kind, not smaller[RowKind.ALL])


@settings(deadline=None)
@given(rows(), st.data())
def test_clearing_one_bit(row, data):
    size, ids, _, dirty = row
    token_id = data.draw(st.integers(0, size - 1))
    words = row_of(ids, size, dirty)
    bitmask.clear_bit(words, token_id)
    assert set(bitmask.token_ids(words, size).tolist()) == ids - {token_id}
