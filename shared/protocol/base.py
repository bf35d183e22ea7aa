"""What the messages of both links are made of: bounded field types, the base of all messages, errors."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shared.errors import MaskstreamError, from_wire

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 4 << 20
MAX_REASON_CHARS = 4096
MAX_CHUNKS = 256

RequestId = Annotated[str, Meta(min_length=1, max_length=64)]
Name = Annotated[str, Meta(max_length=128)]
Key = Annotated[str, Meta(max_length=64)]
Reason = Annotated[str, Meta(max_length=MAX_REASON_CHARS)]
Digest = Annotated[bytes, Meta(min_length=8, max_length=8)]
Handle = Annotated[int, Meta(ge=0, lt=1 << 32)]
Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
TokenList = Annotated[list[TokenId], Meta(max_length=1 << 18)]
PathList = Annotated[list[TokenId], Meta(max_length=256)]
Names = Annotated[list[Name], Meta(max_length=4096)]
Reasons = Annotated[list[Reason], Meta(max_length=4096)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
Milliseconds = Annotated[float, Meta(ge=0, le=1e9)]
Logprob = Annotated[float, Meta(ge=-1e15, le=1e15)]


def own_version() -> int:
    """A factory's value is always sent: a plain default would be left out, and the peer would take its own version for ours."""
    return PROTOCOL_VERSION


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"):
    """Base of all messages."""


class WireError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An error of ``shared/errors.py`` on the wire."""

    code: Name
    message: Reason
    field: Reason = ""
    pointer: Reason = ""
    keyword: Reason = ""

    @classmethod
    def of(cls, error: MaskstreamError) -> WireError:
        """Texts longer than the wire takes are cut."""
        texts = (error.message, error.field, error.pointer, error.keyword)
        message, field, pointer, keyword = (text[:MAX_REASON_CHARS] for text in texts)
        return cls(code=error.code, message=message, field=field, pointer=pointer, keyword=keyword)

    def exception(self) -> MaskstreamError:
        return from_wire(self.code, self.message, field=self.field, pointer=self.pointer, keyword=self.keyword)
