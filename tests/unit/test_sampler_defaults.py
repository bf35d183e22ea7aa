"""Defaults of a model's folder, and what is returned of what was drawn."""

import json

import pytest

from gpu_worker.requests import Requests
from gpu_worker.sampler.defaults import model_defaults
from shared.errors import ConfigError
from shared.protocol import TokenLogprob
from shared.sampling_params import SamplingParams, from_mapping
from tests.requests_of import make_request, sequence_of
from tests.vocabularies import tiny


def write(folder, **values):
    (folder / "generation_config.json").write_text(json.dumps(values))
    return model_defaults(folder)


def test_the_order_is_request_then_model_then_ours(tmp_path):  # spec 74
    defaults = write(
        tmp_path, temperature=0.7, top_p=0.8, top_k=20, min_p=0.05, repetition_penalty=1.05, no_repeat_ngram_size=3,
        max_new_tokens=99, min_new_tokens=2, do_sample=True, eos_token_id=2, transformers_version="5",
    )  # fmt: skip
    assert len(defaults) == 8
    params = from_mapping({"top_k": 5, "max_new_tokens": 7, "top_p": None}, defaults)
    assert (params.top_k, params.max_tokens) == (5, 7)
    assert (params.temperature, params.top_p, params.min_p, params.repetition_penalty) == (0.7, 0.8, 0.05, 1.05)
    assert (params.no_repeat_ngram_size, params.min_tokens) == (3, 2)
    assert params.presence_penalty == SamplingParams().presence_penalty
    assert from_mapping({"temperature": 0}, defaults).is_greedy
    assert not from_mapping({}, defaults).is_greedy


def test_what_is_not_there_is_not_made_up(tmp_path):  # spec 74: no default of a library
    assert model_defaults(tmp_path) == {}
    assert write(tmp_path, eos_token_id=2, temperature=None) == {}
    assert from_mapping({}, write(tmp_path, eos_token_id=2)) == SamplingParams()


def test_a_wrong_default_stops_the_start(tmp_path):
    with pytest.raises(ConfigError, match="top_p") as caught:
        write(tmp_path, top_p=1.5)
    assert caught.value.field == "generation_config"


def take(sequence, text, logprob):
    for byte in text:
        sequence.take(byte, TokenLogprob(byte, logprob, 1), 20.0)


def test_the_best_are_returned_best_first():  # spec 129
    request = make_request(params={"n": 2, "best_of": 4, "temperature": 1, "seed": 5, "max_tokens": 2})
    assert not request.stream  # what will be returned is not known before the end
    state = Requests(tiny()).begin(request)
    assert [sequence.seed for sequence in state.sequences] == [5, 6, 7, 8]
    for sequence, logprob in zip(state.sequences, (-2.0, -0.5, -3.0, -0.5), strict=True):
        assert sequence.num_logprobs == 0
        take(sequence, b"ab", logprob)
    done = state.done([None, None])
    assert [choice.cumulative_logprob for choice in done.choices] == [-1.0, -1.0]
    assert [choice.choice for choice in done.choices] == [0, 1]
    assert [choice.logprobs for choice in done.choices] == [None, None]  # they were not asked for
    assert state.chosen == [state.sequences[1], state.sequences[3]]
    assert done.usage.completion_tokens == 8


def test_without_best_of_nothing_is_ranked():
    state = Requests(tiny()).begin(make_request(params={"n": 2, "temperature": 1, "max_tokens": 2, "logprobs": 0}))
    for sequence, logprob in zip(state.sequences, (-2.0, -0.5), strict=True):
        take(sequence, b"ab", logprob)
    assert state.chosen == state.sequences


def test_the_prompt_can_be_shown():  # spec 128: text alone, never tokens
    shown = sequence_of(params={"exclude_input_from_output": False, "max_tokens": 2})
    pieces = [shown.take(byte, None, 1.0) for byte in b"ab"]
    assert [piece.text for piece in pieces] == ["hia", "b"]
    assert (shown.choice(None).text, shown.choice(None).token_ids) == ("hiab", [97, 98])
    assert shown.text == "ab"
    with_specials = sequence_of(params={"exclude_input_from_output": False, "skip_special_tokens": False})
    assert with_specials.take(97, None, 1.0).text == "<end>hia"
    assert sequence_of(params={"exclude_input_from_output": False, "detokenize": False}).choice(None).text == ""
    stopped = sequence_of(params={"exclude_input_from_output": False, "stop": ["ia"]})  # a stop string lies in the output
    stopped.take(97, None, 1.0)
    assert stopped.finish is None
