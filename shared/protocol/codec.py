"""Frames to messages and back, by who sent them."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.decoding import refusal
from shared.protocol.front_door import ClientMessage, WorkerReply
from shared.protocol.grammar_link import ServiceMessage, WorkerMessage

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
_decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "client": msgspec.msgpack.Decoder(ClientMessage),
    "reply": msgspec.msgpack.Decoder(WorkerReply),
    "service": msgspec.msgpack.Decoder(ServiceMessage),
    "worker": msgspec.msgpack.Decoder(WorkerMessage),
}


def _decode(direction: str, frame: bytes | memoryview) -> Any:
    try:
        return _decoders[direction].decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(error) from error


def decode_client(frame: bytes | memoryview) -> ClientMessage:
    """A frame from a client, at the worker. Raises BadRequest naming the field."""
    message: ClientMessage = _decode("client", frame)
    return message


def decode_reply(frame: bytes | memoryview) -> WorkerReply:
    """A frame from the worker, at a client."""
    message: WorkerReply = _decode("reply", frame)
    return message


def decode_service(frame: bytes | memoryview) -> ServiceMessage:
    """A frame from a grammar service, at the worker."""
    message: ServiceMessage = _decode("service", frame)
    return message


def decode_worker(frame: bytes | memoryview) -> WorkerMessage:
    """A frame from a worker, at a grammar service."""
    message: WorkerMessage = _decode("worker", frame)
    return message
