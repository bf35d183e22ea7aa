"""Finish reasons: order on one token, first position over steps, stop words across the border of a step."""

import random

import pytest
import torch

from kernels.reference import FinishReason, StopWords, TokenList, finish_reasons, shift_history


def i32(values):
    return torch.tensor(values, dtype=torch.int32)


def judge(tokens, *, room=100, end_ids=(), words=(), history=(-1,) * 4, count=None):
    result = finish_reasons(
        i32([tokens]),
        i32([len(tokens) if count is None else count]),
        i32([10]),
        i32([10 + room]),
        end_ids=TokenList.of([list(end_ids)]),
        stop_words=StopWords.of([list(words)]),
        history=i32([list(history)]),
    )
    return FinishReason(int(result.reason[0])), int(result.kept[0])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"end_ids": [5], "room": 1, "words": [[5]]}, FinishReason.END_ID),
        ({"room": 1, "words": [[5]]}, FinishReason.LENGTH),
        ({"words": [[5]]}, FinishReason.STOP_WORDS),
        ({"words": [[6], []]}, FinishReason.NONE),
    ],
)
def test_order_on_one_token(options, reason):  # spec 114
    assert judge([5], **options) == (reason, 1)


def test_the_first_finishing_position_wins():  # spec 114
    assert judge([1, 2, 3, 9], end_ids=[9], words=[[2]]) == (FinishReason.STOP_WORDS, 2)
    assert judge([1, 2, 3, 9], end_ids=[9], room=3) == (FinishReason.LENGTH, 3)
    assert judge([1, 9, 2], end_ids=[8, 9], room=3) == (FinishReason.END_ID, 2)


@pytest.mark.parametrize("room", [0, -5, 1])
def test_length_is_reached_at_or_past_the_limit(room):  # spec 115
    assert judge([1, 2], room=room) == (FinishReason.LENGTH, 1)


def test_tokens_that_are_not_real_are_not_judged():
    assert judge([1, 9, 9], end_ids=[9], count=1) == (FinishReason.NONE, 1)
    assert judge([9], end_ids=[9], count=0) == (FinishReason.NONE, 0)


def test_stop_word_across_steps():  # spec 116
    assert judge([3, 4], words=[[1, 2, 3]], history=[0, 0, 1, 2]) == (FinishReason.STOP_WORDS, 1)
    assert judge([3, 4], words=[[7, 1, 2, 3], [2, 3, 4]], history=[-1, -1, 1, 2]) == (FinishReason.STOP_WORDS, 2)
    assert judge([3], words=[[1, 2, 3]], history=[1, 2, 0, 0]) == (FinishReason.NONE, 1)


def test_sequences_keep_their_own_words():
    words = StopWords.of([[[1]], [], [[2, 3], [4]]])
    result = finish_reasons(
        i32([[1], [1], [3]]),
        i32([1, 1, 1]),
        i32([0] * 3),
        i32([9] * 3),
        end_ids=TokenList.of([[], [], []]),
        stop_words=words,
        history=i32([[2], [2], [2]]),
    )
    assert result.reason.tolist() == [3, 0, 3]


def test_history_moves_by_the_accepted_count():  # spec 116
    history = i32([[-1, 1, 2], [4, 5, 6], [7, 8, 9]])
    shift_history(history, i32([[3, 4, 5, 6]] * 3), i32([1, 0, 4]))
    assert history.tolist() == [[1, 2, 3], [4, 5, 6], [4, 5, 6]]


def test_any_cut_of_a_text_into_steps_gives_the_same_end():  # spec 114, 130
    rng = random.Random(5)
    for _ in range(200):
        text = [rng.randrange(4) for _ in range(20)]
        words = [[rng.randrange(4) for _ in range(rng.randint(1, 4))] for _ in range(2)]
        room, ends = rng.randint(1, 25), [3] if rng.random() < 0.3 else []
        at_once = judge(text, room=room, end_ids=ends, words=words)
        history, used, found = i32([[-1] * 4]), 0, (FinishReason.NONE, 0)
        while used < 20 and found[0] == FinishReason.NONE:
            part = text[used : used + rng.randint(1, 4)]
            found = judge(part, room=room - used, end_ids=ends, words=words, history=history[0].tolist())
            shift_history(history, i32([part]), i32([found[1]]))
            used += found[1]
        assert (found[0], used) == at_once
