"""PROTOCOL.md against the wire: every message and field is on the page, and its bytes are the bytes."""

import json
import re
from pathlib import Path

import msgpack
import msgspec
import pytest

from shared import digest, errors, gate, protocol

PAGE = (Path(__file__).resolve().parents[2] / "PROTOCOL.md").read_text()
DECODERS = {
    "generate": protocol.decode_client, "delta": protocol.decode_reply, "done": protocol.decode_reply,
    "failed": protocol.decode_reply, "hello": protocol.decode_service, "step_answer": protocol.decode_service,
    "open": protocol.decode_worker,
    "step": protocol.decode_worker,
}  # fmt: skip
PARTS = (
    "ChatMessage",
    "ToolCall",
    "Choice",
    "Usage",
    "TokenLogprob",
    "WireError",
    "Plan",
    "StepEntry",
    "StepAnswerEntry",
    "WireRow",
    "PoolWrite",
)
STRUCTS = {cls.__struct_config__.tag: cls for cls in protocol.Message.__subclasses__()}
STRUCTS |= {name: getattr(protocol, name) for name in PARTS} | {"Gate": gate.Gate}


def section(name):
    heading = f"### `{name}`" if name in {cls.__struct_config__.tag for cls in protocol.Message.__subclasses__()} else f"### {name}"
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^##+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"{heading} is missing"
    return found.group(1)


def example(name):
    """(what the page says is in the bytes, the bytes)"""
    found = re.search(rf"^#### Bytes of a `{name}`$.*?```json\n(.*?)```.*?```hex\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"{name} has no bytes"
    return json.loads(re.sub(r"<([0-9a-f]*)>", r'"<\1>"', found.group(1).replace("\n", " "))), bytes.fromhex(found.group(2))


def shown(value):
    if isinstance(value, dict):
        return {key: shown(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [shown(entry) for entry in value]
    return f"<{value.hex()}>" if isinstance(value, bytes) else value


def test_every_message_is_known():
    assert len(STRUCTS) == 36
    assert set(DECODERS) == set(re.findall(r"^#### Bytes of a `(\w+)`$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_fields_are_on_the_page(name):
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.*?) \|$", section(name), re.MULTILINE)
    fields = msgspec.structs.fields(STRUCTS[name])
    assert [row[0] for row in rows] == [field.encode_name for field in fields]
    for (_, _, default, meaning), field in zip(rows, fields, strict=True):
        assert (default == "required") == field.required
        assert meaning or name == "Usage"


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_bytes_are_a_message(name):
    _, frame = example(name)
    message = DECODERS[name](frame)
    assert type(message) is STRUCTS[name]
    assert protocol.encode(message) == frame


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_bytes_are_plain_messagepack(name):
    text, frame = example(name)
    assert shown(msgpack.unpackb(frame)) == text


def test_the_examples_tell_one_story():
    opened = protocol.decode_worker(example("open")[1])
    entry = protocol.decode_worker(example("step")[1]).entries[0]
    answer = protocol.decode_service(example("step_answer")[1]).entries[0]
    assert opened.plan.digest == opened.plan_digest == entry.prefix_digest
    assert (opened.handle, opened.epoch) == (entry.handle, entry.epoch) == (answer.handle, answer.epoch)
    assert entry.sequence_number == answer.sequence_number
    assert answer.digest == digest.of_walk(entry.prefix_digest, entry.path, entry.parents)


def test_every_code_is_on_the_page():
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE.split("## Errors")[1], re.MULTILINE))
    assert listed == set(errors.BY_CODE) | {"unknown_plan"}


def test_the_version_is_the_one_spoken():
    assert f"Version {protocol.PROTOCOL_VERSION}." in PAGE
    assert protocol.MAX_FRAME_BYTES == 4 << 20
    assert "**4 MiB**" in PAGE
