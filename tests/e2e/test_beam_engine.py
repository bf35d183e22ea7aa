"""Beam search in the real step loop on the synthetic model: the texts of the reference search, free and under a guide that a real
grammar service walks, through holds, deaths and lost slots; beside other texts, which notice nothing."""

import itertools
import time

import numpy as np
import pytest
import torch

from shared.errors import TooLarge
from shared.gate import Gate
from shared.protocol import Done, Failed
from tests.beam_bench import PROMPT, Bench, expected, logits_after, texts_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
PIECES = ("ab", "cd", "x0", "x1", "x7")
LANGUAGE = {"".join(words) + end for n in (1, 2, 3) for words in itertools.product(PIECES, repeat=n) for end in ("", "e")}
GUIDE = {"regex": "(ab|cd|x[017]){1,3}e?"}
END = 256


def allowed(output):
    """What the guide allows after ``output``, from its texts one by one."""
    prefix = bytes(output).decode()
    found = {ord(text[len(prefix)]) for text in LANGUAGE if text.startswith(prefix) and len(text) > len(prefix)}
    return found | ({END} if prefix in LANGUAGE else set())


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    made = Bench(tmp_path_factory.mktemp("bench"), services=2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def holding(tmp_path_factory):
    """Waits for no row: nearly every step holds."""
    made = Bench(tmp_path_factory.mktemp("holding"), hold_after_s=0.0002)
    yield made
    made.close()


def same(ending, wanted):
    assert isinstance(ending, Done), ending
    assert texts_of(ending) == [text for text, _ in wanted]
    assert [choice.cumulative_logprob for choice in ending.choices] == pytest.approx([cum for _, cum in wanted], rel=1e-5)


SEARCHES = [
    {"best_of": 1, "n": 1},
    {"best_of": 4, "n": 4},
    {"best_of": 4, "n": 2, "length_penalty": 2.0},
    {"best_of": 4, "n": 4, "length_penalty": -0.7, "early_stopping": 0},
    {"best_of": 3, "n": 3, "early_stopping": "never"},
    {"best_of": 4, "n": 4, "beam_search_diversity_rate": 0.8},
    {"best_of": 6, "n": 6, "beam_width_array": [1, 2, 6], "early_stopping": 2},
    {"best_of": 10, "n": 8},
]


def search_of(params):
    early = {True: 1, False: 0, "never": 2}.get(params.get("early_stopping", 1), params.get("early_stopping", 1))
    return {
        "width": params["best_of"], "widths": params.get("beam_width_array", ()), "early_stopping": early,
        "length_penalty": params.get("length_penalty", 1.0), "diversity": params.get("beam_search_diversity_rate", 0.0),
    }  # fmt: skip


@pytest.mark.parametrize("guided", [False, True], ids=["free", "guided"])
@pytest.mark.parametrize("params", SEARCHES, ids=str)
def test_the_texts_are_those_of_the_reference(bench, params, guided):  # spec 107 108 109 110 113 R21
    ending = bench.beams(GUIDE if guided else None, max_tokens=14, **params)
    wanted = expected(bench.vocabulary, max_tokens=14, allowed=allowed if guided else None, **search_of(params))
    same(ending, wanted[: params["n"]])
    for choice in ending.choices:
        assert not guided or choice.text in LANGUAGE
        assert choice.finish_reason == ("stop" if choice.token_ids[-1] == END else "length")
    assert [choice.choice for choice in ending.choices] == list(range(len(ending.choices)))
    assert not bench.engine.scheduler.placed


def test_each_parameter_changes_the_texts(bench):
    """The comparison above would say little where every search gave the same."""
    found = [str(expected(bench.vocabulary, max_tokens=14, **search_of(params))) for params in SEARCHES]
    assert len(set(found)) >= 6


def test_log_probabilities_are_the_beams_own(bench):  # spec 111 112 113
    for mode in ("raw", "processed"):
        ending = bench.beams(GUIDE, best_of=3, n=3, max_tokens=10, logprobs=0, logprobs_mode=mode)
        for choice in ending.choices:
            assert [entry.token_id for entry in choice.logprobs] == choice.token_ids
            assert all(entry.top == [] for entry in choice.logprobs)
            total = sum(entry.logprob for entry in choice.logprobs)
            if mode == "processed":
                assert total == pytest.approx(choice.cumulative_logprob, abs=1e-4)
            for at, entry in enumerate(choice.logprobs):
                logprob, rank = _own(bench, choice.token_ids[:at], entry.token_id, mode)
                assert entry.logprob == pytest.approx(logprob, abs=1e-4)
                assert entry.rank == rank


def _own(bench, output, token, mode):
    x = logits_after(bench.vocabulary, [*PROMPT, *output]).double()
    ids = sorted(allowed(output)) if mode == "processed" else list(range(len(x)))
    return float(x[token] - torch.logsumexp(x[ids], 0)), 1 + int((x[ids] > x[token]).sum())


def test_fewer_texts_than_beams_are_all_of_the_language(bench):  # R21: a beam that can go nowhere ends, the others do not
    ending = bench.beams({"choice": ["yes", "no", "maybe"]}, best_of=8, n=6, max_tokens=14)
    assert sorted(choice.text for choice in ending.choices) == ["maybe", "no", "yes"]
    assert ending.warnings == ["the beam search found 3 of 6 texts"]


def test_nothing_left_is_named(bench):  # R7
    ending = bench.beams({"choice": ["yes"]}, best_of=2, max_tokens=14, bad_words=["e"])
    assert isinstance(ending, Failed)
    assert ending.error.field == "bad_words"


def penalised(output, x):
    """Repetition penalty 1.5 and frequency penalty 0.4 over prompt and output, no 2-gram twice, bias, no end before 4 tokens."""
    x = x.clone()
    x[101] += 2.0
    text = [*PROMPT, *output]
    for token in set(text):
        x[token] = (x[token] * 1.5 if x[token] < 0 else x[token] / 1.5) - 0.4 * text.count(token)
    for first, second in itertools.pairwise(text):
        if first == text[-1]:
            x[second] = -torch.inf
    if len(output) < 4:
        x[END] = -torch.inf
    return x


def test_penalties_and_bans_follow_each_beam(bench):  # spec 99 102 103
    ending = bench.beams(
        best_of=5, n=5, max_tokens=14, repetition_penalty=1.5, frequency_penalty=0.4, no_repeat_ngram_size=2,
        logit_bias={"101": 2.0}, min_tokens=4,
    )  # fmt: skip
    same(ending, expected(bench.vocabulary, width=5, max_tokens=14, change=penalised))


def test_stop_words_end_a_beam_like_an_end_token(bench):  # spec 114 116 118
    search = {"best_of": 4, "n": 4, "max_tokens": 14, "length_penalty": 2.0}
    word = next(text[1:3] for text in (choice.text for choice in bench.beams(GUIDE, **search).choices) if len(text) > 3)
    by_text = bench.beams(GUIDE, stop=[word], **search)
    by_ids = bench.beams(GUIDE, stop_token_sequences=[list(word.encode())], **search)
    assert texts_of(by_text) == texts_of(by_ids)
    assert any(choice.stop_reason == word for choice in by_text.choices)
    for choice in by_text.choices:
        assert word not in choice.text
        assert bytes(choice.token_ids[:-1]).find(word.encode()) < 0


def test_processors_see_each_beams_text(bench):  # R11
    def change(output, x):
        x = x.clone()
        if not [*PROMPT, *output][-1] % 2:
            x[::2] = -torch.inf
        return x

    ending = bench.beams(best_of=4, n=4, max_tokens=12, logits_processors=["odd"])
    same(ending, expected(bench.vocabulary, width=4, max_tokens=12, change=change))


def test_the_prompts_log_probabilities_come_once(bench):
    ending = bench.beams(best_of=3, n=3, max_tokens=4, prompt_logprobs=0, prompt=[70, 71, 72, 73])
    assert [entry.token_id for entry in ending.prompt_logprobs] == [71, 72, 73]
    for at, entry in enumerate(ending.prompt_logprobs):
        x = logits_after(bench.vocabulary, [70, 71, 72, 73][: at + 1]).double()
        assert entry.logprob == pytest.approx(float(x[entry.token_id] - torch.logsumexp(x, 0)), abs=1e-4)


def test_beams_behind_a_reasoning_gate(bench):  # R21: a fork is a fork of gate and matcher
    gate = Gate(end="=", budget=3)

    def behind(output):
        """Free text, three tokens of it at most, then the marker, then the guide."""
        marker = ord("=")
        if marker in output:
            return allowed(output[output.index(marker) + 1 :])
        free = set(range(256)) if len(output) < 3 else set()
        return free | {marker}

    ending = bench.beams(GUIDE, reasoning=gate, best_of=4, n=4, max_tokens=14)
    assert isinstance(ending, Done), ending
    for choice in ending.choices:
        assert all(token in behind(choice.token_ids[:at]) for at, token in enumerate(choice.token_ids))
    same(ending, expected(bench.vocabulary, width=4, max_tokens=14, allowed=behind))


def test_holds_change_nothing(holding):  # R18
    holding.beams(GUIDE, max_tokens=2)  # compiled: all begin together
    company = holding.submit(max_tokens=90, ignore_eos=True, temperature=1.0, seed=1)
    ours = [holding.submit(GUIDE, use_beam_search=True, best_of=4, n=4, max_tokens=14) for _ in range(2)]
    endings = holding.wait(3)
    wanted = expected(holding.vocabulary, width=4, max_tokens=14, allowed=allowed)
    for request_id in ours:
        same(endings[request_id], wanted)
    assert sum(endings[request_id].usage.holds for request_id in ours) > 0
    assert len(endings[company].choices[0].token_ids) == 90


def test_company_is_not_slowed_and_not_changed(bench):  # R11 R18: beams leave the launch of the others
    def launches(*work):
        before = bench.pipeline._launched
        ids = [bench.submit(**each) for each in work]
        endings = bench.wait(len(ids))
        return bench.pipeline._launched - before, [endings[request_id] for request_id in ids]

    plain = {"max_tokens": 60, "ignore_eos": True, "temperature": 1.0, "seed": 4, "logprobs": 2, "repetition_penalty": 1.2}
    beams = {"use_beam_search": True, "best_of": 5, "n": 5, "max_tokens": 20, "ignore_eos": True}
    alone, (text,) = launches(plain)
    together, (beside, searched) = launches(plain, beams)
    assert beside.choices == text.choices
    assert together <= alone + 4
    same(searched, expected(bench.vocabulary, width=5, max_tokens=20, end_id=-1))


def test_two_searches_and_texts_at_once(bench):
    ids = [bench.submit(GUIDE, use_beam_search=True, best_of=4, n=4, max_tokens=14) for _ in range(5)]
    others = [bench.submit(GUIDE, seed=number, temperature=1.0, max_tokens=14) for number in range(6)]
    endings = bench.wait(11)
    wanted = expected(bench.vocabulary, width=4, max_tokens=14, allowed=allowed)
    for request_id in ids:
        same(endings[request_id], wanted)
    assert all(endings[request_id].choices[0].text in LANGUAGE for request_id in others)


def test_more_beams_than_slots_are_refused(bench):  # spec 76
    with pytest.raises(TooLarge) as caught:
        bench.submit(use_beam_search=True, best_of=13)
    assert caught.value.field == "best_of"


def test_a_cancelled_search_gives_what_it_has(bench):
    request_id = bench.submit(use_beam_search=True, best_of=4, n=2, max_tokens=80, ignore_eos=True)
    time.sleep(0.05)
    bench.engine.cancel(b"c", request_id)
    ending = bench.wait()[request_id]
    assert [choice.finish_reason for choice in ending.choices] in (["cancelled"] * 2, ["cancelled"], ["length"] * 2)
    assert not bench.engine.scheduler.placed


def test_services_that_die_in_mid_search_change_nothing(tmp_path):  # R9 R18 R21
    bench = Bench(tmp_path, services=3, forward_ms=10.0)
    try:
        wanted = expected(bench.vocabulary, width=4, max_tokens=14, allowed=allowed, length_penalty=2.0)
        home = bench.beams(GUIDE, max_tokens=2).services[0]  # compiled: the search itself is what a death meets
        replays = 0
        for _ in range(2):
            ids = [bench.submit(GUIDE, use_beam_search=True, best_of=4, n=4, max_tokens=14, length_penalty=2.0) for _ in range(3)]
            bench.until_begun(3)
            bench.real.kill(home)
            endings = bench.wait(3)
            home = next(name for ending in endings.values() for name in ending.services if name in bench.real.services)
            for request_id in ids:
                same(endings[request_id], wanted)
                replays += endings[request_id].usage.replays
        assert replays > 0
    finally:
        bench.close()


def test_slots_that_were_given_back_change_nothing(tmp_path):  # R9: the prompt and each beam's tokens are written again
    bench = Bench(tmp_path, slots=4, suspend_after_s=0.05, hold_after_s=0.01, forward_ms=20.0)
    suspend, suspended = bench.engine._suspend, []
    bench.engine._suspend = lambda sequence: (suspended.append(len(sequence.beams.order)), suspend(sequence))
    try:
        bench.beams(GUIDE, max_tokens=2)
        ours = bench.submit(GUIDE, use_beam_search=True, best_of=4, n=4, max_tokens=14)
        bench.until_begun(3)
        bench.real.kill(next(iter(bench.real.services)))
        others = [bench.submit(max_tokens=20, ignore_eos=True, temperature=1.0, seed=n) for n in range(6)]
        endings = bench.wait(6)
        assert set(endings) == set(others)
        assert suspended == [4]
        bench.real.start_service()
        same(bench.wait()[ours], expected(bench.vocabulary, width=4, max_tokens=14, allowed=allowed))
        assert all(np.size(endings[request_id].choices[0].token_ids) == 20 for request_id in others)
    finally:
        bench.close()
