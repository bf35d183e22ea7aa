"""What the router is told (events) and what it wants done (actions). Plain values: no socket, no clock, no frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpu_worker.grammar_link.walks import SessionId, Walk
from shared.errors import MaskstreamError
from shared.guide import Guide
from shared.protocol import Compiled, Plan, PoolWrite, ServiceMessage, StepAnswerEntry, WorkerMessage

Peer = bytes
"""Routing id of a connection."""


class Received(NamedTuple):
    """A message of a peer; ``frame_bytes`` are the sizes of the frames that followed it."""

    peer: Peer
    message: ServiceMessage
    frame_bytes: tuple[int, ...] = ()


class SendFailed(NamedTuple):
    """A message could not be handed over: the peer is gone (EHOSTUNREACH) or takes nothing (EAGAIN). ``unsent`` are this message
    and those that were to follow it: what they carry never reached the peer."""

    peer: Peer
    reason: str
    unsent: tuple[WorkerMessage, ...] = ()


class AskCompile(NamedTuple):
    """``waiter`` names whom the end is for; ``key`` is the guide's key."""

    waiter: int
    key: str
    guide: Guide
    client: str
    deadline_s: float


class OpenSession(NamedTuple):
    session: SessionId
    guide_key: str
    plan: Plan
    stop_ids: tuple[int, ...]
    committed: tuple[int, ...]


class ForkSession(NamedTuple):
    """A session of the first ``length`` committed tokens of ``parent``."""

    session: SessionId
    parent: SessionId
    length: int


class CloseSession(NamedTuple):
    session: SessionId


class SubmitStep(NamedTuple):
    """``retired_step``: every read of rows answered for steps up to it has ended."""

    step: int
    retired_step: int
    walks: Sequence[Walk]


class Tick(NamedTuple):
    """Time has passed."""


Event = Received | SendFailed | AskCompile | OpenSession | ForkSession | CloseSession | SubmitStep | Tick


class Send(NamedTuple):
    peer: Peer
    message: WorkerMessage


class SendChunk(NamedTuple):
    """Send one chunk of the vocabulary table."""

    peer: Peer
    chunk: int


class CompileEnded(NamedTuple):
    """Exactly one of ``compiled`` and ``error``."""

    waiter: int
    compiled: Compiled | None
    error: MaskstreamError | None


class Deliver(NamedTuple):
    """An answer that fits its session's walk; its frames are those of the event being handled."""

    session: SessionId
    entry: StepAnswerEntry
    stop_ids: frozenset[int]
    service: str


class WritePool(NamedTuple):
    """Put a row into the pool; its frame is one of the event being handled."""

    write: PoolWrite


class Redeliver(NamedTuple):
    """A retry of a walk whose answer was delivered before."""

    session: SessionId


class SessionFailed(NamedTuple):
    """The session is over; closing it is still the caller's part."""

    session: SessionId
    error: MaskstreamError


class PeerChanged(NamedTuple):
    service: str
    up: bool


class Count(NamedTuple):
    """Something to count: ``what`` is rejected, replay or hello."""

    what: str
    label: str = ""


Action = Send | SendChunk | CompileEnded | Deliver | WritePool | Redeliver | SessionFailed | PeerChanged | Count
