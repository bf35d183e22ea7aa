"""Beam search against exhaustive search, and its rules one by one."""

import itertools

import numpy as np
import pytest
import torch

from kernels.reference import BeamParams, BeamState, beam_step, finalize_beams

INF = float("inf")
V, LONGEST = 5, 4


def params(width=3, length_penalty=1.0, diversity=0.0, early_stopping=1, end_id=0, max_length=LONGEST, requests=1):
    return BeamParams(
        *(
            torch.full((requests,), v, dtype=d)
            for v, d in (
                (width, torch.int32),
                (length_penalty, torch.float32),
                (diversity, torch.float32),
                (early_stopping, torch.int32),
                (end_id, torch.int32),
                (max_length, torch.int32),
            )
        )
    )


def model(seed):
    """Log-probabilities of the next token from the text so far."""

    def logprobs(text):
        rng = np.random.default_rng([seed, len(text), *(t + 1 for t in text)])
        return torch.log_softmax(torch.tensor(rng.standard_normal(V) * 2, dtype=torch.float32), dim=0)

    return logprobs


def run(logprobs, p, width=3, longest=LONGEST):
    state = BeamState.start(1, width, longest)
    for position in range(longest):
        if state.done[0]:
            break
        rows = torch.stack([logprobs(text[:position].tolist()) for text in state.tokens[0]])
        beam_step(rows[None], state, p)
    finalize_beams(state, p)
    return [text[:n].tolist() for text, n in zip(state.pool_tokens[0], state.pool_length[0], strict=True) if n]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_width_that_holds_everything_finds_the_best_texts(length_penalty, seed):  # spec 107
    logprobs, width, longest = model(seed), 200, 3
    scored = {}
    for n in range(1, longest + 1):
        for text in itertools.product(range(V), repeat=n):
            if 0 in text[:-1] or (text[-1] != 0 and n < longest):
                continue
            cum = sum(float(logprobs(list(text[:i]))[t]) for i, t in enumerate(text))
            scored[text] = cum / n**length_penalty
    wanted = sorted(scored, key=lambda text: -scored[text])[:10]
    found = run(logprobs, params(width, length_penalty, early_stopping=2, max_length=longest), width, longest)
    assert found[:10] == [list(text) for text in wanted]


def test_one_beam_is_greedy_decoding():
    logprobs, text = model(9), []
    for _ in range(LONGEST):
        text.append(int(logprobs(text).argmax()))
        if text[-1] == 0:
            break
    assert run(logprobs, params(1), width=1) == [text]


def first_step(values, p, width=2):
    state = BeamState.start(1, width, LONGEST)
    rows = torch.full((1, width, V), -INF)
    rows[0, 0] = torch.tensor(values)
    return state, beam_step(rows, state, p)


def test_equal_candidates_go_by_beam_and_token():
    _, step = first_step([-INF, -1.0, -1.0, -1.0, -1.0], params(2))
    assert step.token.tolist() == [[1, 2]] and step.parent.tolist() == [[0, 0]]


def test_an_end_beyond_the_width_is_dropped():  # spec 107
    state, step = first_step([-3.0, -1.0, -2.0, -4.0, -5.0], params(2))
    assert step.token.tolist() == [[1, 2]] and not (state.pool_length > 0).any()
    state, step = first_step([-1.5, -1.0, -2.0, -4.0, -5.0], params(2))
    assert step.token.tolist() == [[1, 2]] and state.pool_tokens[0, 0, :1].tolist() == [0]


def test_columns_beyond_the_width_and_missing_candidates_are_padded():  # spec 109
    state, step = first_step([-INF, -1.0, -INF, -INF, -INF], params(2), width=4)
    assert step.token.tolist() == [[1, -1, -1, -1]] and step.parent.tolist() == [[0, -1, -1, -1]]
    assert state.cum.tolist() == [[-1.0, -INF, -INF, -INF]]


def test_a_request_whose_beams_all_die_is_done():  # spec R21
    state, step = first_step([-INF] * V, params(2))
    assert state.done.tolist() == [True] and step.token.tolist() == [[-1, -1]]


def test_diversity_moves_the_rank_and_not_the_score():  # spec 107
    state = BeamState.start(1, 2, LONGEST)
    state.cum[0] = torch.tensor([-1.0, -1.5])
    rows = torch.full((1, 2, V), -10.0)
    rows[0, 0, 1], rows[0, 1, 2] = -1.0, -1.0
    step = beam_step(rows, state, params(2, diversity=3.0))
    assert step.parent.tolist() == [[1, 0]] and state.cum.tolist() == [[-2.5, -2.0]]


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty", "live", "done"),
    [
        (1, 1.0, -0.1, True),  # the pool is full
        (0, 1.0, -1.9, False),  # -1.9 / 2 may still pass -1.0
        (0, 1.0, -2.1, True),
        (2, 1.0, -2.1, False),  # -2.1 / 4 may still pass -1.0
        (2, 1.0, -4.1, True),
        (2, 0.0, -2.1, True),  # no gain by length
    ],
)
def test_early_stopping(early_stopping, length_penalty, live, done):  # spec 108
    state = BeamState.start(1, 1, LONGEST)
    state.length[0], state.cum[0, 0] = 1, 0.0
    state.pool_score[0, 0], state.pool_length[0, 0] = -1.0, 1
    rows = torch.full((1, 1, V), -INF)
    rows[0, 0, 1] = live
    beam_step(rows, state, params(1, length_penalty, early_stopping=early_stopping))
    assert bool(state.done[0]) is done


def test_the_pool_keeps_the_best_and_the_older_of_equals():  # spec 108
    state, p = BeamState.start(1, 2, LONGEST), params(2, early_stopping=2, length_penalty=0.0, max_length=9)
    for turn, score in enumerate((-2.0, -1.0, -1.0, -0.5)):
        state.cum[0] = torch.tensor([0.0, -INF])
        state.length[0], state.done[0] = 1, False
        state.tokens[0, 0, 0] = turn
        rows = torch.full((1, 2, V), -INF)
        rows[0, 0, 0], rows[0, 0, 1] = score, -0.1
        beam_step(rows, state, p)
    assert state.pool_cum.tolist() == [[-0.5, -1.0]] and state.pool_tokens[0, :, 0].tolist() == [3, 1]


def test_requests_do_not_meet():
    rows = torch.log_softmax(torch.randn(3, 2, V), dim=-1)
    together, p = BeamState.start(3, 2, LONGEST), params(2, requests=3)
    both = beam_step(rows, together, p)
    for b in range(3):
        alone = BeamState.start(1, 2, LONGEST)
        step = beam_step(rows[b : b + 1], alone, params(2))
        assert torch.equal(step.token[0], both.token[b]) and torch.equal(alone.cum[0], together.cum[b])
