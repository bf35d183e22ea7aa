"""Rejection keeps the target distribution whatever the drafts are: enumeration where it is exact, chi-square beside it."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.plain.distribution import Distribution
from kernels.reference import Drafts, Purpose, SampleInputs, SampleRows, sample, verify
from tests.reference_oracle import chi_square_p

LEVEL = 1e-6 / 20
MASSES = st.lists(st.integers(0, 9) | st.integers(1 << 43, 1 << 44), min_size=4, max_size=4).filter(any)


def distribution(masses):
    ids = np.flatnonzero(np.array(masses, dtype=object))
    return Distribution(ids, np.array([masses[i] for i in ids], dtype=object), sum(masses))


def law(d):
    return {int(i): Fraction(int(w), d.total) for i, w in zip(d.ids, d.weights, strict=True)}


def accepted(p, q, token):
    """Exact probability that 64 random bits accept, from the smallest bits that do not."""
    low, high = 0, 1 << 64
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if p.accepts(q, token, middle) else (low, middle)
    return Fraction(low, 1 << 64)


@settings(max_examples=80, deadline=None)
@given(p=MASSES, qs=st.lists(MASSES, min_size=1, max_size=3))
def test_emitted_law_is_p_for_any_siblings(p, qs):  # spec 121, R20
    emitted = {i: Fraction(0) for i in range(4)}
    reach, current = Fraction(1), distribution(p)
    for q in map(distribution, qs):
        rejects = Fraction(0)
        for token, weight in law(q).items():
            yes = accepted(current, q, token)
            emitted[token] += reach * weight * yes
            rejects += weight * (1 - yes)
        reach, current = reach * rejects, current.residual(q)
    for token, weight in law(current).items():
        emitted[token] += reach * weight
    wanted = law(distribution(p))
    assert all(abs(emitted[i] - wanted.get(i, 0)) < Fraction(1, 1 << 60) for i in range(4))


@settings(max_examples=80, deadline=None)
@given(p=MASSES, q=MASSES)
def test_acceptance_is_strict(p, q):
    target, draft = distribution(p), distribution(q)
    for token in range(4):
        if p[token] == 0:
            assert not target.accepts(draft, token, 0)
        if q[token]:
            assert target.accepts(target, token, (1 << 64) - 1) is (p[token] > 0)
            wanted = min(Fraction(1), Fraction(p[token] * sum(q), q[token] * sum(p)))
            assert abs(accepted(target, draft, token) - wanted) < Fraction(1, 1 << 63)


def test_residual_without_mass_is_the_target():  # spec R20
    p = distribution([1, 2, 0, 1])
    assert p.residual(distribution([2, 4, 0, 2])) is p


def run(target_logits, draft_logits, requests, most, params, draft_params, parents=None):
    """`requests` verifications of freshly drawn drafts; every node has the same two rows."""
    base = torch.arange(requests) * (most + 1)
    draft_rows = SampleRows.uniform(requests * most, seed=8, purpose=Purpose.DRAFT, **draft_params)
    draft_rows.offset = (base[:, None] + torch.arange(most)).flatten()
    drafted = SampleInputs(draft_logits.repeat(requests * most, 1), draft_rows, draft_logits.numel())
    tokens = sample(drafted.logits, draft_rows, vocab_size=drafted.vocab_size).token.reshape(requests, most)
    rows = SampleRows.uniform(requests * (most + 1), seed=8, **params)
    rows.offset = (base[:, None] + torch.arange(most + 1)).flatten()
    target = SampleInputs(target_logits.repeat(requests * (most + 1), 1), rows, target_logits.numel())
    shape = None if parents is None else torch.tensor([parents] * requests, dtype=torch.int32)
    return verify(target, Drafts(tokens, torch.full((requests,), most, dtype=torch.int32), shape), drafted)


CASES = [({}, {}), ({"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.5}), ({"top_k": 3}, {"top_k": 2})]


@pytest.mark.parametrize(("params", "draft_params"), CASES)
@pytest.mark.parametrize("parents", [None, [0, 0, 1]])
def test_each_position_follows_the_target(params, draft_params, parents):  # spec R20, R27
    rng = np.random.default_rng(5)
    target, draft = (torch.tensor(rng.standard_normal(6), dtype=torch.float32) for _ in range(2))
    probs = sample(target[None], SampleRows.uniform(1, **params), vocab_size=6, return_probs=True).probs[0].double().numpy()
    result = run(target, draft, 2500, 3, params, draft_params, parents)
    assert 0 < int(result.accepted.sum()) < 7500
    for position in range(3):
        tokens = result.tokens[:, position].numpy()
        counts = np.bincount(tokens[tokens >= 0], minlength=6)
        assert chi_square_p(counts, probs / probs.sum()) > LEVEL
    after = result.tokens[result.accepted >= 1][:, :2].numpy()  # the second, whatever the first was
    for first in range(6):
        counts = np.bincount(after[after[:, 0] == first][:, 1], minlength=6)
        assert counts.sum() == 0 or chi_square_p(counts, probs / probs.sum()) > LEVEL / 6


def test_neighbours_and_padding_change_no_token():  # spec R18
    generator = torch.Generator().manual_seed(1)
    target, draft = torch.randn(40, 9, generator=generator), torch.randn(30, 9, generator=generator)
    rows, draft_rows = SampleRows.uniform(40, seed=5), SampleRows.uniform(30, seed=5)
    rows.offset, draft_rows.offset = torch.arange(40), torch.arange(30)
    tokens = torch.randint(0, 9, (10, 3), generator=generator).to(torch.int32)

    def part(first, last):
        def cut(r, n):
            return SampleRows(
                *(
                    getattr(r, name)[first * n : last * n]
                    for name in ("temperature", "top_k", "top_p", "min_p", "seed", "offset", "purpose")
                )
            )

        return verify(
            SampleInputs(target[first * 4 : last * 4], cut(rows, 4), 9),
            Drafts(tokens[first:last], torch.full((last - first,), 3, dtype=torch.int32)),
            SampleInputs(draft[first * 3 : last * 3], cut(draft_rows, 3), 9),
        ).tokens

    together = part(0, 10)
    assert all(torch.equal(part(b, b + 1)[0], together[b]) for b in range(10))
