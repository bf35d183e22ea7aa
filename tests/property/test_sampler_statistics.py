"""Guided sampling is the model's distribution renormalised over what is allowed, in 2^16 draws through the host pipeline."""

import functools

import numpy as np
import pytest
from scipy.stats import chisquare

from tests.sampling_bench import EOS, Bench, V, softmax, table

DRAWS, SLOTS = 1 << 16, 64
REJECT = 1e-6
ALLOWED = {1, 2, 3, 5, 7, 9, 12, EOS}
LOGITS = table(2, spread=1.0)


@functools.cache
def plain_draws():
    return draws(lambda tokens: ALLOWED)


def draws(guide, **params):
    """How often each token came, at 2^16 output positions of one seeded request."""
    counts = np.zeros(V, np.int64)
    with Bench(LOGITS, slots=SLOTS) as bench:
        for slot in range(SLOTS):
            bench.start(slot, guide=guide, prompt=[6, 4], output=[9], temperature=1.0, seed=99, max_tokens=8, **params)
        for launch in range(DRAWS // SLOTS):
            _, result = bench.launch(offsets=np.arange(SLOTS) + launch * SLOTS)
            counts += np.bincount(result.token, minlength=V)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, softmax(LOGITS[9], ALLOWED)),
        ({"bad_words": ["c"], "logit_bias": {"5": 1.0}, "presence_penalty": 0.7},
         softmax(LOGITS[9] + np.eye(V)[5] - 0.7 * np.eye(V)[[4, 6, 9]].sum(0), ALLOWED - {2})),
    ],
)  # fmt: skip
def test_guided_draws(params, expected):  # spec 17, R17
    counts = draws(lambda tokens: ALLOWED, **params) if params else plain_draws()
    live = expected > 0
    assert counts.sum() == DRAWS
    assert counts[~live].sum() == 0
    assert chisquare(counts[live], expected[live] * DRAWS).pvalue > REJECT


@pytest.mark.slow
def test_the_test_can_tell():
    """A distribution that is a little off is refused: the guide's set renormalised at another temperature."""
    counts = plain_draws()
    wrong = softmax(LOGITS[9] / 1.05, ALLOWED)
    assert chisquare(counts[wrong > 0], wrong[wrong > 0] * DRAWS).pvalue < REJECT
