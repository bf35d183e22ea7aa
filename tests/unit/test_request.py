"""Admission: everything is checked before anything runs, and what is wrong is named."""

import pytest

from shared.errors import BadRequest, ProtocolVersion, TooLarge
from tests.requests_of import make_model, make_request


def refused(kind=BadRequest, **fields):
    with pytest.raises(kind) as caught:
        make_request(**fields)
    assert type(caught.value) is kind
    return caught.value.field


def test_a_good_request():
    request = make_request(
        prompt="hi", params={"max_tokens": 5, "stop_token_ids": [70]}, structured_outputs={"regex": "a"}, verify=True
    )
    assert request.prompt_token_ids == [261, 104, 105]
    assert request.key == (b"c", "r")
    assert request.guide.kind == "regex"
    assert (request.received_s, request.deadline_s) == (10.0, 40.0)
    assert request.end_ids == {260, 261}
    assert request.finish_rules().stop_token_ids == {70}


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "x"}, {"messages": [{"role": "user", "content": "x"}]}, {"prompt_token_ids": [120]},
    ],
)  # fmt: skip
def test_three_kinds_of_prompt(fields):
    from shared.protocol import ChatMessage

    if "messages" in fields:
        fields = {"messages": [ChatMessage(**m) for m in fields["messages"]]}
    assert make_request(**fields).prompt_token_ids[-1] == 120


def test_exactly_one_prompt():
    assert refused(prompt="x", prompt_token_ids=[1]) == "prompt"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": "", "params": {"add_special_tokens": False}}, "prompt"), ({"messages": []}, "messages"),
        ({"prompt_token_ids": []}, "prompt_token_ids"), ({"prompt_token_ids": [5, 264]}, "prompt_token_ids[1]"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids[0]"), ({"output_token_ids": [264]}, "output_token_ids[0]"),
        ({"params": {"stop_token_ids": [264]}}, "stop_token_ids"), ({"params": {"end_id": 264}}, "end_id"),
        ({"params": {"temperature": -1}}, "temperature"), ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"output_token_ids": [1, 2], "params": {"max_tokens": 2}}, "output_token_ids"),
    ],
)  # fmt: skip
def test_named(fields, field):  # spec 76
    assert refused(**fields) == field


def test_a_guide_and_no_end():  # spec R5
    assert refused(structured_outputs={"regex": "a"}, params={"ignore_eos": True}) == "ignore_eos"
    assert refused(structured_outputs={"regex": "a"}, params={"end_id": -1}) == "end_id"
    assert make_request(params={"ignore_eos": True}).finish_rules().end_ids == frozenset()


def test_another_version():
    assert refused(ProtocolVersion, protocol_version=2) == "protocol_version"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt_token_ids": [1] * 64}, "prompt"), ({"prompt": "x" * 64}, "prompt"),
        ({"prompt_token_ids": [1] * 60, "output_token_ids": [1] * 4}, "output_token_ids"),
    ],
)  # fmt: skip
def test_what_leaves_no_room(fields, field):
    assert refused(TooLarge, **fields) == field


def test_a_text_that_cannot_fit_is_not_tokenized():
    model = make_model()
    assert model.max_prompt_bytes == 64 * 5
    encoder = model.encoder
    assert refused(TooLarge, prompt="€" * 107) == "prompt"  # 321 bytes
    assert encoder.encode("x") == [261, 120]
    assert make_request(prompt="x" * 10_000, params={"truncate_prompt_tokens": 3}).prompt_token_ids == [120] * 3


def test_room_bounds_the_output():  # spec 115
    assert make_request(prompt_token_ids=[1] * 60, params={"max_tokens": 100}).max_tokens == 4
    assert make_request(prompt_token_ids=[1] * 60, params={"max_tokens": 3}).max_tokens == 3


def test_truncation_keeps_the_end():
    assert make_request(prompt_token_ids=[1, 2, 3], params={"truncate_prompt_tokens": 2}).prompt_token_ids == [2, 3]


@pytest.mark.parametrize(("asked", "given"), [(None, 30.0), (5.0, 5.0), (5000.0, 100.0)])
def test_deadline(asked, given):
    assert make_request(deadline_s=asked).deadline_s == 10.0 + given


@pytest.mark.parametrize(
    ("params", "end_ids"),
    [
        ({}, {260, 261}), ({"end_id": 65}, {65}), ({"end_id": -1}, set()), ({"stop_token_ids": [70]}, {260, 261}),
        ({"end_id": 260, "stop_token_ids": [261, 70]}, {260, 261}),  # a special token as stop id is how a text ends
    ],
)  # fmt: skip
def test_stop_set(params, end_ids):  # spec R5
    assert make_request(params=params).end_ids == end_ids


def test_special_tokens_of_the_prompt():  # spec 128
    with_them, without = (
        make_request(prompt="hi", params={"add_special_tokens": value}).prompt_token_ids for value in (True, False)
    )
    assert with_them == [261, *without]
