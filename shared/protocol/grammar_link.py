"""Messages between grammar service and worker."""

from __future__ import annotations

import enum
import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shared.gate import Gate
from shared.guide import Guide
from shared.protocol.base import (
    MAX_CHUNKS,
    Count,
    Digest,
    Handle,
    Key,
    Message,
    Milliseconds,
    Name,
    PathList,
    Reasons,
    Seconds,
    TokenList,
    WireError,
    own_version,
)
from shared.tokenizer import CHUNK_BYTES


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a guide is enforced. ``grammar_kind`` and ``text`` are what the engine is fed; ``digest`` names the plan: it goes into
    every prefix digest. ``validate_after``: the finished text must pass the validator (on_unsupported = validate). ``gate``: free
    text comes first; ``grammar_digest`` names the plan without it, since what is compiled is the same."""

    engine: Name
    engine_version: Name
    guide_kind: Name
    grammar_kind: Name
    text: str
    options: Annotated[dict[str, Any], Meta(max_length=64)] = {}
    after_guide: Literal["stop", "free"] = "stop"
    validate_after: bool = False
    warnings: Reasons = []
    rewrites: Reasons = []
    gate: Gate | None = None

    @property
    def digest(self) -> bytes:
        """8 bytes over everything that decides the language."""
        return self.grammar_digest if self.gate is None else _digest([*self._decisive, self.gate])

    @property
    def grammar_digest(self) -> bytes:
        return _digest(self._decisive)

    @property
    def _decisive(self) -> list[Any]:
        return [self.engine, self.engine_version, self.grammar_kind, self.text, self.options, self.after_guide]


def _digest(decisive: list[Any]) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(decisive, order="sorted"), digest_size=8).digest()


class Hello(Message, tag="hello", frozen=True, kw_only=True):
    """First message of every connection, sent at each handshake. ``max_outstanding_steps`` is the credit given to the worker."""

    service: Name
    instance: Key
    engines: Annotated[dict[Name, Name], Meta(max_length=16)]
    max_outstanding_steps: Annotated[int, Meta(ge=1, le=1024)] = 8
    protocol_version: Count = msgspec.field(default_factory=own_version)


class Welcome(Message, tag="welcome", frozen=True, kw_only=True):
    """``vocabulary_bytes`` and ``num_chunks`` describe the table of ``fingerprint``. ``pool_rows`` is the partition of the worker's
    row pool granted to this connection (0: rows travel inline), starting at ``pool_base``. A session of an old epoch, or one whose
    worker is silent, ends after ``lease_s``."""

    worker: Name
    fingerprint: Key
    vocab_size: Annotated[int, Meta(ge=1, lt=1 << 31)]
    vocabulary_bytes: Annotated[int, Meta(ge=1, le=MAX_CHUNKS * CHUNK_BYTES)]
    num_chunks: Annotated[int, Meta(ge=1, le=MAX_CHUNKS)]
    pool_base: Handle = 0
    pool_rows: Handle = 0
    lease_s: Seconds = 60.0
    protocol_version: Count = msgspec.field(default_factory=own_version)


class VocabularyRequest(Message, tag="vocabulary_request", frozen=True, kw_only=True):
    fingerprint: Key
    chunk: Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)]


class VocabularyChunk(Message, tag="vocabulary_chunk", frozen=True, kw_only=True):
    fingerprint: Key
    chunk: Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)]
    data: Annotated[bytes, Meta(max_length=CHUNK_BYTES)]


class Ready(Message, tag="ready", frozen=True, kw_only=True):
    """The service holds the vocabulary and both engines are warm; or it could not be used (``error``)."""

    fingerprint: Key
    error: WireError | None = None


class Compile(Message, tag="compile", frozen=True, kw_only=True):
    """Plans and compiles a guide. ``client`` is whom the work is for (fair queue). Answer: Compiled with the same ``key``."""

    key: Key
    guide: Guide
    client: Name = ""
    deadline_s: Annotated[float, Meta(ge=-86400, le=86400)] = 30.0


class Compiled(Message, tag="compiled", frozen=True, kw_only=True):
    """Either ``plan`` or ``error``. ``cached``: no work was needed. ``first_row_share``: allowed share of the vocabulary."""

    key: Key
    plan: Plan | None = None
    error: WireError | None = None
    compile_ms: Milliseconds = 0.0
    grammar_bytes: Count = 0
    first_row_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    cached: bool = False


class Open(Message, tag="open", frozen=True, kw_only=True):
    """Opens a session and pins its plan. ``plan`` may be left out where this connection has compiled or opened that digest before;
    a service that does not know it answers ``unknown_plan``. ``stop_ids`` is the request's own stop set. ``committed`` is replayed.
    ``parent``: fork of another session's first ``len(committed)`` tokens, where it is there; else replay."""

    handle: Handle
    epoch: Handle
    plan_digest: Digest
    plan: Plan | None = None
    stop_ids: TokenList
    committed: TokenList = []
    parent: Handle | None = None


class Opened(Message, tag="opened", frozen=True, kw_only=True):
    """``error`` with code ``unknown_plan`` asks for the plan; any other error ends the session."""

    handle: Handle
    epoch: Handle
    error: WireError | None = None


class StepEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One session's part of a step, absolute: the service brings its history to ``base_length`` (rolling back or taking
    ``committed``, the tokens since the last entry's base), then walks ``path``.

    ``prefix_digest`` is the digest of (plan, the first ``base_length`` tokens); ``path`` is golden token + drafts (empty for the
    first row); ``parents[i]`` is the index of node i's parent in the path, -1 for the root (empty: a chain). ``accepted`` counts
    what the verifier kept of the last walk, golden included (-1: no cross-check). The same sequence number means the same bytes.
    """

    handle: Handle
    epoch: Handle
    sequence_number: Handle
    base_length: Annotated[int, Meta(ge=0, le=1 << 20)]
    prefix_digest: Digest
    committed: TokenList
    path: PathList
    parents: Annotated[list[Annotated[int, Meta(ge=-1, le=255)]], Meta(max_length=256)] = []
    accepted: Annotated[int, Meta(ge=-1, le=256)] = -1
    draft_walk: bool = False


class Step(Message, tag="step", frozen=True, kw_only=True):
    """All entries of one step for one service. ``retired_step``: every read of rows answered for steps up to it has ended."""

    step: Count
    retired_step: Annotated[int, Meta(ge=-1, lt=1 << 62)]
    entries: Annotated[list[StepEntry], Meta(max_length=4096)]


class StepStatus(enum.IntEnum):
    """What became of an entry's walk."""

    OK = 0
    TERMINATED = 1  # the grammar ended inside the path (a stop token was accepted); no row after it
    DEAD_END = 2  # no token is allowed after the golden token
    REFUSED = 3  # the golden token is not in the language
    FAILED = 4  # matcher error, budget, ...: ``error`` says
    RESYNC = 5  # the service cannot build the base (unknown session, digest mismatch): open again with a replay


class WireRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A row: ``kind`` (shared.bitmask.RowKind), ``value`` (SINGLE: token id; DENSE: index of its frame; POOL: index), ``ids``
    (SPARSE: int32 little-endian), ``generation`` (POOL). Several DENSE rows may name the same frame."""

    kind: Annotated[int, Meta(ge=0, le=5)]
    value: Handle = 0
    ids: Annotated[bytes, Meta(max_length=4 << 10)] = b""
    generation: Count = 0


class StepAnswerEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """``digest`` covers (plan, prefix, path, parents); ``num_advanced`` tokens of the path were accepted (golden included);
    ``rows[i]`` is the row after path[: i + 1] (or the first row where the path is empty): ``num_guided`` of them, all of this walk.
    ``forced``: tokens that are the only continuation after the last row."""

    handle: Handle
    epoch: Handle
    sequence_number: Handle
    digest: Annotated[bytes, Meta(max_length=8)]
    status: Annotated[int, Meta(ge=0, le=5)]
    num_advanced: Annotated[int, Meta(ge=0, le=257)]
    num_guided: Annotated[int, Meta(ge=0, le=257)]
    rows: Annotated[list[WireRow], Meta(max_length=257)]
    forced: PathList = []
    error: WireError | None = None


class PoolWrite(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Put a row at ``index`` of the pool, generation ``generation`` (greater than what was there): the words of frame ``frame``, or
    just ``ids`` (int32 little-endian) where there are any. Writes come before the rows of the answer that carries them, and are
    applied in order even where it is refused."""

    index: Handle
    generation: Count
    frame: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    ids: Annotated[bytes, Meta(max_length=4 << 10)] = b""


class StepAnswer(Message, tag="step_answer", frozen=True, kw_only=True):
    """Part of the answer to a step (a step may be answered in parts). DENSE rows and pool writes follow as frames, in order."""

    step: Count
    entries: Annotated[list[StepAnswerEntry], Meta(max_length=4096)]
    writes: Annotated[list[PoolWrite], Meta(max_length=4096)] = []


class Close(Message, tag="close", frozen=True, kw_only=True):
    """Ends sessions: (handle, epoch) pairs."""

    sessions: Annotated[list[tuple[Handle, Handle]], Meta(max_length=4096)]


class Ping(Message, tag="ping", frozen=True, kw_only=True):
    """Answered by the work loop (not by an I/O thread): a sign of life."""

    nonce: Count


class Pong(Message, tag="pong", frozen=True, kw_only=True):
    nonce: Count
    sessions: Count = 0
    queue: Count = 0


class Drain(Message, tag="drain", frozen=True, kw_only=True):
    """From a service: place nothing new here and move the sessions; it leaves when they are gone."""


class HelloAgain(Message, tag="hello_again", frozen=True, kw_only=True):
    """To an unknown routing id: start again with Hello."""


ServiceMessage = Hello | VocabularyRequest | Ready | Compiled | Opened | StepAnswer | Pong | Ping | Drain
WorkerMessage = Welcome | VocabularyChunk | Compile | Open | Step | Close | Ping | Pong | HelloAgain
