"""The reasoning gate: free text up to an end marker, then the guide. What it is on the wire, and where the marker was in a text.

A marker is a text, found however the model splits it into tokens, or a list of token ids. Text beyond a marker inside one token
cannot be: the token that would end the marker and go on is forbidden, so the guide begins at a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

Marker = (
    Annotated[str, Meta(min_length=1, max_length=64)]
    | Annotated[list[Annotated[int, Meta(ge=0, lt=1 << 31)]], Meta(min_length=1, max_length=64)]
)


class Gate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``end`` closes the free part. ``start``, where it is given, is what the text begins with. After ``budget`` tokens of free
    text, the start marker not counted, nothing but the end marker may follow."""

    end: Marker
    start: Marker | None = None
    budget: Annotated[int, Meta(ge=0, le=1 << 20)] | None = None


def answer_at(gate: Gate, token_ids: Sequence[int], token_bytes: Sequence[bytes]) -> int | None:
    """How many tokens lead up to the guided part, both markers included; None where the end marker is not there yet."""
    start = 0 if gate.start is None else _start_length(gate.start, token_ids, token_bytes)
    if isinstance(gate.end, str):
        data, marker = b"".join(token_bytes[token_id] for token_id in token_ids[start:]), gate.end.encode()
        found = data.find(marker)
        return None if found < 0 else start + _tokens_up_to(found + len(marker), token_ids[start:], token_bytes)
    for at in range(start, len(token_ids) - len(gate.end) + 1):
        if list(token_ids[at : at + len(gate.end)]) == gate.end:
            return at + len(gate.end)
    return None


def _start_length(start: Marker, token_ids: Sequence[int], token_bytes: Sequence[bytes]) -> int:
    return _tokens_up_to(len(start.encode()), token_ids, token_bytes) if isinstance(start, str) else len(start)


def _tokens_up_to(num_bytes: int, token_ids: Sequence[int], token_bytes: Sequence[bytes]) -> int:
    """The tokens that hold the first ``num_bytes`` bytes."""
    for count, token_id in enumerate(token_ids):
        if num_bytes <= 0:
            return count
        num_bytes -= len(token_bytes[token_id])
    return len(token_ids)
