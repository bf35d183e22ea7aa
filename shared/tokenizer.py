"""The vocabulary table that workers send to grammar services, its fingerprint, and the incremental detokeniser."""

from __future__ import annotations

import codecs
import copy
import functools
import hashlib
from typing import Annotated

import msgspec

from shared.decoding import refusal
from shared.errors import BadRequest

CHUNK_BYTES = 1 << 20
"""Vocabularies travel in chunks of 1 MiB (tokenizer definitions are 6-11 MB)."""


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything an engine needs to know of a tokenizer.

    ``token_bytes[id]`` are the raw bytes of a token (UTF-8 pieces, not the printable alphabet of byte-level BPE), for a special
    token its text; ``b""`` where an id has no token. ``len(token_bytes)`` is the logits width V (padded). ``stop_ids`` is the
    union of every source of eos (tokenizer, generation config, model config). ``definition`` is the tokenizer's own text
    (``tokenizer.json``, or tiktoken ranks and pattern as JSON) where there is one, so that forced tokens are canonical.
    """

    token_bytes: list[bytes]
    special_ids: list[int]
    stop_ids: Annotated[list[int], msgspec.Meta(min_length=1)]
    definition_kind: str = "none"  # none | huggingface | tiktoken
    definition: str = ""

    @property
    def size(self) -> int:
        """V: number of ids, the padded width of the logits."""
        return len(self.token_bytes)

    def check(self) -> None:
        """Raises BadRequest where an id is out of range."""
        for field in ("special_ids", "stop_ids"):
            if any(not 0 <= i < self.size for i in getattr(self, field)):
                raise BadRequest(f"an id is outside [0, {self.size})", field=field)


def to_wire(vocabulary: Vocabulary) -> bytes:
    """MessagePack bytes of the table; their hash is the fingerprint."""
    return msgspec.msgpack.encode(vocabulary)


def from_wire(data: bytes, fingerprint: str) -> Vocabulary:
    """The table from its bytes. Raises BadRequest where the hash or the content is wrong."""
    if fingerprint_of(data) != fingerprint:
        raise BadRequest("the bytes received do not hash to the fingerprint", field="fingerprint")
    try:
        vocabulary = msgspec.msgpack.decode(data, type=Vocabulary)
    except msgspec.DecodeError as error:
        raise refusal(error, field="vocabulary") from error
    vocabulary.check()
    return vocabulary


def fingerprint_of(data: bytes) -> str:
    """32 hex digits naming a vocabulary."""
    return hashlib.sha256(data).hexdigest()[:32]


def chunks(data: bytes) -> list[bytes]:
    """``data`` in pieces of at most CHUNK_BYTES."""
    return [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]


class Detokenizer:
    """Turns the tokens of one sequence into text piece by piece; bytes of an unfinished character wait for the next token."""

    def __init__(self, vocabulary: Vocabulary, *, skip_special_tokens: bool = True) -> None:
        self._bytes = vocabulary.token_bytes
        self._special = special_id_set(vocabulary) if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: list[int]) -> str:
        """Text that these tokens complete."""
        if len(token_ids) == 1:
            return self._decoder.decode(b"" if token_ids[0] in self._special else self._bytes[token_ids[0]])
        return self._decoder.decode(b"".join([self._bytes[i] for i in token_ids if i not in self._special]))

    def branch(self) -> Detokenizer:
        """A copy that goes its own way, with the bytes that wait."""
        twin = copy.copy(self)
        twin._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        twin._decoder.setstate(self._decoder.getstate())
        return twin

    def flush(self) -> str:
        """What is left at the end: an unfinished character becomes U+FFFD."""
        return self._decoder.decode(b"", True)


@functools.lru_cache(maxsize=8)
def _special_by_identity(ids: tuple[int, ...]) -> frozenset[int]:
    return frozenset(ids)


def special_id_set(vocabulary: Vocabulary) -> frozenset[int]:
    """The special ids as a set."""
    return _special_by_identity(tuple(vocabulary.special_ids))


def decode(vocabulary: Vocabulary, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
    """Text of a whole token list."""
    detokenizer = Detokenizer(vocabulary, skip_special_tokens=skip_special_tokens)
    return detokenizer.push(token_ids) + detokenizer.flush()
