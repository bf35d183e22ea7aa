"""Where drafts and the sampler's state meet: what is only guessed moves nothing, and a text notices no change of the draft
length."""

import copy

import numpy as np
import pytest

from tests.effects import ALLOWED, BASE, DRAFTS, LONG, PROMPT, WRONG, EffectBench, run_one
from tests.sampling_bench import V

EVERYTHING = {
    **BASE, "repetition_penalty": 1.3, "frequency_penalty": 0.2, "bad_words": ["ij", "ja"], "min_tokens": 4, "top_p": 0.95,
    "top_p_decay": 0.98, "stop_token_sequences": [[9, 2, 9]],
}  # fmt: skip


def state_of(bench, sequence):
    """All that a token could move, as values."""
    penalties = bench.rows._overlay._penalties
    return copy.deepcopy(
        (
            sequence.tokens, sequence.state.banned(), sequence.state.mask is not None and sequence.state.mask.tolist(),
            sequence.state.stop_found, float(sequence.top_p.value), penalties._num_counted[sequence.slot],
            penalties._counts[sequence.slot].tolist(), bench.params._seed.tolist(), bench.params._first_offset.tolist(),
        )
    )  # fmt: skip


@pytest.mark.parametrize("guide", [None, ALLOWED], ids=["free", "guided"])
def test_drafts_touch_no_state_of_a_slot(guide):  # spec 91: neither where they are looked ahead at nor where they fall
    plain = run_one(EffectBench, guide, EVERYTHING)
    with EffectBench(scripts=[plain.tokens] * 4) as bench:
        sequence = bench.start(1, guide=None if guide is None else lambda tokens: guide, prompt=PROMPT, **EVERYTHING)
        looked = 0
        while sequence.finish is None:
            bench.step(held=[1])  # rows, overlays and drafts of the step are made, and nothing of it happens
            before = state_of(bench, sequence)
            bench.step(held=[1])
            assert state_of(bench, sequence) == before
            looked += len(sequence.progress.tree.tokens)
            bench.step()
        assert sequence.tokens == plain.tokens
        assert looked > DRAFTS


@pytest.mark.parametrize("guide", [None, ALLOWED], ids=["free", "guided"])
def test_a_stop_word_that_is_only_drafted_ends_nothing(guide):  # spec 117
    plain = run_one(EffectBench, guide, BASE)
    wrong = {(token + 1) % V for at, token in enumerate(plain.tokens) if at in WRONG} - set(plain.tokens)
    assert wrong
    stops = {**BASE, "stop_token_ids": sorted(wrong)}
    assert run_one(EffectBench, guide, stops, script=plain.tokens).tokens == plain.tokens


@pytest.mark.parametrize("length", [2, 3])
def test_a_stop_word_across_the_end_of_drafting_is_found(length):  # spec 116: accepted counts of drafts are not carried over
    plain = run_one(EffectBench, None, BASE).tokens
    for border in range(1, len(plain)):
        for start in range(max(border - length + 1, 0), min(border + 1, len(plain) - length)):
            word = plain[start : start + length]
            first = next(at for at in range(len(plain)) if plain[at : at + length] == word)
            with EffectBench(logits=LONG, scripts=[plain] * 4) as bench:
                sequence = bench.start(prompt=PROMPT, **BASE, stop_token_sequences=[word])
                while sequence.finish is None:
                    if len(sequence.tokens) >= border:
                        bench._scripts = None  # K falls to 0
                    bench.step()
            assert sequence.tokens == plain[: first + length]
            assert sequence.finish.stop_reason == word[-1]


@pytest.mark.parametrize("guide", [None, ALLOWED], ids=["free", "guided"])
def test_a_position_has_the_random_bits_of_its_own_output_position(guide):  # spec 92 R18: no windows
    plain = run_one(EffectBench, guide, BASE)
    with EffectBench(scripts=[plain.tokens] * 4) as bench:
        sequence = bench.start(2, guide=None if guide is None else lambda tokens: guide, prompt=PROMPT, **BASE)
        made, seen = bench.rows.descriptor, []
        bench.rows.descriptor = lambda launch, batch: seen.append(made(launch, batch)) or seen[-1]
        while sequence.finish is None:
            at = len(sequence.tokens)
            bench.step()
            offsets = [int(seen[-1].rows.offset[2])] + [
                int(rows.rows.offset[2]) for rows in getattr(seen[-1].ahead, "positions", ())
            ]
            assert offsets == list(range(at, at + len(offsets)))
        assert np.array_equal(sequence.tokens, plain.tokens)
        assert max(len(getattr(each.ahead, "positions", ())) for each in seen) == DRAFTS
