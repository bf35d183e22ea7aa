"""Bad values are refused before anything runs, by the name of their field; a clash at a step by the names of those that clash."""

import pytest

from shared.errors import BadRequest, DeadEnd, NoAllowedToken
from tests.requests_of import make_request
from tests.sampling_bench import EOS, LETTERS, Bench, V, table


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"logit_bias": {"264": 1.0}}, "logit_bias"), ({"logit_bias": {"-1": 1.0}}, "logit_bias"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias"), ({"logit_bias": {"05": 1.0}}, "logit_bias"),
        ({"logit_bias": {"٣": 1.0}}, "logit_bias"), ({"logit_bias": {"5": 1e39}}, "logit_bias"),
        ({"logit_bias": {str(10**4000): 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [1, 264]}, "allowed_token_ids"),
        ({"top_p": 0.9, "top_p_decay": 0.5, "top_p_reset_id": 264}, "top_p_reset_id"),
        ({"top_p_reset_id": 3}, "top_p_reset_id"), ({"top_p_min": 0.5}, "top_p_min"),
        ({"stop_token_sequences": [[1], [1, 264]]}, "stop_token_sequences[1]"),
        ({"stop_token_sequences": [[]]}, "stop_token_sequences[0]"),
        ({"bad_words": ["x" * 1000] * 70}, "bad_words"),
        ({"bad_words": ["é" * 900 + str(i) for i in range(20)]}, "bad_words"),
        ({"stop_token_sequences": [[i % 200] * 1000 for i in range(20)]}, "stop_token_sequences"),
    ],
)  # fmt: skip
def test_named(params, field):  # spec 76
    with pytest.raises(BadRequest) as caught:
        make_request(params={"temperature": 1.0, **params})
    assert caught.value.field.removeprefix("sampling_params.") == field


def test_edges_are_taken():
    make_request(
        params={
            "temperature": 1.0, "logit_bias": {"0": -3e38, "263": 3e38}, "allowed_token_ids": [0, 263], "top_p_decay": 0.5,
            "top_p_reset_id": 263, "top_p_min": 1e-6, "stop_token_sequences": [[263] * 1024], "bad_words": ["", " ", "  "],
        }
    )  # fmt: skip


def test_bad_words_are_banned_bare_and_after_a_space():  # spec 75 101
    for given in ("ab", " ab", "  ab"):
        rules = make_request(params={"bad_words": [given]}).rules
        state = rules.bad_words.walk(b" a")
        assert rules.bad_words.completing(state) == {98}
        assert rules.bad_words.completing(rules.bad_words.walk(b"a")) == {98}
    assert make_request(params={"bad_words": [" "]}).rules.bad_ids == {32}
    assert make_request(params={"bad_words": "x"}).rules.bad_ids == {120}


@pytest.mark.parametrize(
    ("guide", "params", "field", "names"),
    [
        ({1, 2}, {"allowed_token_ids": [3]}, "allowed_token_ids", ["guide", "allowed_token_ids"]),
        ({1, 2}, {"bad_words": ["b", "c"]}, "bad_words", ["guide", "bad_words"]),
        ({1, 2}, {"bad_words": ["b"], "allowed_token_ids": [1, 3]}, "allowed_token_ids",
         ["guide", "allowed_token_ids", "bad_words"]),
        ({EOS}, {"min_tokens": 3}, "min_tokens", ["guide", "min_tokens"]),
        ({3, 5}, {"no_repeat_ngram_size": 1}, "no_repeat_ngram_size", ["guide", "no_repeat_ngram_size"]),
        ({9}, {"no_repeat_ngram_size": 2, "min_tokens": 3}, "no_repeat_ngram_size", ["guide", "no_repeat_ngram_size"]),
        (None, {"allowed_token_ids": [3, EOS], "bad_words": ["d"], "min_tokens": 3}, "allowed_token_ids",
         ["allowed_token_ids", "bad_words", "min_tokens"]),
        (None, {"allowed_token_ids": [EOS], "min_tokens": 3}, "allowed_token_ids", ["allowed_token_ids", "min_tokens"]),
        (None, {"bad_words": list(LETTERS), "min_tokens": 3}, "bad_words", ["bad_words", "min_tokens"]),
    ],
)  # fmt: skip
def test_a_clash_names_those_that_clash(guide, params, field, names):
    with Bench() as bench:
        sequence = bench.start(0, guide=(lambda tokens: guide) if guide else None, prompt=[5, 9, 3, 5], temperature=1.0, **params)
        other = bench.start(1, temperature=1.0, seed=1)
        bench.step()
        error = bench.errors[0]
        assert isinstance(error, NoAllowedToken)
        assert error.field == field
        assert all(name in error.message for name in names)
        everyone = {"guide", "allowed_token_ids", "bad_words", "no_repeat_ngram_size", "min_tokens"}
        assert not any(name in error.message for name in everyone - set(names))
        assert sequence.tokens == []  # never a made-up token
        assert len(other.tokens) == 1


def test_one_source_can_leave_nothing_by_itself():
    with Bench() as bench:
        bench.start(0, prompt=list(range(V - 1)), no_repeat_ngram_size=1, ignore_eos=True, temperature=1.0)
        bench.step()
        bench.step()
        assert isinstance(bench.errors[0], NoAllowedToken)
        assert bench.errors[0].field == "no_repeat_ngram_size"


def test_a_dead_guide_and_a_model_that_says_never_are_no_clash():  # spec R7
    with Bench() as bench:
        bench.start(0, guide=lambda tokens: set(), bad_words=["b"])
        bench.step()
        assert isinstance(bench.errors[0], DeadEnd)
    never = table()
    never[0, :3] = -float("inf")
    with Bench(never) as bench:
        bench.start(0, allowed_token_ids=[0, 1, 2])
        bench.step()
        assert isinstance(bench.errors[0], DeadEnd)
        assert "the model" in bench.errors[0].message
