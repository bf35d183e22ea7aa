"""The wire: bounds, versions, unknown fields, and what a decoder says about a wrong frame."""

import math

import msgspec
import pytest

from shared import protocol
from shared.errors import BadRequest
from shared.protocol import Generate, Hello, Message, Welcome, decode_client, decode_reply, decode_service, decode_worker, encode

GOOD = {
    "generate": {"request_id": "r", "prompt": "x"}, "cancel": {"request_id": "r"}, "health": {},
    "hello": {"service": "s", "instance": "i", "engines": {}},
    "step": {"step": 1, "retired_step": 0, "entries": [[1, 1, 1, 0, bytes(8), [], [5]]]},
    "step_answer": {"step": 1, "entries": [[1, 1, 1, bytes(8), 0, 1, 1, [[5, 0]]]]},
    "open": {"handle": 1, "epoch": 1, "plan_digest": bytes(8), "stop_ids": [2]},
    "vocabulary_chunk": {"fingerprint": "f", "chunk": 0, "data": b"x"},
    "vocabulary_request": {"fingerprint": "f", "chunk": 0},
    "compile": {"key": "k", "guide": {"kind": "json"}},
    "welcome": {"worker": "w", "fingerprint": "f", "vocab_size": 5, "vocabulary_bytes": 9, "num_chunks": 1},
    "close": {"sessions": [[1, 1]]}, "compiled": {"key": "k"}, "ping": {"nonce": 0},
    "delta": {"request_id": "r", "choice": 0, "sequence_number": 0, "text": "x", "token_ids": [1]},
}  # fmt: skip
DECODE = {
    **dict.fromkeys(("generate", "cancel", "health"), decode_client),
    **dict.fromkeys(("hello", "step_answer", "vocabulary_request", "compiled"), decode_service),
    **dict.fromkeys(("step", "open", "vocabulary_chunk", "compile", "welcome", "close", "ping"), decode_worker),
    "delta": decode_reply,
}


def frame(name, **changes):
    return encode({"type": name, **GOOD[name], **changes})


def refused(name, **changes):
    with pytest.raises(BadRequest) as caught:
        DECODE[name](frame(name, **changes))
    return caught.value.field


@pytest.mark.parametrize("name", sorted(GOOD))
def test_good_frames_are_read(name):
    message = DECODE[name](frame(name))
    assert DECODE[name](encode(message)) == message


@pytest.mark.parametrize("name", sorted(GOOD))
def test_unknown_fields_are_named(name):
    assert refused(name, more=1) == "more"


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("generate", {"request_id": ""}, "request_id"), ("generate", {"request_id": "x" * 65}, "request_id"),
        ("generate", {"messages": [{"role": "user", "content": "x"}] * 1025}, "messages"),
        ("generate", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ("generate", {"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages[0].name"),
        ("generate", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("generate", {"prompt_token_ids": [-1]}, "prompt_token_ids[0]"),
        ("generate", {"prompt_token_ids": [1 << 31]}, "prompt_token_ids[0]"),
        ("generate", {"prompt_token_ids": [0] * ((1 << 18) + 1)}, "prompt_token_ids"),
        ("generate", {"sampling_params": {str(i): 0 for i in range(65)}}, "sampling_params"),
        ("generate", {"deadline_s": 0}, "deadline_s"), ("generate", {"deadline_s": math.nan}, "deadline_s"),
        ("generate", {"deadline_s": math.inf}, "deadline_s"), ("generate", {"stream": 1}, "stream"),
        ("health", {"nonce": -1}, "nonce"), ("health", {"nonce": 1 << 63}, "nonce"),
        ("hello", {"engines": {str(i): "1" for i in range(17)}}, "engines"),
        ("hello", {"max_outstanding_steps": 0}, "max_outstanding_steps"),
        ("step", {"entries": [[1, 1, 1, 0, bytes(7), [], [5]]]}, "entries[0][4]"),
        ("step", {"entries": [[1, 1, 1, 0, bytes(8), [], [5] * 257]]}, "entries[0][6]"),
        ("step", {"entries": [[1, 1, 1, -1, bytes(8), [], []]]}, "entries[0][3]"),
        ("step", {"entries": [[1 << 32, 1, 1, 0, bytes(8), [], []]]}, "entries[0][0]"),
        ("step_answer", {"entries": [[1, 1, 1, bytes(9), 0, 1, 1, []]]}, "entries[0][3]"),
        ("step_answer", {"entries": [[1, 1, 1, bytes(8), 6, 1, 1, []]]}, "entries[0][4]"),
        ("step_answer", {"entries": [[1, 1, 1, bytes(8), 0, 1, 1, [[6]]]]}, "entries[0][7][0][0]"),
        ("step_answer", {"entries": [[1, 1, 1, bytes(8), 0, 1, 1, [[0]] * 258]]}, "entries[0][7]"),
        ("step_answer", {"writes": [[-1, 0, 0]]}, "writes[0][0]"),
        ("open", {"plan_digest": b""}, "plan_digest"), ("vocabulary_chunk", {"data": bytes((1 << 20) + 1)}, "data"),
        ("vocabulary_request", {"chunk": 256}, "chunk"), ("compile", {"guide": {"kind": "yaml"}}, "guide.kind"),
        ("compile", {"guide": {"kind": "regex", "text": "x" * (256 * 1024 + 1)}}, "guide.text"),
        ("compile", {"deadline_s": math.nan}, "deadline_s"), ("welcome", {"lease_s": math.inf}, "lease_s"),
        ("welcome", {"num_chunks": 257}, "num_chunks"), ("close", {"sessions": [[1, 1]] * 4097}, "sessions"),
        ("compiled", {"compile_ms": math.inf}, "compile_ms"), ("compiled", {"first_row_share": math.nan}, "first_row_share"),
        ("delta", {"logprobs": [[1, math.nan, 1]]}, "logprobs[0][1]"),
        ("delta", {"logprobs": [[1, -math.inf, 1]]}, "logprobs[0][1]"),
        ("generate", {"type": "step"}, "type"),
    ],
)  # fmt: skip
def test_bounds_name_the_path(name, changes, field):
    shown = refused(name, **changes).replace("[...]", "[0]")
    assert shown == field


def bounded(kind, where=""):
    """Paths of lists, maps, bytes and floats without a bound. Text is bounded by its frame, an int by 64 bits."""
    inspect = msgspec.inspect
    kind = kind.type if isinstance(kind, inspect.Metadata) else kind
    if isinstance(kind, inspect.ListType):
        return ([where] if kind.max_length is None else []) + bounded(kind.item_type, f"{where}[]")
    if isinstance(kind, inspect.DictType):
        return [where] if kind.max_length is None else []
    if isinstance(kind, inspect.BytesType):
        return [where] if kind.max_length is None else []
    if isinstance(kind, inspect.FloatType):
        return [] if kind.le is not None and (kind.ge is not None or kind.gt is not None) else [where]
    if isinstance(kind, inspect.UnionType):
        return [path for one in kind.types for path in bounded(one, where)]
    if isinstance(kind, inspect.StructType):
        return [path for field in kind.fields for path in bounded(field.type, f"{where}.{field.name}")]
    return []


@pytest.mark.parametrize("cls", Message.__subclasses__(), ids=lambda cls: cls.__name__)
def test_every_length_and_float_has_a_bound(cls):
    assert bounded(msgspec.inspect.type_info(cls)) == []


@pytest.mark.parametrize("cls", [Generate, Hello, Welcome, protocol.HealthReply], ids=lambda cls: cls.__name__)
def test_the_version_is_always_sent(cls):
    """A field that is left out is read as the receiver's own version: the peer could never tell."""
    name = cls.__struct_config__.tag
    if name == "health_reply":
        message = protocol.HealthReply(
            live=True, ready=True, model="m", vocab_size=1, num_slots=1, active=0, waiting=0, grammar_services=[], version="1"
        )
    else:
        message = DECODE[name](frame(name))
    assert msgspec.msgpack.decode(encode(message))["protocol_version"] == protocol.PROTOCOL_VERSION


def test_another_version_can_be_read():
    assert decode_client(frame("generate", protocol_version=9)).protocol_version == 9


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x00", b"\xc0", b"GET / HTTP/1.1\r\n\r\n", b"\x80", b"\x91\x01", b"\xff" * 64, b"\x81\x01\x02"]
)
def test_what_is_no_message(data):
    for decode in (decode_client, decode_reply, decode_service, decode_worker):
        with pytest.raises(BadRequest):
            decode(data)


@pytest.mark.parametrize("depth", [2_000, 1_000_000])
@pytest.mark.parametrize("opener", [b"\x91", b"\x81\xa1a"])
def test_nesting(depth, opener):
    body = b"\x84\xa4type\xa8generate\xaarequest_id\xa1r\xa6prompt\xa1x\xafsampling_params\x81\xa1a" + opener * depth + b"\xc0"
    with pytest.raises(BadRequest):
        decode_client(body)


@pytest.mark.parametrize(
    "huge",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x05",
    ],
)
def test_lengths_that_are_declared_and_not_there(huge):
    """4 G entries are declared and none sent: refused before memory is taken for them."""
    for key in (b"\xafsampling_params\x81\xa1a", b"\xb0prompt_token_ids"):
        with pytest.raises(BadRequest):
            decode_client(b"\x83\xa4type\xa8generate\xaarequest_id\xa1r" + key + huge)


def test_errors_survive_the_wire():
    error = BadRequest("no", field="messages[0].role")
    reply = decode_reply(encode(protocol.Failed(request_id="r", error=protocol.WireError.of(error))))
    assert str(reply.error.exception()) == str(error)
