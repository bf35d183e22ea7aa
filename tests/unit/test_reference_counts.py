"""Occurrence counts and the decay of top_p."""

import pytest
import torch

from kernels.reference import reparent_counts, reset_counts, update_counts, update_top_p_decay


def i32(values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint16])
def test_only_committed_tokens_of_live_slots_count(dtype):  # spec 95, R24
    counts = torch.zeros((3, 10), dtype=dtype)
    tokens = i32([[4, 4, 7], [1, 2, 3], [5, -1, 99]])
    update_counts(counts, tokens, i32([2, 3, 3]), i32([2, -1, 0]))
    assert counts[2].tolist() == [0, 0, 0, 0, 2, 0, 0, 0, 0, 0]
    assert counts[0].tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert not counts[1].to(torch.int32).any()


def test_u16_counts_stay_at_their_maximum():  # spec R24
    counts = torch.full((1, 4), 65534, dtype=torch.uint16)
    update_counts(counts, i32([[1, 1, 1]]), i32([3]), i32([0]))
    assert counts[0].tolist() == [65534, 65535, 65534, 65534]


def test_a_reused_slot_starts_from_its_prompt():  # spec 94, 97
    counts, seen = torch.full((2, 40), 9, dtype=torch.int32), torch.full((2, 2), -1, dtype=torch.int32)
    reset_counts(counts, seen, 1, i32([3, 35, 3, 8, 3, 40]), ignore_length=2)
    assert {i: int(c) for i, c in enumerate(counts[1]) if c} == {3: 2, 8: 1}
    assert seen[1].tolist() == [1 << 3, 1 << 3]
    assert (counts[0] == 9).all() and (seen[0] == -1).all()


def test_beams_swap_counts_at_once():  # spec 99
    counts = torch.arange(12, dtype=torch.int32).reshape(4, 3)
    before = counts.clone()
    reparent_counts(counts, i32([0, 1, 2]), i32([1, 0, 0]))
    assert torch.equal(counts, before[[1, 0, 0, 3]])


def test_top_p_decay():  # spec 106
    top_p = torch.tensor([0.9, 0.9, 0.9])
    state = {
        "initial": torch.tensor([0.9, 0.9, 0.9]),
        "decay": torch.tensor([0.5, 1.0, 0.1]),
        "minimum": torch.tensor([0.3, 0.1, 0.2]),
        "reset_id": i32([7, -1, 7]),
    }
    tokens = i32([[1, 2], [3, -1], [4, 7]])
    update_top_p_decay(top_p, tokens, i32([1, 2, 2]), i32([0, 1, 2]), **state)
    assert top_p.tolist() == pytest.approx([0.45, 0.9, 0.9])
    update_top_p_decay(top_p, tokens, i32([2, 0, 1]), i32([0, -1, 2]), **state)
    assert top_p.tolist() == pytest.approx([0.3, 0.9, 0.2])
