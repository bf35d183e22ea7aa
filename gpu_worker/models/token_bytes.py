"""The raw bytes of a token as a ``tokenizer.json`` writes it: the alphabet of byte-level BPE, or SentencePiece's marks."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shared.errors import ConfigError

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"


@functools.cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, every other byte for a character from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def from_byte_level(token: str) -> bytes:
    """Bytes of a byte-level token; a token with characters outside the alphabet is plain text."""
    alphabet = byte_alphabet()
    try:
        return bytes(alphabet[character] for character in token)
    except KeyError:
        return token.encode()


def from_sentencepiece(token: str) -> bytes:
    """Bytes of a piece: ``<0xNN>`` is one byte, the mark U+2581 a space."""
    piece = _BYTE_PIECE.fullmatch(token)
    return bytes([int(piece[1], 16)]) if piece else token.replace(_SPACE_MARK, " ").encode()


def bytes_reader(tokenizer: dict[str, Any], file: Path) -> Callable[[str], bytes]:
    """The reading that the tokenizer's decoder asks for. Raises ConfigError where it asks for neither."""
    kinds = set(_kinds(tokenizer.get("decoder")))
    if "ByteLevel" in kinds:
        return from_byte_level
    if kinds & {"ByteFallback", "Metaspace"}:
        return from_sentencepiece
    found = ", ".join(sorted(kinds)) or "none"
    text = f"{file}: decoder is {found}; only ByteLevel, ByteFallback and Metaspace give raw bytes"
    raise ConfigError(text, field="model")


def _kinds(decoder: dict[str, Any] | None) -> Iterator[str]:
    if decoder:
        yield str(decoder.get("type"))
        for part in decoder.get("decoders") or []:
            yield from _kinds(part)
