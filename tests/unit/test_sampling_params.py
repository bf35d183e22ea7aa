"""SamplingParams: the greedy rule, resolution, ranges, spellings, seeds, and what is refused by name."""

import math

import msgspec
import pytest

from shared.errors import BadRequest
from shared.sampling_params import ALIASES, RowParams, SamplingParams, from_mapping


def refused(values):
    with pytest.raises(BadRequest) as caught:
        from_mapping(values)
    return caught.value.field


@pytest.mark.parametrize(
    "values",
    [
        {"top_k": 1}, {"top_p": 0}, {"min_p": 1}, {"temperature": 0},
        {"top_k": 1, "temperature": 0.9, "top_p": 0.5}, {"temperature": 0, "top_k": 50}, {"top_p": 0.0, "temperature": 2},
        {"min_p": 1.0, "top_p": 0.9}, {"temperature": 0, "min_p": 0.1},
    ],
)  # fmt: skip
def test_explicit_greedy_whatever_the_rest(values):  # spec 66
    params = from_mapping(values)
    assert params.is_greedy
    assert params.resolve() == RowParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)  # spec 68: neutral values


def test_explicit_greedy_beats_decay():  # spec 66
    assert SamplingParams(top_k=1, top_p_decay=0.5).is_greedy
    assert not SamplingParams(top_p_decay=0.5).is_greedy  # spec 67: decay alone samples


@pytest.mark.parametrize(
    ("values", "greedy"),
    [
        ({}, True), ({"min_p": 0.0}, True), ({"min_p": 0.1}, False), ({"temperature": 1.0}, False), ({"top_p": 1.0}, False),
        ({"top_k": 0}, False), ({"top_k": -1}, False), ({"seed": 5}, True), ({"max_tokens": 3, "min_p": None}, True),
    ],
)  # fmt: skip
def test_implicit_greedy(values, greedy):  # spec 67
    assert from_mapping(values).is_greedy is greedy


def test_beam_search_is_never_greedy():  # spec 67
    assert not SamplingParams(use_beam_search=True, temperature=0).is_greedy
    assert SamplingParams(use_beam_search=True, temperature=0.7).resolve() == SamplingParams(top_k=1).resolve()


@pytest.mark.parametrize(
    ("values", "row"),
    [
        ({"temperature": 0.5}, RowParams(0.5, 0, 1.0, 0.0)),
        ({"top_p": 0.9}, RowParams(1.0, 0, 0.9, 0.0)),
        ({"top_k": -1}, RowParams(1.0, 0, 1.0, 0.0)),
        ({"top_k": 40, "min_p": 0.05}, RowParams(1.0, 40, 1.0, 0.05)),
        ({"temperature": 1.5, "min_p": 0.0}, RowParams(1.5, 0, 1.0, 0.0)),
    ],
)
def test_resolution(values, row):  # spec 68
    assert from_mapping(values).resolve() == row


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("top_p_decay", [], [0, 1.01, -0.5]), ("top_p_min", [], [0, 1.5]), ("top_p_reset_id", [], [-2]),
        ("truncate_prompt_tokens", [1, 5], [0, -1]), ("repetition_penalty", [1.0], [0, -1, 101]),
        ("temperature", [0, 1000], [-0.1, 1001]), ("top_p", [0, 0.5, 1], [-0.01, 1.01]), ("min_p", [0, 1], [-0.1, 1.1]),
        ("top_k", [-1, 0, 1, 1 << 31], [-2, (1 << 31) + 1, 1.5, True]), ("n", [1], [0, 9]),
        ("max_tokens", [1, 1 << 20], [0, (1 << 20) + 1]),
        ("min_tokens", [0, 256], [-1]), ("logprobs", [0, 20], [-1, 21]),
        ("stop", [["a"] * 16], [["a"] * 17, [""], ["a" * 257], [1]]),
        ("stop_token_ids", [[0] * 128], [[0] * 129, [-1]]), ("end_id", [-1, 5], [-2]), ("seed", [0, -1], [1.5, -(1 << 63) - 1]),
        ("logit_bias", [{}], [{str(i): 1.0 for i in range(1025)}, {"1": "x"}]), ("bad_words", [[]], [["a"] * 1001, ["a" * 1001]]),
        ("allowed_token_ids", [[]], [[0] * 1025]), ("beam_width_array", [[]], [[1] * 9]), ("logprobs_mode", ["raw"], ["both"]),
        ("presence_penalty", [0], [101]), ("frequency_penalty", [0], [-101]), ("ignore_eos", [True, False], [1, "yes"]),
    ],
)  # fmt: skip
def test_ranges(field, good, bad):  # spec 73
    for value in good:
        assert getattr(from_mapping({field: value}), field) == value
    for value in bad:
        assert refused({field: value}).split("[")[0] == field


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "field", [f.name for f in msgspec.structs.fields(SamplingParams) if "float" in str(f.type) and "dict" not in str(f.type)]
)
def test_floats_are_finite(field, value):
    assert refused({field: value}) == field


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_biases_are_finite(value):
    assert refused({"logit_bias": {"5": value}}) == "logit_bias"


@pytest.mark.parametrize(("given", "meant"), [(True, 1), (False, None), (0, 0), (None, None)])
def test_logprobs_takes_a_bool(given, meant):  # spec 73
    assert from_mapping({"logprobs": given}).logprobs == meant


def test_openai_logprobs_pair():
    assert from_mapping({"logprobs": True, "top_logprobs": 5}).logprobs == 5
    assert refused({"logprobs": 3, "top_logprobs": 5}) == "top_logprobs"


@pytest.mark.parametrize(("alias", "name"), sorted(ALIASES.items()))
def test_aliases_mean_the_same(alias, name):
    values = {"max_tokens": 7, "min_tokens": 2, "seed": 3, "stop": ["x"], "include_stop": True, "logprobs": 4,
              "logit_bias": {"1": 1.0}, "bad_words": ["x"], "return_generation_logits": True}  # fmt: skip
    if name not in values:  # not honoured as it stands: the alias is refused under the name it means
        wrong = {"top_p_reset_id": 5}
        assert refused({alias: wrong[name]}) == name
        return
    assert from_mapping({alias: values[name]}) == from_mapping({name: values[name]})
    assert refused({name: values[name], alias: values[name]}) in (alias, name)


def test_one_stop_string_is_a_list_of_one():
    assert from_mapping({"stop": "END"}).stop == ["END"]
    assert from_mapping({"stop_words": "END"}).stop == ["END"]


@pytest.mark.parametrize("values", [{"temprature": 1}, {"topp": 0.5}])
def test_unknown_fields_are_refused(values):
    assert refused(values) == next(iter(values))


@pytest.mark.parametrize(
    ("seed", "child", "signed"),
    [
        (None, 0, None), (0, 0, 0), (5, 3, 8), ((1 << 63) - 1, 0, (1 << 63) - 1), (1 << 63, 0, -(1 << 63)),
        ((1 << 64) - 1, 0, -1), ((1 << 64) - 1, 1, 0), (-1, 0, -1), ((1 << 63) - 1, 1, -(1 << 63)),
    ],
)  # fmt: skip
def test_seeds_are_reinterpreted(seed, child, signed):  # spec 90, 129
    assert from_mapping({"seed": seed}).signed_seed(child) == signed


def test_a_seed_beyond_64_bits():  # spec 90: never clamped
    assert refused({"seed": 1 << 64}) == "seed"


BEAMS = {"use_beam_search": True, "best_of": 4}


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"beam_width_array": [2]}, "beam_width_array"), ({"beam_search_diversity_rate": 0.5}, "beam_search_diversity_rate"),
        ({"length_penalty": 0.5}, "length_penalty"), ({"early_stopping": 0}, "early_stopping"),
        ({"best_of": 9, "temperature": 1.0}, "best_of"), ({**BEAMS, "temperature": 0.7}, "temperature"),
        ({**BEAMS, "top_k": 5}, "top_k"), ({**BEAMS, "top_k": 1}, "top_k"), ({**BEAMS, "top_p": 0.9}, "top_p"),
        ({**BEAMS, "min_p": 0.1}, "min_p"), ({**BEAMS, "top_p_decay": 0.9}, "top_p_decay"), ({**BEAMS, "logprobs": 1}, "logprobs"),
        ({**BEAMS, "n": 5}, "best_of"), ({**BEAMS, "best_of": 65}, "best_of"), ({**BEAMS, "beam_width_array": [4, 2]},
        "beam_width_array"), ({**BEAMS, "beam_width_array": [2, 3]}, "beam_width_array"), ({**BEAMS, "beam_width_array": [1] * 8 +
        [4]}, "beam_width_array"), ({**BEAMS, "length_penalty": 7}, "length_penalty"), ({**BEAMS, "early_stopping": 3},
        "early_stopping"), ({**BEAMS, "early_stopping": "always"}, "early_stopping"),
    ],
)  # fmt: skip
def test_beam_fields_out_of_place_are_refused(params, field):  # spec 76 106 109
    assert refused(params) == field


def test_beam_fields():  # spec 66 108 109
    neutral = from_mapping({**BEAMS, "temperature": 0, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "logprobs": 0, "seed": 3})
    assert neutral.logprobs == 0
    assert neutral.is_ranked
    assert not neutral.is_greedy
    assert from_mapping({"use_beam_search": True}).num_drawn == 1
    assert from_mapping({**BEAMS, "beam_width_array": [1, 4]}).beam_width_array == [1, 4]
    values = [from_mapping({**BEAMS, "early_stopping": given}).early_stopping for given in (True, False, "never", 0, 1, 2)]
    assert values == [1, 0, 2, 0, 1, 2]


def test_a_models_sampling_defaults_do_not_meet_beams():  # spec 74
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1}
    params = from_mapping(BEAMS, defaults)
    assert (params.temperature, params.top_k, params.top_p, params.repetition_penalty) == (None, None, None, 1.1)
    assert from_mapping({}, defaults).temperature == 0.6


def test_best_of():  # spec 72
    assert refused({"n": 3, "best_of": 2, "temperature": 1}) == "best_of"
    assert refused({"n": 2}) == "n"  # greedy: the same text twice
    assert refused({"best_of": 2, "temperature": 0}) == "best_of"
    assert from_mapping({"n": 1, "best_of": 2, "temperature": 1}).is_ranked
    assert not from_mapping({"n": 2, "best_of": 2, "temperature": 1}).is_ranked
    assert from_mapping({"n": 3, "best_of": 3, "temperature": 1}).n == 3


def test_min_tokens_within_max_tokens():
    assert refused({"min_tokens": 5, "max_tokens": 4}) == "min_tokens"
