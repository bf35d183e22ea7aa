"""Every field of SamplingParams by the table of ``tests/effects.py``: what it does as the formulas say, nothing where it is
neutral; guided and not, without drafts and with drafts that are right and wrong."""

import re
from pathlib import Path

import numpy as np
import pytest

from shared.sampling_params import SamplingParams
from tests.effects import (
    ALL,
    ALLOWED,
    BASE,
    ELSEWHERE,
    LONG,
    SHAPES,
    SHOWN,
    TOKENS_STAY,
    UNGUIDED,
    EffectBench,
    check_shapes,
    expected,
    run_all,
    run_one,
)  # fmt: skip
from tests.sampling_bench import EOS, table

ROOT = Path(__file__).parents[2]
GUIDES = {"free": None, "guided": ALLOWED}


def each_guide():
    return pytest.mark.parametrize("guide", list(GUIDES.values()), ids=list(GUIDES))


def test_no_field_is_forgotten():  # spec 76
    known = [*SHAPES, *SHOWN, *ELSEWHERE]
    assert sorted(known) == sorted(SamplingParams.__struct_fields__)
    for path, name in ELSEWHERE.values():
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.M), f"{path} has no {name}"


@each_guide()
def test_each_token_has_the_distribution_of_the_formulas(guide):  # spec 69 93 94 100 101 102 103 105 106 R19
    runs = check_shapes(EffectBench, guide)
    cases = {field: {**BASE, **params, **ALL} for field, (params, _) in SHAPES.items()}
    drafted = run_all(EffectBench, guide, cases, scripts={field: run.tokens for field, run in runs.items()})
    for field, run in runs.items():
        assert (drafted[field].tokens, drafted[field].choice) == (run.tokens, run.choice), field
        assert drafted[field].drafts_accepted > 0 or field == "no_repeat_ngram_size", field


@each_guide()
@pytest.mark.parametrize("drafts", [False, True], ids=["K=0", "K=3"])
def test_neutral_values_change_no_token(guide, drafts):  # spec 76
    plain = run_one(EffectBench, guide, BASE)
    neutral = {field: values for field, (_, values) in SHAPES.items()} | {field: entry[1] for field, entry in SHOWN.items()}
    cases = {field: {**BASE, **values} for field, values in neutral.items() if guide is None or field not in UNGUIDED}
    scripts = dict.fromkeys(cases, plain.tokens) if drafts else None
    for field, run in run_all(EffectBench, guide, cases, scripts=scripts).items():
        assert run.tokens == plain.tokens, field


SHORT = table()
SHORT[:, EOS] = 1.0


@each_guide()
@pytest.mark.parametrize("field", SHOWN)
def test_what_shows_in_the_reply(field, guide):  # spec 73 101 111 114 115 116 118 126 127 128
    if guide is not None and field in UNGUIDED:
        return
    logits = SHORT if field == "ignore_eos" else LONG
    make, neutral, shown = SHOWN[field]
    plain = run_one(EffectBench, guide, BASE, logits=logits)
    params = {**BASE, **make(plain)}
    run = run_one(EffectBench, guide, params, logits=logits)
    without = run_one(EffectBench, guide, {**params, **neutral}, logits=logits)
    assert shown(run) != shown(without)
    assert run.tokens == without.tokens or field not in TOKENS_STAY
    drafted = run_one(EffectBench, guide, params, logits=logits, script=run.tokens)
    assert (drafted.tokens, drafted.choice, shown(drafted)) == (run.tokens, run.choice, shown(run))


@each_guide()
@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_k": 1}, {"top_p": 0}, {"min_p": 1}], ids=str)
def test_greedy_takes_the_most_likely(params, guide):  # spec 66 67 68
    given = {**BASE, **params, "logit_bias": {"9": 1.0}, "repetition_penalty": 1.4, "bad_words": ["ja"], "min_tokens": 3}
    run = run_one(EffectBench, guide, given)
    for at, token in enumerate(run.tokens):
        assert token == int(np.argmax(expected(run.tokens[:at], {**given, "temperature": 0}, guide)))
    assert run_one(EffectBench, guide, given, script=run.tokens).tokens == run.tokens


@each_guide()
def test_everything_at_once(guide):  # spec 69 100 R19 R27
    params = {
        **BASE, "temperature": 1.3, "top_k": 9, "top_p": 0.97, "min_p": 0.002, "repetition_penalty": 1.2, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "prompt_ignore_length": 2, "bad_words": ["ij", "ja"], "logit_bias": {"2": 1.0, "5": -0.5},
        "min_tokens": 5, "stop_token_sequences": [[9, 2]], "top_p_decay": 0.97, "top_p_reset_id": 5,
    }  # fmt: skip
    run = run_one(EffectBench, guide, {**params, **ALL})
    wanted = [expected(run.tokens[:at], params, guide) for at in range(len(run.tokens))]
    np.testing.assert_allclose(run.distributions, wanted, rtol=3e-6, atol=1e-9)
    drafted = run_one(EffectBench, guide, {**params, **ALL}, script=run.tokens)
    assert (drafted.tokens, drafted.choice) == (run.tokens, run.choice)
