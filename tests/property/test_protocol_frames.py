"""Decoders on bytes that no peer of ours sends: whatever comes, a message or BadRequest."""

from datetime import UTC

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared import guide, protocol, sampling_params
from shared.errors import BadRequest, MaskstreamError
from shared.protocol import decode_client, decode_reply, decode_service, decode_worker, encode

DECODERS = (decode_client, decode_reply, decode_service, decode_worker)
VALID = [
    protocol.Generate(
        request_id="r", messages=[protocol.ChatMessage("user", "hé")], sampling_params={"temperature": 0.5, "stop": ["a"], "n": 2},
        deadline_s=5.0,
        response_format={"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}, output_token_ids=[1, 2],
    ),
    protocol.Done(
        request_id="r", usage=protocol.Usage(prompt_tokens=1, completion_tokens=2, rows={"DENSE": 2}),
        choices=[protocol.Choice(choice=0, text="x", token_ids=[1], finish_reason="stop",
                                 logprobs=[protocol.TokenLogprob(1, -0.5, 1, [(1, -0.5)])])],
    ),
    protocol.Hello(service="s", instance="i", engines={"xgrammar": "0.2"}),
    protocol.StepAnswer(
        step=1, writes=[protocol.PoolWrite(1, 1, 0)],
        entries=[protocol.StepAnswerEntry(1, 1, 1, bytes(8), 0, 1, 1, [protocol.WireRow(3, ids=b"\1\0\0\0")])],
    ),
    protocol.Step(step=1, retired_step=0, entries=[protocol.StepEntry(1, 1, 1, 4, bytes(8), [1], [2, 3], [-1, 0], 1)]),
    protocol.Compile(key="k", guide=guide.Guide(kind="regex", text="a+"), client="c"),
    protocol.Open(
        handle=1, epoch=1, plan_digest=bytes(8), stop_ids=[1],
        plan=protocol.Plan(engine="e", engine_version="1", guide_kind="regex", grammar_kind="regex", text="a+", options={"a": 1}),
    ),
]  # fmt: skip
LETTERS = 'aZ09 {}[]",:.\\/*+-_\n\0é€😀\u2028'
calm = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # two cores are shared
FRAMES = [encode(message) for message in VALID]


def read(data):
    """Every decoder takes the bytes or says BadRequest; what is taken can be sent on."""
    for decode in DECODERS:
        try:
            message = decode(data)
        except BadRequest as error:
            assert error.message
        else:
            assert decode(encode(message)) == message or "nan" in repr(message)


@calm
@given(st.binary(max_size=300))
def test_random_bytes(data):
    read(data)


@calm
@given(st.sampled_from(FRAMES), st.data())
def test_truncations(frame, data):
    read(frame[: data.draw(st.integers(0, len(frame)))])


@calm
@given(st.sampled_from(FRAMES), st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4))
def test_bit_flips(frame, flips):
    flipped = bytearray(frame)
    for flip in flips:
        flipped[flip // 8 % len(frame)] ^= 1 << flip % 8
    read(bytes(flipped))


@calm
@given(st.sampled_from(FRAMES), st.integers(0, 1 << 20), st.binary(max_size=20))
def test_bytes_put_in(frame, at, more):
    at %= len(frame)
    read(frame[:at] + more + frame[at:])


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(LETTERS, max_size=20)
    | st.binary(max_size=20)
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(LETTERS, max_size=10), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
param_names = st.sampled_from([*sampling_params.SamplingParams.__struct_fields__, *sampling_params.ALIASES, "other"])


@calm
@given(st.dictionaries(param_names, anything, max_size=5))
def test_parameters_of_any_type(values):  # spec 73, 76
    frame = encode({"type": "generate", "request_id": "r", "sampling_params": values})
    message = decode_client(frame)
    try:
        params = sampling_params.from_mapping(message.sampling_params)
    except BadRequest as error:
        assert error.field
    else:
        assert params.resolve().temperature >= 0
        assert params.signed_seed() is None or -(1 << 63) <= params.signed_seed() < 1 << 63


guide_names = st.sampled_from(
    [
        "type",
        "json",
        "json_object",
        "json_schema",
        "schema",
        "regex",
        "pattern",
        "choice",
        "grammar",
        "structural_tag",
        "engine",
        "x",
    ]
)


@calm
@given(st.dictionaries(guide_names, anything, max_size=3), st.dictionaries(guide_names, anything, max_size=3))
def test_guides_of_any_type(response_format, structured_outputs):  # spec 10
    for one, other in ((response_format, structured_outputs), (None, structured_outputs), (response_format, None)):
        try:
            made = guide.guide_from_request(one, other)
        except MaskstreamError as error:
            assert isinstance(error, BadRequest)
            assert error.field
        else:
            assert made is None or len(guide.key_of(made)) == 32


@calm
@given(st.text(LETTERS, max_size=60))
def test_any_text_has_a_key(text):  # spec 137
    for kind in guide.KINDS:
        one = guide.Guide(kind=kind, text=text)
        assert guide.key_of(one) == guide.key_of(guide.canonical(one))


@pytest.mark.parametrize("frame", FRAMES, ids=[type(message).__name__ for message in VALID])
def test_valid_frames_are_what_was_sent(frame):
    readers = [decode for decode in DECODERS if _takes(decode, frame)]
    assert len(readers) == 1
    assert msgspec.msgpack.encode(readers[0](frame)) == frame


def _takes(decode, frame):
    try:
        decode(frame)
    except BadRequest:
        return False
    return True
