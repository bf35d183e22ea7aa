"""apply_bitmask against one bit at a time: widths, dtypes, indices, states, slices, pruned vocabularies."""

import numpy as np
import pytest
import torch

from kernels.reference import RowStatus, apply_bitmask
from tests.reference_oracle import bit, pack

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
VOCABULARIES = [1, 31, 32, 33, 100, 8193, 32000]


def random_words(rows: int, vocab_size: int, seed: int) -> torch.Tensor:
    """Random words, stray bits beyond the vocabulary and a spare word included."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(1 << 31), 1 << 31, (rows, -(-vocab_size // 32) + 1), generator=generator).to(torch.int32)


def expected(logits, words, index, status, vocab_size, targets):
    out = logits.clone()
    for r in range(logits.shape[0]):
        for i, target in enumerate(targets):
            alive = 0 <= target < vocab_size and bit(words[index[r]], target)
            if status[r] == RowStatus.GUIDED and not alive:
                out[r, i] = float("-inf")
    return out


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bit_by_bit(vocab_size, dtype):  # spec 21, 26, 27
    logits = torch.randn(3, vocab_size + 5).to(dtype)
    words = random_words(3, vocab_size, 7)
    want = expected(logits, words, range(3), [1] * 3, vocab_size, range(vocab_size + 5))
    apply_bitmask(logits, words, None, None, vocab_size)
    assert torch.equal(logits, want)
    assert logits.dtype == dtype


def test_rows_through_an_index_and_states():  # spec 23
    logits = torch.randn(5, 100)
    words, index, status = random_words(9, 100, 1), [8, 0, 3, 3, 2], [1, 0, 2, 1, 1]
    want = expected(logits, words, index, status, 100, range(100))
    apply_bitmask(logits, words, torch.tensor(index, dtype=torch.int32), torch.tensor(status, dtype=torch.int32), 100)
    assert torch.equal(logits, want)


@pytest.mark.parametrize("offset", [0, 1, 31, 50, 99, 200])
def test_slice_by_bit_offset(offset):  # spec 61, R14
    logits, words = torch.randn(2, 40), random_words(2, 120, 2)
    want = expected(logits, words, range(2), [1, 1], 120, range(offset, offset + 40))
    apply_bitmask(logits, words, None, None, 120, bit_offset=offset)
    assert torch.equal(logits, want)


@pytest.mark.parametrize("offset", [0, 13])
def test_pruned_vocabulary(offset):  # spec 62, R14
    d2t = torch.tensor(np.sort(np.random.default_rng(3).integers(0, 70, 45)), dtype=torch.int32)
    targets = [offset + i + int(d2t[i]) for i in range(45)]
    logits, words = torch.randn(2, 45), random_words(2, 100, 4)
    want = expected(logits, words, range(2), [1, 1], 100, targets)
    apply_bitmask(logits, words, None, None, 100, bit_offset=offset, d2t=d2t)
    assert torch.equal(logits, want)


def test_strided_logits_are_masked_in_place():  # spec 65
    wide = torch.randn(4, 64)
    kept = wide.clone()
    apply_bitmask(wide[::2, :33], torch.zeros(2, 2, dtype=torch.int32), None, None, 33)
    assert torch.isinf(wide[::2, :33]).all()
    assert torch.equal(wide[1::2], kept[1::2]) and torch.equal(wide[:, 33:], kept[:, 33:])


def test_an_index_outside_the_pool_allows_nothing():
    logits = torch.randn(2, 33)
    apply_bitmask(logits, torch.full((3, 2), -1, dtype=torch.int32), torch.tensor([3, -1], dtype=torch.int32), None, 33)
    assert torch.isinf(logits).all()


def test_sparse_and_dense_words_agree():
    for ids in ([31], [0, 8192], list(range(0, 8193, 7)), list(range(8193))):
        logits = torch.zeros(1, 8193)
        apply_bitmask(logits, pack(ids, 257)[None], None, None, 8193)
        assert torch.nonzero(logits[0] == 0).flatten().tolist() == ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 33, dtype=torch.float64)}, "logits"),
        ({"bitmask": torch.zeros(2, 1, dtype=torch.int32)}, "bitmask"),
        ({"bitmask": torch.zeros(2, 2, dtype=torch.int64)}, "bitmask"),
        ({"row_index": torch.zeros(1, dtype=torch.int32)}, "row_index"),
        ({"row_status": torch.zeros(2, dtype=torch.int64)}, "row_status"),
        ({"d2t": torch.zeros(32, dtype=torch.int32)}, "d2t"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"bit_offset": -1}, "bit_offset"),
    ],
)
def test_wrong_shapes_are_refused_by_name(change, message):  # spec 83
    call = {
        "logits": torch.zeros(2, 33),
        "bitmask": torch.zeros(2, 2, dtype=torch.int32),
        "row_index": None,
        "row_status": None,
        "vocab_size": 33,
    } | change
    with pytest.raises(ValueError, match=message):
        apply_bitmask(**call)
