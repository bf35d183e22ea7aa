"""Corners of the sampler's parameters at one position, by their formulas; the whole table is in test_sampler_effect_table.py."""

import numpy as np
import pytest

from tests.sampling_bench import EOS, V, distribution, softmax, table, tokens_of

PROMPT = [3, 5, 5, 7, 0]
ALLOWED = {1, 2, 3, 5, 7, 9, 12, EOS}
OUTPUT = [5, 9, 5]
ROW = table()[OUTPUT[-1]].astype(np.float64)


def guides():
    return pytest.mark.parametrize("guide", [None, lambda tokens: ALLOWED], ids=["free", "guided"])


def check(expected_logits, guide, banned=(), *, output=OUTPUT, **params):
    allowed = (ALLOWED if guide else set(range(V))) - set(banned)
    found = distribution(guide=guide, prompt=PROMPT, output=output, temperature=1.0, seed=1, **params)
    np.testing.assert_allclose(found, softmax(expected_logits, allowed), rtol=2e-6, atol=1e-9)


@guides()
def test_plain(guide):  # spec 68: the model's distribution over what the guide allows
    check(ROW, guide)


@guides()
def test_logit_bias(guide):  # spec 105
    expected = ROW.copy()
    expected[[2, 9, 4]] += [1.5, -2.0, 100.0]
    check(expected, guide, logit_bias={"2": 1.5, "9": -2.0, "4": 100.0})


@guides()
def test_a_bias_never_overflows(guide):  # spec 93: clamped to finite values; the greatest wins
    found = distribution(guide=guide, temperature=1.0, logit_bias={"2": 3e38, "5": 3e38})
    assert found[2] + found[5] == pytest.approx(1.0)


@guides()
def test_allowed_token_ids(guide):
    check(ROW, guide, banned=set(range(V)) - {2, 3, 9, 11}, allowed_token_ids=[2, 3, 9, 11])


@guides()
@pytest.mark.parametrize(("word", "banned"), [("ij", set()), ("ja", {0}), ("fjc", {2}), ("k", {10})])
def test_bad_words(guide, word, banned):  # spec 101: length 1 always, longer ones where what stands before their last token matches
    found = distribution(guide=guide, prompt=PROMPT, output=[5, 9], temperature=1.0, bad_words=[word])
    allowed = (ALLOWED if guide else set(range(V))) - banned
    np.testing.assert_allclose(found, softmax(table()[9], allowed), rtol=2e-6, atol=1e-9)


def test_bad_words_begin_in_the_prompt():  # spec 101
    row = table()[0].astype(np.float64)
    for word, banned in (("hab", {1}), ("fhac", {2}), ("gad", set()), ("ae", {4})):
        found = distribution(prompt=PROMPT, temperature=1.0, bad_words=[word])
        np.testing.assert_allclose(found, softmax(row, set(range(V)) - banned), rtol=2e-6, atol=1e-9)


def penalised(row, prompt, output, ignore=0, *, repetition=1.0, presence=0.0, frequency=0.0):
    """Spec 93 and 94 in float64."""
    x = row.copy()
    for token in range(V):
        count = prompt[ignore:].count(token) + output.count(token)
        if count or token in prompt[:ignore]:
            x[token] = x[token] * repetition if x[token] < 0 else x[token] / repetition
        if count:
            x[token] -= presence + frequency * count
    return x


@guides()
@pytest.mark.parametrize("ignore", [0, 2, 99])
@pytest.mark.parametrize(
    "values",
    [
        {"repetition_penalty": 1.7}, {"repetition_penalty": 0.5}, {"presence_penalty": 0.8}, {"frequency_penalty": -0.6},
        {"repetition_penalty": 1.3, "presence_penalty": -0.5, "frequency_penalty": 0.9},
    ],
)  # fmt: skip
def test_penalties(guide, ignore, values):  # spec 93 94
    short = {name.split("_")[0]: value for name, value in values.items()}
    check(penalised(ROW, PROMPT, OUTPUT, ignore, **short), guide, prompt_ignore_length=ignore, **values)


@guides()
@pytest.mark.parametrize(("size", "banned"), [(1, {0, 3, 5, 7, 9}), (2, {5, 7, 9}), (3, set()), (4, set())])
def test_no_repeat_ngram(guide, size, banned):  # spec 102: prompt and output are one text
    check(ROW, guide, banned=banned, no_repeat_ngram_size=size)


def test_no_repeat_ngram_of_three():  # spec 102
    row = table()[5].astype(np.float64)
    found = distribution(prompt=[1, 5, 9, 3, 5, 8], output=[3, 5], temperature=1.0, no_repeat_ngram_size=3)
    np.testing.assert_allclose(found, softmax(row, set(range(V)) - {8}), rtol=2e-6, atol=1e-9)


@guides()
def test_min_tokens(guide):  # spec 103: what would end the text, also a stop id and a stop sequence
    check(ROW, guide, banned={EOS, 2, 7}, min_tokens=4, stop_token_ids=[2], stop_token_sequences=[[9, 5, 7], [5, 9, 3]])
    check(ROW, guide, min_tokens=3, stop_token_ids=[2], stop_token_sequences=[[9, 5, 7]])


def test_min_tokens_ban_the_end_that_is_ignored():  # spec 103: the original end id
    found = distribution(temperature=1.0, ignore_eos=True, min_tokens=2)
    assert found[EOS] == 0
    assert distribution(temperature=1.0, ignore_eos=True)[EOS] > 0


@guides()
def test_top_p_decay(guide):  # spec 106
    def kept(p, row):
        allowed = sorted(ALLOWED if guide else range(V))
        full = softmax(row, allowed)
        order = sorted(allowed, key=lambda token: -full[token])
        count = int(np.searchsorted(np.cumsum(full[order]), p)) + 1
        return softmax(row, order[:count])

    for output, p in (([], 0.9), ([5], 0.63), ([5, 9], 0.441), ([5, 9, 5], 0.4), ([5, 9, 2], 0.9), ([2, 9], 0.63)):
        row = table()[[*PROMPT, *output][-1]].astype(np.float64)
        found = distribution(guide=guide, prompt=PROMPT, output=output, top_p=0.9, top_p_decay=0.7, top_p_min=0.4, top_p_reset_id=2)
        np.testing.assert_allclose(found, kept(p, row), rtol=2e-6, atol=1e-9)


@guides()
def test_the_order_is_bias_penalties_bans_temperature_filters(guide):  # spec 100, 69
    biased = ROW.copy()
    biased[[2, 5, 9]] += [1.0, -3.0, 2.0]
    x = penalised(biased, PROMPT, OUTPUT, repetition=1.5, presence=0.3)
    allowed = (ALLOWED if guide else set(range(V))) - {7, 0}  # bans: nothing of theirs is left for top_k to count
    top = sorted(allowed, key=lambda token: -x[token])[:3]
    found = distribution(
        guide=guide, prompt=PROMPT, output=OUTPUT, temperature=0.5, top_k=3, logit_bias={"2": 1.0, "5": -3.0, "9": 2.0},
        repetition_penalty=1.5, presence_penalty=0.3, bad_words=["h", "a"],
    )  # fmt: skip
    np.testing.assert_allclose(found, softmax(x / 0.5, top), rtol=2e-6, atol=1e-9)


@guides()
def test_greedy_rows_obey_too(guide):
    biased = ROW.copy()
    biased[2] += 9.0
    output = tokens_of(1, guide=guide, prompt=[5], logit_bias={"2": 9.0}, max_tokens=1)
    assert output == [2]
    best = max((ALLOWED if guide else set(range(V))) - {2}, key=lambda token: biased[token])
    assert tokens_of(1, guide=guide, prompt=[5], logit_bias={"2": 9.0}, bad_words=["c"], max_tokens=1) == [best]
