"""The packed row: width, packing, the alive test, and the choice of the smallest kind."""

import numpy as np
import pytest

from shared import bitmask
from shared.bitmask import SPARSE_MAX_IDS, EncodedRow, RowKind

ODD_SIZES = (1, 31, 32, 33, 63, 64, 65, 1000, 151_936, 128_257)


@pytest.mark.parametrize(("size", "words"), [(1, 1), (31, 1), (32, 1), (33, 2), (64, 2), (65, 3), (128_256, 4008)])
def test_width(size, words):  # spec 21
    assert bitmask.num_words(size) == words


def test_bit_of_an_id():  # spec 21
    words = bitmask.pack([0, 31, 37], 40)
    assert words.dtype == np.int32
    assert words.view(np.uint32).tolist() == [1 | 1 << 31, 1 << 5]
    assert bitmask.is_set(words, 31, 40)
    assert not bitmask.is_set(words, 30, 40)


@pytest.mark.parametrize("token_id", [-1, 40, 1 << 40])
def test_ids_out_of_range(token_id):
    with pytest.raises(IndexError):
        bitmask.pack([token_id], 40)
    assert not bitmask.is_set(np.full(2, -1, np.int32), token_id, 40)


def test_bits_above_the_vocabulary_do_not_count():  # spec 26
    words = np.array([0, 0], np.int32)
    words.view(np.uint32)[1] = 0xFFFFFFFF << 8 & 0xFFFFFFFF  # ids 40 to 63 of a vocabulary of 40
    assert not bitmask.is_alive(words, 40)
    assert bitmask.count(words, 40) == 0
    assert bitmask.token_ids(words, 40).tolist() == []
    assert bitmask.is_alive(words, 41)


@pytest.mark.parametrize("size", [32, 64])
def test_bit_31_is_alive(size):  # spec 26: a negative word
    words = bitmask.pack([size - 1], size)
    assert words[-1] < 0
    assert bitmask.is_alive(words, size)
    assert bitmask.count(words, size) == 1


@pytest.mark.parametrize("size", ODD_SIZES)
def test_ends_of_the_row(size):
    words = bitmask.pack([0, size - 1], size)
    expected = sorted({0, size - 1})
    assert bitmask.token_ids(words, size).tolist() == expected
    assert bitmask.unpack(words, size).sum() == len(expected)
    assert not bitmask.is_alive(np.zeros_like(words), size)


def test_clear_bit():
    words = bitmask.pack([31, 32], 64)
    bitmask.clear_bit(words, 31)
    assert bitmask.token_ids(words, 64).tolist() == [32]


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (range(4099), RowKind.ALL),
        ([7, 4098], RowKind.STOP_ONLY),
        ([7], RowKind.SINGLE),
        ([7, 8], RowKind.SPARSE),
        ([], RowKind.SPARSE),
        (range(0, 4099, 2), RowKind.DENSE),
        (range(4098), RowKind.DENSE),
    ],
)
def test_smallest_kind(ids, kind):
    row = bitmask.encode(bitmask.pack(list(ids), 4099), 4099, frozenset({7, 4098}))
    assert row.kind is kind


def test_all_is_judged_below_the_vocabulary():  # spec 26
    words = np.full(2, -1, np.int32)
    assert bitmask.encode(words, 40, frozenset()).kind is RowKind.ALL
    words.view(np.uint32)[1] = 0xFF  # clean padding says the same
    assert bitmask.encode(words, 40, frozenset()).kind is RowKind.ALL


def test_a_sparse_row_has_few_ids():
    size = 151_936
    assert bitmask.encode(bitmask.pack(range(SPARSE_MAX_IDS), size), size, frozenset()).kind is RowKind.SPARSE
    assert bitmask.encode(bitmask.pack(range(SPARSE_MAX_IDS + 1), size), size, frozenset()).kind is RowKind.DENSE


def test_what_cannot_be_decoded():
    out = np.zeros(2, np.int32)
    with pytest.raises(ValueError, match="POOL"):
        bitmask.decode(EncodedRow(RowKind.POOL), out, 40, frozenset())
    with pytest.raises(ValueError, match="needs 2 words"):
        bitmask.decode(EncodedRow(RowKind.DENSE, words=np.zeros(3, np.int32)), out, 40, frozenset())
    with pytest.raises(ValueError, match="needs 2 words"):
        bitmask.decode(EncodedRow(RowKind.DENSE), out, 40, frozenset())
