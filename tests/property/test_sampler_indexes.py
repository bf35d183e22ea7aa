"""The incremental indexes of the sampler against what a look at the whole text says."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.sampler.clash import clash
from gpu_worker.sampler.ngrams import NgramIndex
from gpu_worker.sampler.penalties import SlotPenalties
from gpu_worker.sampler.token_words import START, TokenWords
from gpu_worker.sampler.top_p_decay import TopPDecay
from kernels.reference import update_counts, update_top_p_decay
from shared.sampling_params import SamplingParams

calm = settings(max_examples=200, deadline=None)
tokens = st.integers(0, 3)
texts = st.lists(tokens, max_size=40)
words = st.lists(st.lists(tokens, max_size=5), max_size=8)


def ends_with(text, word):
    return bool(word) and text[len(text) - len(word) :] == word and len(word) <= len(text)


@calm
@given(words, texts)
def test_words_are_found_and_foreseen(given_words, text):  # spec 101 116
    index, state = TokenWords(given_words), START
    assert bool(index) == any(given_words)
    for at, token in enumerate([*text, 0]):
        before = text[:at]
        assert index.found(state) == any(ends_with(before, word) for word in given_words)
        completing = {word[-1] for word in given_words if len(word) == 1 or (word and ends_with(before, word[:-1]))}
        assert index.completing(state) == completing
        state = index.step(state, token)
    assert index.walk(text) == index.walk(text[3:], index.walk(text[:3]))


@calm
@given(st.integers(2, 5), texts, texts)
def test_ngrams(size, prompt, output):  # spec 102
    index, text = NgramIndex(size, prompt), list(prompt)
    for token in [*output, 0]:
        grams = {tuple(text[i : i + size]) for i in range(len(text) - size + 1)}
        wanted = {gram[-1] for gram in grams if gram[:-1] == tuple(text[len(text) - size + 1 :]) and len(text) >= size - 1}
        banned = index.banned()
        assert set(banned) == wanted
        assert len(banned) == len(wanted)
        index.push(token)
        text.append(token)


def test_texts_of_one_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr("gpu_worker.sampler.ngrams.PRIME", 1)  # every hash is 0
    index = NgramIndex(3, [0, 1, 2, 1, 1, 3, 0, 1])
    assert index.banned() == [2]
    index.push(1)
    assert index.banned() == [3]


def test_an_index_of_single_tokens_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        NgramIndex(1)


@calm
@given(texts, st.floats(0.01, 1.0), st.floats(0.01, 0.99), st.floats(1e-6, 1.0), st.integers(-1, 3))
def test_decay_is_the_kernels(text, initial, decay, minimum, reset_id):  # spec 106
    ours, theirs = TopPDecay(initial, decay, minimum, reset_id), torch.tensor([initial])
    for token in text:
        ours.push(token)
        one = torch.tensor([1])
        update_top_p_decay(
            theirs, torch.tensor([[token]]), one, torch.tensor([0]), initial=torch.tensor([initial]),
            decay=torch.tensor([decay]), minimum=torch.tensor([minimum]), reset_id=torch.tensor([reset_id]),
        )  # fmt: skip
        assert ours.value == theirs[0].item()


@calm
@given(st.lists(st.tuples(st.integers(0, 2), texts, texts, st.integers(0, 50), st.booleans()), min_size=1, max_size=6))
def test_counts_follow_the_owners(owners):  # spec 94 95 97, R24
    state = SlotPenalties(3, 4)
    now = {}
    for slot, prompt, output, ignore, wants in owners:
        params = SamplingParams(presence_penalty=0.5 if wants else 0.0, prompt_ignore_length=ignore)
        state.set(slot, params, prompt)
        now[slot] = (prompt, output, ignore, wants)
        for at in range(len(output) + 1):
            state.catch_up(slot, output[:at])
            state.catch_up(slot, output[:at])  # a step that commits nothing counts nothing
    rows = state.rows()
    assert (rows is None) == (not any(wants for *_, wants in now.values()))
    for slot, (prompt, output, ignore, wants) in now.items() if rows is not None else ():
        assert int(rows.slot[slot]) == (slot if wants else -1)
        if wants:
            assert rows.counts.dtype == torch.uint16
            counted = np.bincount([*prompt[ignore:], *output], minlength=4)
            assert rows.counts.numpy()[slot].tolist() == counted.tolist()
            assert int(rows.seen[slot, 0]) == sum(1 << token for token in set(prompt[:ignore]))


def test_counts_are_the_kernels_and_stay_at_the_most():  # spec 93, R24
    state, theirs = SlotPenalties(1, 4), torch.zeros((1, 4), dtype=torch.uint16)
    state.set(0, SamplingParams(presence_penalty=1.0), [1] * 65_534)
    theirs[0, 1] = 65_534
    for at, output in enumerate(([1], [1, 1], [1, 1, 2], [1, 1, 2, 1])):
        state.catch_up(0, output)
        update_counts(theirs, torch.tensor([output[at:]]), torch.tensor([1]), torch.tensor([0]))
        assert torch.equal(state.rows().counts, theirs)
    assert theirs[0].tolist() == [0, 65_535, 1, 0]


def test_nothing_is_held_for_requests_without_penalties():  # spec R24, 98
    state = SlotPenalties(1024, 128_256)
    state.set(5, SamplingParams(temperature=1.0), [1, 2, 3])
    state.catch_up(5, [4])
    assert state.rows() is None
    assert state._counts is None


@calm
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5))
def test_a_clash_is_minimal(sets):
    sources = {str(i): np.array(allowed) for i, allowed in enumerate(sets)}
    names = clash(sources)
    common = np.logical_and.reduce(list(sources.values()))
    assert bool(names) == (not common.any())
    if names:
        assert not np.logical_and.reduce([sources[name] for name in names]).any()
        for name in names:
            rest = [sources[other] for other in names if other != name]
            assert not rest or np.logical_and.reduce(rest).any()
