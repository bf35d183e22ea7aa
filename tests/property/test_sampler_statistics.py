"""Guided sampling is the model's distribution renormalised over what is allowed: 2^14 draws through the host pipeline, and 2^20 of
the same row, mask and overlay by the sampler's own draw."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from kernels.plain.keep import draw_many
from kernels.plain.live import SampleInputs
from kernels.reference import random_bits
from tests.sampling_bench import EOS, Bench, V, softmax, table

DRAWS, SLOTS = 1 << 14, 64
REJECT = 1e-6
ALLOWED = {1, 2, 3, 5, 7, 9, 12, EOS}
LOGITS = table(2, spread=1.0)


def draws(guide, **params):
    """How often each token came, at 2^14 output positions of one seeded request."""
    counts = np.zeros(V, np.int64)
    with Bench(LOGITS, slots=SLOTS) as bench:
        for slot in range(SLOTS):
            bench.start(slot, guide=guide, prompt=[6, 4], output=[9], temperature=1.0, seed=99, max_tokens=8, **params)
        for launch in range(DRAWS // SLOTS):
            _, result = bench.launch(offsets=np.arange(SLOTS) + launch * SLOTS)
            counts += np.bincount(result.token, minlength=V)
    return counts


CASES = [
    ({}, softmax(LOGITS[9], ALLOWED)),
    (
        {"bad_words": ["c"], "logit_bias": {"5": 1.0}, "presence_penalty": 0.7},
        softmax(LOGITS[9] + np.eye(V)[5] - 0.7 * np.eye(V)[[4, 6, 9]].sum(0), ALLOWED - {2}),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("params", "expected"), CASES)
def test_guided_draws(params, expected):  # spec 17, R17
    counts = draws(lambda tokens: ALLOWED, **params)
    live = expected > 0
    assert counts.sum() == DRAWS
    assert counts[~live].sum() == 0
    assert chisquare(counts[live], expected[live] * DRAWS).pvalue > REJECT


MANY = 1 << 20


def row_of_a_launch(**params):
    """What the next launch of a seeded guided text samples from, by its own descriptor, and the token that it samples."""
    with Bench(LOGITS) as bench:
        bench.start(0, guide=lambda tokens: ALLOWED, prompt=[6, 4], output=[9], temperature=1.0, seed=99, max_tokens=8, **params)
        made, seen = bench.rows.descriptor, []
        bench.rows.descriptor = lambda launch, batch: seen.append(made(launch, batch)) or seen[-1]
        token = int(bench.step().token[0])
        sealed, logits = seen[0], torch.from_numpy(LOGITS[[9, 0, 0, 0]])
        status = torch.from_numpy(sealed.action).clamp(max=2)
        inputs = SampleInputs(logits, sealed.rows, V, sealed.bitmask, None, status, overlay=sealed.overlay)
        return inputs.live(0).kept, token


@pytest.mark.parametrize(("params", "expected"), CASES)
def test_a_million_guided_draws(params, expected):  # spec 17, R16, R17, R20
    kept, token = row_of_a_launch(**params)
    drawn = draw_many(kept, random_bits(np.uint64(99), np.arange(MANY, dtype=np.uint64), np.uint64(0)))
    assert drawn[1] == token  # output position 1
    counts, live = np.bincount(drawn, minlength=V), expected > 0
    assert counts[~live].sum() == 0
    assert chisquare(counts[live], expected[live] * MANY).pvalue > REJECT
    wrong = softmax(np.log(np.maximum(expected, 1e-300)) / 1.02, np.flatnonzero(live))  # a temperature that is a little off
    assert chisquare(counts[live], wrong[live] * MANY).pvalue < REJECT
