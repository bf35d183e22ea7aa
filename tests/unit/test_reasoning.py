"""The reasoning gate at the worker: what a request may say, where the answer begins, what the validator is given."""

import msgspec
import pytest

from gpu_worker.reasoning import FREE, Split, gate_of, split
from shared.errors import BadRequest
from shared.gate import Gate
from shared.protocol import Generate
from shared.sampling_params import from_mapping
from shared.tokenizer import Vocabulary
from tests.requests_of import make_request, sequence_of
from tests.vocabularies import tiny

THINKING = Vocabulary(token_bytes=[b"a", b"</think>", b"<eos>", b"\xc3", b"\xa4"], special_ids=[1, 2], stop_ids=[2])
ENDS = frozenset((2,))


def test_a_budget_alone_takes_the_models_own_marker():  # spec 13
    params = from_mapping({"thinking_token_budget": 5})
    assert gate_of(None, params, THINKING, ENDS) == Gate(end="</think>", budget=5)
    assert gate_of(None, from_mapping({}), THINKING, ENDS) is None
    assert gate_of(Gate(end="x"), params, THINKING, ENDS) == Gate(end="x", budget=5)
    assert gate_of(Gate(end="x", budget=5), params, THINKING, ENDS) == Gate(end="x", budget=5)


@pytest.mark.parametrize(
    ("gate", "budget", "field"),
    [
        (Gate(end="x", budget=4), 5, "thinking_token_budget"), (Gate(end=[0, 9]), None, "reasoning.end[1]"),
        (Gate(end=[2]), None, "reasoning.end[0]"), (Gate(end="x", start=[0, 2]), None, "reasoning.start[1]"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_gate_is_refused_by_name(gate, budget, field):  # spec 13, R5
    with pytest.raises(BadRequest) as caught:
        gate_of(gate, from_mapping({"thinking_token_budget": budget}), THINKING, ENDS)
    assert caught.value.field == field


def test_a_budget_without_a_known_marker_is_refused():  # spec 13
    with pytest.raises(BadRequest) as caught:
        make_request(params={"thinking_token_budget": 3})
    assert caught.value.field == "thinking_token_budget"


@pytest.mark.parametrize(
    ("reasoning", "path"),
    [
        ({}, "reasoning.end"), ({"end": ""}, "reasoning.end"), ({"end": []}, "reasoning.end"), ({"end": "x" * 65}, "reasoning.end"),
        ({"end": "x", "stop": 1}, "reasoning.stop"), ({"end": "x", "budget": -1}, "reasoning.budget"),
    ],
)  # fmt: skip
def test_a_malformed_gate_names_its_field(reasoning, path):  # spec 12
    from shared.protocol import decode_client

    frame = msgspec.msgpack.encode({"type": "generate", "request_id": "r", "prompt": "x", "reasoning": reasoning})
    with pytest.raises(BadRequest) as caught:
        decode_client(frame)
    assert caught.value.field == path


def test_a_gate_without_a_guide_is_free_behind_it():  # spec 13
    request = make_request(reasoning=Gate(end="."))
    assert (request.guide, request.guide_kind) == (FREE, "")
    assert make_request(reasoning=Gate(end="."), structured_outputs={"regex": "a"}).guide_kind == "regex"
    assert make_request().guide is None


@pytest.mark.parametrize(
    ("gate", "tokens", "found"),
    [
        (Gate(end="</think>"), [0, 0, 1, 0], Split(3, 2)),  # a special token is no text
        (Gate(end="</think>"), [0, 0], None),
        (Gate(end=[1]), [1, 0], Split(1, 0)),
        (Gate(end=[0], start=[0]), [0, 3, 4, 0, 0], Split(4, 3)),
        (Gate(end="a", start="a"), [0, 3, 4, 0, 0], Split(4, 3)),
        (Gate(end="ää"), [3, 4, 3, 4, 0], Split(4, 2)),
    ],
)
def test_where_the_answer_begins(gate, tokens, found):  # spec 12
    assert split(gate, tokens, THINKING, skip_special_tokens=True) == found


def text_of(reasoning, text, **fields):
    sequence = sequence_of(reasoning=reasoning, structured_outputs={"regex": "[0-9]+"}, **fields)
    for token in (*text.encode(), tiny().stop_ids[0]):
        sequence.take(token, None, 1.0)
    return sequence


def test_the_choice_tells_thought_and_answer_apart():  # spec 12, R26
    sequence = text_of(Gate(end="."), "hm.42")
    choice = sequence.choice(None)
    assert (choice.text, choice.reasoning_tokens, choice.answer_start) == ("hm.42", 3, 3)
    assert sequence.answer() == "42"
    shown = text_of(Gate(end="."), "hm.42", params={"exclude_input_from_output": False})
    assert (shown.choice(None).text, shown.choice(None).answer_start) == ("hihm.42", 5)
    assert shown.answer() == "42"


def test_a_gate_that_never_closed_has_no_answer():  # spec 12
    sequence = text_of(Gate(end="."), "hm")
    choice = sequence.choice(None)
    assert (sequence.answer(), choice.reasoning_tokens, choice.answer_start) == (None, 3, 2)
    assert Generate(request_id="r", reasoning=Gate(end=".")).reasoning == Gate(end=".")
