"""Bias, penalties and bans inside the pass: formulas, order, masks of occurrence, drafts on the path."""

import numpy as np
import pytest
import torch

from kernels.reference import Overlay, Penalties, SampleRows, SampleStatus, TokenList, penalties, reset_counts, sample

INF, NAN = float("inf"), float("nan")
V = 100


def state(rows=1, slots=1, repetition=1.0, presence=0.0, frequency=0.0, dtype=torch.int32, vocab_size=V, prefix=None):
    return Penalties(
        *(torch.full((rows,), v) for v in (repetition, presence, frequency)),
        slot=torch.zeros(rows, dtype=torch.int32),
        counts=torch.zeros((slots, vocab_size), dtype=dtype),
        seen=torch.zeros((slots, -(-vocab_size // 32)), dtype=torch.int32),
        prefix=prefix,
    )


def adjusted(logits, overlay):
    """All adjusted logits of row 0, read through the exact log-probabilities of a wide temperature."""
    return overlay.adjust(0, np.arange(logits.shape[1]), logits[0].numpy())


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint16])
def test_formula(dtype):  # spec 93, 94, R24
    logits = torch.tensor([[2.0, -2.0, 3.0, -3.0, 1.0, 0.0]])
    p = state(repetition=2.0, presence=0.5, frequency=0.25, dtype=dtype, vocab_size=6)
    reset_counts(p.counts, p.seen, 0, torch.tensor([0, 1, 2, 3, 3], dtype=torch.int32), ignore_length=2)
    wanted = [1.0, -4.0, 1.5 - 0.75, -6.0 - 1.0, 1.0, 0.0]
    assert adjusted(logits, Overlay(penalties=p)).tolist() == wanted
    penalties(logits, p, vocab_size=6)
    assert logits.tolist() == [wanted]


def test_non_finite_logits_stay_and_results_are_clamped():  # spec 93
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        top = torch.finfo(dtype).max
        logits = torch.tensor([[INF, -INF, NAN, -top, top]], dtype=dtype)
        p = state(repetition=3.0, presence=1e38, vocab_size=5)
        p.counts[:] = 1
        penalties(logits, p, vocab_size=5)
        assert logits[0, 0] == INF and logits[0, 1] == -INF and logits[0].isnan().tolist() == [False] * 2 + [True] + [False] * 2
        assert logits[0, 3] == -top and logits[0, 4].isfinite()


def test_prompt_ids_outside_the_vocabulary_are_dropped():  # spec 96, 97
    p = state()
    reset_counts(p.counts, p.seen, 0, torch.tensor([-1, 100, 5, 1 << 30], dtype=torch.int32))
    assert p.counts.sum() == 1 and p.counts[0, 5] == 1


def test_drafts_before_a_row_count_for_it():  # spec 96, R19
    logits = torch.zeros(3, V)
    prefix = torch.tensor([[-1, -1], [7, -1], [7, 7]], dtype=torch.int32)
    p = state(rows=3, frequency=1.0, prefix=prefix)
    penalties(logits, p, vocab_size=V)
    assert logits[:, 7].tolist() == [0.0, -1.0, -2.0] and logits.abs().sum() == 3
    assert not p.counts.any()


def test_rows_without_a_slot_are_not_penalised():
    p = state(repetition=5.0)
    p.counts[:] = 9
    p.slot[:] = -1
    logits = torch.randn(1, V)
    before = logits.clone()
    penalties(logits, p, vocab_size=V)
    assert torch.equal(logits, before)


def test_order_is_bias_then_penalties_then_bans():  # spec 100, 105
    p = state(repetition=2.0)
    p.counts[0, :3] = 1
    overlay = Overlay(bias=TokenList.of([[0, 1, 3]], [[3.0, -5.0, 1.0]]), penalties=p, bans=TokenList.of([[2]]))
    got = adjusted(torch.tensor([[1.0, 1.0, 1.0, 1.0] + [0.0] * 96]), overlay)
    assert got[:4].tolist() == [2.0, -8.0, -INF, 2.0]


def test_bias_on_extreme_logits():  # spec 104
    big = float(np.finfo(np.float32).max)
    x = torch.tensor([[big, -big, -INF, INF, NAN, 1.0]])
    bias = TokenList.of([[0, 1, 2, 3, 4, 5]], [[big, -big, INF, -INF, 1.0, -INF]])
    got = adjusted(x, Overlay(bias=bias))
    assert got[:4].tolist() == [big, -big, -INF, INF] and np.isnan(got[4]) and got[5] == -INF


def test_ids_outside_the_vocabulary_are_ignored():
    overlay = Overlay(bias=TokenList.of([[-1, 100, 5000]], [[9.0, 9.0, 9.0]]), bans=TokenList.of([[-7, 100]]))
    logits, rows = torch.randn(1, 120), SampleRows.uniform(1, temperature=0)
    assert sample(logits, rows, vocab_size=V, overlay=overlay).token[0] == logits[0, :V].argmax()


def test_bans_and_mask_together_can_leave_nothing():
    words = torch.tensor([[0b110, 0, 0, 0]], dtype=torch.int32)
    result = sample(
        torch.zeros(1, V), SampleRows.uniform(1), vocab_size=V, bitmask=words, overlay=Overlay(bans=TokenList.of([[1, 2]]))
    )
    assert result.token.tolist() == [-1] and result.status.tolist() == [SampleStatus.DEAD]


def test_an_overlay_of_4097_ids_and_its_neighbours():
    logits = torch.zeros(3, 8193)
    lists = [[], list(range(4097)), []]
    result = sample(logits, SampleRows.uniform(3, temperature=0), vocab_size=8193, overlay=Overlay(bans=TokenList.of(lists)))
    assert result.token.tolist() == [0, 4097, 0]


def test_neutral_overlay_changes_no_bit():
    logits, rows = torch.randn(8, V), SampleRows.uniform(8, seed=3)
    p = state(rows=8)
    p.counts[:] = 3
    overlay = Overlay(TokenList.of([[1]] * 8, [[0.0]] * 8), p, TokenList.of([[]] * 8))
    plain, neutral = (sample(logits, rows, vocab_size=V, overlay=o, return_probs=True) for o in (None, overlay))
    assert torch.equal(plain.token, neutral.token) and torch.equal(plain.probs, neutral.probs)
