"""Verification of drafts: chains, trees, dead and held rows, the invariants of acceptance."""

import numpy as np
import pytest
import torch

from kernels.plain.distribution import Distribution
from kernels.reference import Drafts, Purpose, SampleInputs, SampleRows, SampleStatus, random_bits, sample, verify

INF, NAN = float("-inf"), float("nan")
V = 12


def i32(values):
    return torch.tensor(values, dtype=torch.int32)


def peaked(tokens, vocab_size=V):
    """Logits whose argmax, row by row, are these tokens."""
    logits = torch.zeros(len(tokens), vocab_size)
    logits[torch.arange(len(tokens)), torch.tensor(tokens)] = 5.0
    return logits


def greedy(tokens, **options):
    return SampleInputs(peaked(tokens), SampleRows.uniform(len(tokens), temperature=0), V, **options)


@pytest.mark.parametrize(
    ("drafts", "emitted"),
    [([4, 5, 6], [4, 5, 6, 7]), ([4, 5, 0], [4, 5, 6]), ([0, 5, 6], [4]), ([4, 0, 6], [4, 5]), ([-1, -1, -1], [4])],
)
def test_greedy_chain(drafts, emitted):  # spec 119, 125
    result = verify(greedy([4, 5, 6, 7]), Drafts(i32([drafts]), i32([3])))
    assert result.tokens[0].tolist() == emitted + [-1] * (4 - len(emitted))
    assert result.emitted.tolist() == [len(emitted)] and result.accepted.tolist() == [len(emitted) - 1]
    assert result.nodes[0].tolist() == list(range(1, len(emitted))) + [-1] * (5 - len(emitted))


def test_padded_drafts_are_not_looked_at():  # spec 125
    result = verify(greedy([4, 5, 6, 7]), Drafts(i32([[4, 5, 6]]), i32([1])))
    assert result.tokens[0].tolist() == [4, 5, -1, -1]


def test_rows_after_a_rejection_are_never_read():
    logits = peaked([4, 5, 6, 7])
    logits[1:] = NAN
    result = verify(SampleInputs(logits, SampleRows.uniform(4, temperature=0), V), Drafts(i32([[0, 5, 6]]), i32([3])))
    assert result.tokens[0].tolist() == [4, -1, -1, -1] and result.status.tolist() == [0]


def test_greedy_tree_takes_the_longest_path_the_first_on_ties():  # spec 120
    #        0 (emits 4) -> 1:4 (emits 5) -> 3:5 (emits 6)
    #                    -> 2:4 (emits 5) -> 4:5 (emits 7) -> 5:7 (emits 8)
    parents = i32([[0, 0, 1, 2, 4]])
    tokens = i32([[4, 4, 5, 5, 7]])
    result = verify(greedy([4, 5, 5, 6, 7, 8]), Drafts(tokens, i32([5]), parents))
    assert result.tokens[0].tolist() == [4, 5, 7, 8, -1, -1] and result.nodes[0].tolist() == [2, 4, 5, -1, -1, -1]
    short = verify(greedy([4, 5, 5, 6, 7, 8]), Drafts(tokens, i32([4]), parents))
    assert short.nodes[0].tolist() == [1, 3, -1, -1, -1, -1]


def test_a_parent_that_comes_later_is_unreachable():
    result = verify(greedy([4, 5, 6]), Drafts(i32([[6, 4]]), i32([2]), i32([[2, 0]])))
    assert result.tokens[0].tolist() == [4, 6, -1]


@pytest.mark.parametrize("one_hot", [True, False])
def test_a_banned_draft_is_rejected(one_hot):  # spec R6
    words = torch.full((2, 1), ~(1 << 4), dtype=torch.int32)
    target = greedy([4, 5], bitmask=words)
    draft = None if one_hot else SampleInputs(peaked([4]), SampleRows.uniform(1), V)
    result = verify(target, Drafts(i32([[4]]), i32([1])), draft)
    assert result.accepted.tolist() == [0] and result.tokens[0, 0] == 0


@pytest.mark.parametrize("one_hot", [True, False])
def test_dead_and_held_rows_end_a_request_without_a_token(one_hot):
    logits = peaked([4, 5, 4, 5, 4, 5])
    logits[1] = INF
    status = i32([0, 0, 2, 2, 0, 0])
    target = SampleInputs(logits, SampleRows.uniform(6, temperature=0), V, row_status=status)
    draft = None if one_hot else SampleInputs(peaked([4, 4, 4]), SampleRows.uniform(3, temperature=0), V)
    result = verify(target, Drafts(i32([[4], [4], [4]]), i32([1, 1, 1])), draft)
    assert result.tokens.tolist() == [[4, -1], [-1, -1], [4, 5]]
    assert result.emitted.tolist() == [1, 0, 2] and result.accepted.tolist() == [1, 0, 1]
    assert result.status.tolist() == [SampleStatus.DEAD, SampleStatus.HELD, 0]


def test_identical_distributions_always_accept():  # spec 121
    batch, most = 40, 3
    base = torch.randn(batch, V)
    target = base.repeat_interleave(most + 1, 0)
    rows = SampleRows.uniform(batch * (most + 1), temperature=0.7, top_k=6, seed=1)
    rows.offset = torch.arange(batch * (most + 1))
    draft_rows = SampleRows.uniform(batch * most, temperature=0.7, top_k=6, seed=2, purpose=1)
    draft_rows.offset = torch.arange(batch * most)
    draft = SampleInputs(base.repeat_interleave(most, 0), draft_rows, V)
    tokens = sample(draft.logits, draft_rows, vocab_size=V).token.reshape(batch, most)
    result = verify(SampleInputs(target, rows, V), Drafts(tokens, torch.full((batch,), most, dtype=torch.int32)), draft)
    assert result.accepted.tolist() == [most] * batch
    assert torch.equal(result.tokens[:, :most], tokens) and (result.emitted == most + 1).all()


def test_disjoint_distributions_always_reject_and_draw_from_the_target():  # spec R20
    logits, drafted = torch.full((2, V), INF), torch.full((1, V), INF)
    logits[:, :6], drafted[:, 6:] = 0.0, 0.0
    result = verify(
        SampleInputs(logits, SampleRows.uniform(2), V),
        Drafts(i32([[8]]), i32([1])),
        SampleInputs(drafted, SampleRows.uniform(1), V),
    )
    assert result.accepted.tolist() == [0] and 0 <= int(result.tokens[0, 0]) < 6


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.95}])
@pytest.mark.parametrize("num_drafts", [0, 1, 2, 4])
def test_one_hot_drafts_give_the_tokens_of_plain_decoding(params, num_drafts):  # spec 119, R18, R22
    table = torch.randn(V, V, generator=torch.Generator().manual_seed(3)) * 2  # logits given the token before

    def step(before, offset):
        rows = SampleRows.uniform(1, seed=77, offset=offset, **params)
        return int(sample(table[before][None], rows, vocab_size=V).token[0])

    plain = [0]
    for offset in range(24):
        plain.append(step(plain[-1], offset))
    text, rounds = [0], 0
    while len(text) <= 24:
        rounds += 1
        # right for a while, then wrong
        drafts = [
            t if i != rounds % 3 else (t + 1) % V for i, t in enumerate((plain + [0] * 8)[len(text) : len(text) + num_drafts])
        ]
        rows = SampleRows.uniform(num_drafts + 1, seed=77, **params)
        rows.offset = torch.arange(len(text) - 1, len(text) + num_drafts)
        target = SampleInputs(table[[text[-1], *drafts]], rows, V)
        result = verify(target, Drafts(i32([drafts]).reshape(1, num_drafts), i32([num_drafts])))
        text += result.tokens[0, : int(result.emitted[0])].tolist()
    assert text[:25] == plain
    assert num_drafts == 0 or rounds < 24


def test_siblings_bit_by_bit():  # spec R10, R18
    """Two siblings and the residual, replayed from the bits of the row's own offset."""
    p, q = torch.tensor([[0.5, 0.05, 0.45]]).log(), torch.tensor([[0.4, 0.5, 0.1]]).log()
    kept = [SampleInputs(x, SampleRows.uniform(1), 3).live(0).kept for x in (p, q)]
    whole, drafted = (Distribution(k.columns, k.masses.astype(object), k.total) for k in kept)
    left = whole.residual(drafted)
    for offset in range(0, 300, 3):
        drafts = [1, offset // 3 % 3]

        def bits(purpose, branch=0, offset=offset):
            return int(random_bits(np.uint64(9), np.uint64(offset), np.uint64(purpose), np.uint64(branch)))

        if whole.accepts(drafted, drafts[0], bits(Purpose.ACCEPT)):
            wanted = [drafts[0], 1]
        elif left.accepts(drafted, drafts[1], bits(Purpose.ACCEPT, 1)):
            wanted = [drafts[1], 2]
        else:
            wanted = [left.residual(drafted).draw(bits(Purpose.RESIDUAL)), -1]
        rows = SampleRows.uniform(3, seed=9, offset=offset)
        result = verify(
            SampleInputs(p.repeat(3, 1), rows, 3),
            Drafts(i32([drafts]), i32([2]), i32([[0, 0]])),
            SampleInputs(q.repeat(2, 1), SampleRows.uniform(2), 3),
        )
        assert [int(result.tokens[0, 0]), int(result.nodes[0, 0])] == wanted


def test_wrong_row_counts_are_refused():
    with pytest.raises(ValueError, match="1 requests of 3 drafts need 4 target"):
        verify(greedy([4, 5, 6]), Drafts(i32([[4, 5, 6]]), i32([3])))
