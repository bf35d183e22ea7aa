"""The beam search of the loop against the reference kernel, step by step, and against all texts of a tiny vocabulary."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_worker.beam.search import BeamRules, BeamSearch
from kernels.reference import BeamParams, BeamState, beam_step, finalize_beams
from shared.errors import AccountingError

V, END, LONGEST, WIDEST = 6, 0, 6, 4
widths = st.lists(st.integers(1, WIDEST), min_size=1, max_size=4).map(sorted)


def model(seed, *, dead=0.0):
    """Log-probabilities float32 [V] of the next token from the text so far; ``dead``: the share of tokens that are not allowed."""

    def logprobs(text):
        rng = np.random.default_rng([seed, len(text), *(t + 1 for t in text)])
        x = torch.tensor(rng.standard_normal(V) * 2, dtype=torch.float32)
        x[torch.from_numpy(rng.random(V) < dead)] = -torch.inf
        return torch.log_softmax(x, 0) if torch.isfinite(x).any() else x

    return logprobs


def ours(logprobs, rules, *, longest=LONGEST, ends=(END,)):
    """Texts and scores of the pool, best first; the texts of the beams are kept beside the search as its caller does."""
    search, texts = BeamSearch(rules), [[]]
    while not search.done:
        told = []
        for text in texts:
            row = [(token, float(value)) for token, value in enumerate(logprobs(text).tolist()) if value > -np.inf]
            told.append(sorted(row, key=lambda each: (-each[1], each[0]))[: 2 * search.width])
        ranked = search.rank(told, 2 * search.width)
        longer = [[*texts[candidate.beam], candidate.token] for candidate in ranked]
        ended = [text if text[-1] in ends or len(text) >= longest else None for text in longer]
        texts = [longer[at] for at in search.advance(ranked, ended)]
        search.validate()
    return [(finished.text, finished.score, finished.cum) for finished in search.pool]


def reference(logprobs, rules, longest=LONGEST):
    """The kernel's search, its live beams in the pool at the end."""
    most = max(rules.widths)
    state = BeamState.start(1, most, longest)
    for position in range(longest):
        params = _params(rules, rules.width(position), longest)
        rows = torch.stack([logprobs(text[:position].tolist()) for text in state.tokens[0]])
        beam_step(rows[None], state, params)
        if state.done[0] and position < longest - 1:
            break
    else:
        state.done[:] = False  # the greatest length ends every text: what is alive joins the pool also where that is full
    finalize_beams(state, params)
    rows = zip(state.pool_tokens[0], state.pool_length[0], state.pool_score[0].tolist(), state.pool_cum[0].tolist(), strict=True)
    return [(text[:n].tolist(), score, cum) for text, n, score, cum in rows if n]


def _params(rules, width, longest):
    values = (width, rules.length_penalty, rules.diversity, rules.early_stopping, END, longest)
    kinds = (torch.int32, torch.float32, torch.float32, torch.int32, torch.int32, torch.int32)
    return BeamParams(*(torch.full((1,), value, dtype=kind) for value, kind in zip(values, kinds, strict=True)))


@settings(max_examples=150, deadline=None)
@example(seed=4493, widths=[1, 2, 3], dead=0.0, early_stopping=2, length_penalty=1.0, diversity=3.0)
@given(
    seed=st.integers(0, 10_000), widths=widths, dead=st.sampled_from([0.0, 0.5]), early_stopping=st.integers(0, 2),
    length_penalty=st.sampled_from([-0.5, 0.0, 0.7, 1.0, 2.0]), diversity=st.sampled_from([0.0, 0.25, 3.0]),
)  # fmt: skip
def test_every_rule_is_the_kernels(seed, widths, dead, early_stopping, length_penalty, diversity):  # spec 107 108 109
    """At the greatest length the search ends the best ``width`` candidates, the kernel as many that go on beside those that end:
    the pool is the same where nothing but the log-probabilities ranks them."""
    rules = BeamRules(tuple(widths), length_penalty, diversity, early_stopping, LONGEST)
    logprobs = model(seed, dead=dead)
    found, expected = ours(logprobs, rules), reference(logprobs, rules)
    if diversity == 0:
        assert found == expected
    else:  # until the last step, whose texts push others out of the pool: one list begins like the other
        short, others = ([each for each in pool if len(each[0]) < LONGEST] for pool in (found, expected))
        assert all(mine == theirs for mine, theirs in zip(short, others, strict=False))


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_width_that_holds_everything_finds_the_best_texts(seed, length_penalty):  # spec 107
    logprobs, longest = model(seed), 3
    scored = {}
    for n in range(1, longest + 1):
        for text in itertools.product(range(V), repeat=n):
            if END not in text[:-1] and (text[-1] == END or n == longest):
                cum = sum(float(logprobs(list(text[:i]))[t]) for i, t in enumerate(text))
                scored[text] = cum / n**length_penalty
    rules = BeamRules((400,), length_penalty, 0.0, 2, longest)
    found = ours(logprobs, rules, longest=longest)
    assert [tuple(text) for text, _, _ in found] == sorted(scored, key=lambda text: -scored[text])
    assert [score for _, score, _ in found] == pytest.approx([scored[tuple(text)] for text, _, _ in found], rel=1e-5)


def test_several_ways_to_end():  # a stop word is an end like an end token
    rules = BeamRules((2,), 1.0, 0.0, 2, LONGEST)
    texts = [text for seed in range(8) for text, _, _ in ours(model(seed), rules, ends=(0, 1, 2))]
    assert all(not {0, 1, 2} & set(text[:-1]) for text in texts)
    assert any(text[-1] in (1, 2) for text in texts)


def test_a_search_that_is_over_takes_nothing():
    search = BeamSearch(BeamRules((1,), 1.0, 0.0, 1, LONGEST))
    ranked = search.rank([[(END, -0.1)]], 2)
    assert search.advance(ranked, ["text"]) == []
    assert search.done
    with pytest.raises(AccountingError, match="is over"):
        search.advance(ranked, ["text"])


def test_what_validate_finds():
    search = BeamSearch(BeamRules((2,), 1.0, 0.0, 1, LONGEST))
    search.validate()
    search.cums = [0.0, 0.0, 0.0]
    with pytest.raises(AccountingError, match="3 beams"):
        search.validate()
    search.cums = []
    with pytest.raises(AccountingError, match="no beam is alive"):
        search.validate()
