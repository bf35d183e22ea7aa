"""The vocabulary on the wire, and bytes to text as tokens come."""

import msgspec
import pytest

from shared import tokenizer
from shared.errors import BadRequest
from shared.tokenizer import CHUNK_BYTES, Detokenizer, Vocabulary, decode
from tests.vocabularies import tiny


def test_round_trip():
    data = tokenizer.to_wire(tiny())
    assert tokenizer.from_wire(data, tokenizer.fingerprint_of(data)) == tiny()
    assert tiny().size == 264  # the padded width: ids without a token count


def test_fingerprint_names_the_content():
    data = tokenizer.to_wire(tiny())
    other = tokenizer.to_wire(msgspec.structs.replace(tiny(), stop_ids=[260]))
    assert tokenizer.fingerprint_of(data) != tokenizer.fingerprint_of(other)
    with pytest.raises(BadRequest) as caught:
        tokenizer.from_wire(other, tokenizer.fingerprint_of(data))
    assert caught.value.field == "fingerprint"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"stop_ids": []}, "stop_ids"),
        ({"stop_ids": [264]}, "stop_ids"),
        ({"special_ids": [-1]}, "special_ids"),
        ({"token_bytes": "x"}, "token_bytes"),
        ({"more": 1}, "more"),
    ],
)
def test_a_wrong_table_is_refused(change, field):
    data = msgspec.msgpack.encode(msgspec.structs.asdict(tiny()) | change)
    with pytest.raises(BadRequest) as caught:
        tokenizer.from_wire(data, tokenizer.fingerprint_of(data))
    assert caught.value.field == field


def test_bytes_that_are_no_table():
    data = b"\xc1garbage"
    with pytest.raises(BadRequest) as caught:
        tokenizer.from_wire(data, tokenizer.fingerprint_of(data))
    assert caught.value.field == "vocabulary"


@pytest.mark.parametrize(
    ("size", "lengths"), [(0, []), (1, [1]), (CHUNK_BYTES, [CHUNK_BYTES]), (CHUNK_BYTES + 1, [CHUNK_BYTES, 1])]
)
def test_chunks(size, lengths):
    data = bytes(size)
    pieces = tokenizer.chunks(data)
    assert [len(piece) for piece in pieces] == lengths
    assert b"".join(pieces) == data


def test_a_character_waits_for_its_bytes():
    detokenizer = Detokenizer(tiny())
    euro = list("€".encode())
    assert [detokenizer.push([byte]) for byte in euro] == ["", "", "€"]
    assert detokenizer.push([256, 65]) == "abA"
    assert detokenizer.flush() == ""


def test_an_unfinished_character_at_the_end():
    detokenizer = Detokenizer(tiny())
    assert detokenizer.push([0xE2, 0x82]) == ""
    assert detokenizer.flush() == "\N{REPLACEMENT CHARACTER}"


def test_bytes_that_are_no_utf8():
    assert decode(tiny(), [0x61, 0xFF, 0x62]) == "a\N{REPLACEMENT CHARACTER}b"


def test_special_tokens_are_no_text():  # spec 128
    assert decode(tiny(), [0x61, 260, 0x62, 261]) == "ab"
    assert decode(tiny(), [0x61, 260], skip_special_tokens=False) == "a<eos>"
    assert decode(tiny(), [0x61, 262, 263]) == "a"  # ids without a token


@pytest.mark.parametrize("text", ["", "plain", "Grüße, 世界 🎉", "a" * 100])
def test_any_split_gives_the_text(text):
    ids = list(text.encode())
    for width in (1, 2, 3):
        detokenizer = Detokenizer(Vocabulary(token_bytes=[bytes([i]) for i in range(256)], special_ids=[], stop_ids=[0]))
        pieces = [detokenizer.push(ids[at : at + width]) for at in range(0, len(ids), width)]
        assert "".join(pieces) + detokenizer.flush() == text
