"""Every message on the wire, grouped by link. Encoding: MessagePack maps with a ``type`` key; PROTOCOL.md shows the bytes.

A message is one frame; a StepAnswer is followed by one frame a DENSE row. Unknown fields, over-long lists, numbers out of range
(NaN and infinity among them) and wrong types are refused at decode (``BadRequest``). Hot entries of the grammar link are arrays
(``array_like``) instead of maps. Text without a bound of its own is bounded by its frame.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shared.decoding import refusal
from shared.errors import MaskstreamError, from_wire
from shared.gate import Gate
from shared.guide import Guide
from shared.tokenizer import CHUNK_BYTES
from shared.tools import MAX_TOOLS, ToolCall

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


def _own_version() -> int:
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


# ---- client -> worker (front door) ------------------------------------------------------------------------------------------


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Name
    content: str


class Generate(Message, tag="generate", frozen=True, kw_only=True):
    """One request. Exactly one of ``prompt``, ``messages``, ``prompt_token_ids``; at most one guide (``response_format`` or
    ``structured_outputs``), behind the free part that ``reasoning`` describes.

    ``sampling_params`` is a map in the names of ``shared/sampling_params.py``. ``output_token_ids``
    are tokens the client already has (continuation, R25). ``deadline_s`` counts from receipt."""

    request_id: RequestId
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(max_length=1024)] | None = None
    prompt_token_ids: TokenList | None = None
    output_token_ids: TokenList = []
    sampling_params: Annotated[dict[str, Any], Meta(max_length=64)] = {}
    response_format: Annotated[dict[str, Any], Meta(max_length=64)] | None = None
    structured_outputs: Annotated[dict[str, Any], Meta(max_length=64)] | None = None
    reasoning: Gate | None = None
    tools: Annotated[list[Annotated[dict[str, Any], Meta(max_length=16)]], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Name | Annotated[dict[str, Any], Meta(max_length=4)] | None = None
    parallel_tool_calls: bool = True
    stream: bool = True
    verify: bool = False
    deadline_s: Seconds | None = None
    protocol_version: Count = msgspec.field(default_factory=_own_version)


class Cancel(Message, tag="cancel", frozen=True, kw_only=True):
    request_id: RequestId


class Health(Message, tag="health", frozen=True, kw_only=True):
    """``nonce`` comes back in the reply."""

    nonce: Count = 0


# ---- worker -> client --------------------------------------------------------------------------------------------------------


class Accepted(Message, tag="accepted", frozen=True, kw_only=True):
    request_id: RequestId
    prompt_tokens: Count


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of the sampled token, its rank (1 = most likely) and the top alternatives as (id, log-probability)."""

    token_id: TokenId
    logprob: Logprob
    rank: Count
    top: Annotated[list[tuple[TokenId, Logprob]], Meta(max_length=20)] = []


class Delta(Message, tag="delta", frozen=True, kw_only=True):
    """A piece of one choice; ``sequence_number`` counts from 0 without gaps for each choice. ``logits``: float32
    little-endian [V] of each token, as the model gave them."""

    request_id: RequestId
    choice: Count
    sequence_number: Count
    text: str
    token_ids: TokenList
    logprobs: Annotated[list[TokenLogprob], Meta(max_length=1 << 18)] | None = None
    logits: Annotated[list[Annotated[bytes, Meta(max_length=MAX_FRAME_BYTES)]], Meta(max_length=64)] | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The finished text of one of n. ``stop_reason``: ``grammar``, ``eos``, the stop string or the stop token id. With a reasoning
    gate ``reasoning_tokens`` lead up to the answer, markers included, and it begins at ``answer_start`` of the text; all of them
    and the text's end where the gate never closed. With tools ``tool_calls`` are its calls, ``content`` is its other text."""

    choice: Count
    text: str
    token_ids: TokenList
    finish_reason: Literal["stop", "length", "cancelled"]
    stop_reason: str | int | None = None
    valid: bool | None = None
    cumulative_logprob: Logprob | None = None
    logprobs: Annotated[list[TokenLogprob], Meta(max_length=1 << 18)] | None = None
    reasoning_tokens: Count | None = None
    answer_start: Count | None = None
    content: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=1 << 16)] | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Counts and times of a request. ``rows`` counts mask rows by kind name. Of the drafts, ``accepted`` became tokens,
    ``verified`` had a row to be compared with, ``rewound`` were fed to the model and taken back."""

    prompt_tokens: Count
    completion_tokens: Count
    time_to_first_token_ms: Milliseconds = 0.0
    ms_per_token: Milliseconds = 0.0
    compile_ms: Milliseconds = 0.0
    rows: Annotated[dict[Name, Count], Meta(max_length=64)] = {}
    replays: Count = 0
    holds: Count = 0
    drafts_accepted: Count = 0
    drafts_verified: Count = 0
    drafts_rewound: Count = 0


class Done(Message, tag="done", frozen=True, kw_only=True):
    """The one good ending. ``engine`` names the engine of the guide; ``warnings`` say where the language was narrowed;
    ``prompt_logprobs`` are those of the prompt's tokens, from the second on."""

    request_id: RequestId
    choices: Annotated[list[Choice], Meta(min_length=1, max_length=64)]
    usage: Usage
    guide_kind: Name = ""
    engine: Annotated[str, Meta(max_length=257)] = ""
    warnings: Reasons = []
    services: Names = []
    prompt_logprobs: Annotated[list[TokenLogprob], Meta(max_length=1 << 18)] | None = None


class Failed(Message, tag="failed", frozen=True, kw_only=True):
    """The one bad ending (``request_id`` is empty where a frame could not be read)."""

    request_id: Annotated[str, Meta(max_length=64)]
    error: WireError
    token_ids: TokenList = []
    text: str = ""


class HealthReply(Message, tag="health_reply", frozen=True, kw_only=True):
    """``requests``: those of the asking connection that have not ended. A client that misses one of its own there knows that the
    worker lost it (it restarted, or the connection is a new one)."""

    live: bool
    ready: bool
    model: Reason
    vocab_size: Count
    num_slots: Count
    active: Count
    waiting: Count
    grammar_services: Names
    version: Name
    requests: Annotated[list[RequestId], Meta(max_length=1 << 16)] = []
    nonce: Count = 0
    protocol_version: Count = msgspec.field(default_factory=_own_version)


ClientMessage = Generate | Cancel | Health
WorkerReply = Accepted | Delta | Done | Failed | HealthReply


# ---- grammar service <-> worker (grammar link) -------------------------------------------------------------------------------


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
    protocol_version: Count = msgspec.field(default_factory=_own_version)


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
    protocol_version: Count = msgspec.field(default_factory=_own_version)


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
