"""The generator: known answers, the layout of counter and key, streams that do not touch."""

import numpy as np
import pytest

from kernels.reference import Purpose, SampleRows, philox4x32, random_bits


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_known_answers(counter, key, answer):  # spec 85
    words = philox4x32(np.array(counter, np.uint32), np.array(key, np.uint32))
    assert words.tolist() == answer


def test_vector_equals_scalar():
    counter = np.arange(40, dtype=np.uint32).reshape(10, 4)
    key = np.arange(20, dtype=np.uint32).reshape(10, 2) * np.uint32(77777)
    one_by_one = [philox4x32(counter[i], key[i]).tolist() for i in range(10)]
    assert philox4x32(counter, key).tolist() == one_by_one


def test_bits_take_key_counter_and_words_in_this_order():  # spec R18
    seed, offset = 0x299F31D0A4093822, 0x85A308D3243F6A88
    bits = int(random_bits(np.uint64(seed), np.uint64(offset), np.uint64(0x13198A2E), np.uint64(0x03707344)))
    assert bits == 0x94FDCCEBD16CFE09


def test_purposes_offsets_seeds_and_branches_never_share_bits():  # spec 88, R18
    bits = {
        int(random_bits(np.uint64(seed), np.uint64(offset), np.uint64(purpose), np.uint64(branch)))
        for seed in (0, 1, 1 << 32, (1 << 64) - 1)
        for offset in (0, 1, 1 << 32, 1 << 62)
        for purpose in Purpose
        for branch in range(3)
    }
    assert len(bits) == 4 * 4 * 5 * 3


def test_seed_is_a_uint64_reinterpreted():  # spec 90
    rows = SampleRows.uniform(1, seed=(1 << 64) - 5)
    assert int(rows.seed[0]) == -5


def test_purpose_numbers_are_fixed():
    assert [p.name for p in Purpose] == ["SAMPLE", "DRAFT", "ACCEPT", "RESIDUAL", "BONUS"]
    assert [p.value for p in Purpose] == [0, 1, 2, 3, 4]
