"""Messages between client and worker."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shared.gate import Gate
from shared.protocol.base import (
    MAX_FRAME_BYTES,
    Count,
    Logprob,
    Message,
    Milliseconds,
    Name,
    Names,
    Reason,
    Reasons,
    RequestId,
    Seconds,
    TokenId,
    TokenList,
    WireError,
    own_version,
)
from shared.tools import MAX_TOOLS, ToolCall

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
    protocol_version: Count = msgspec.field(default_factory=own_version)


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
    little-endian [V] of each token, as the model gave them; ``context_logits``: those of the prompt's tokens, in order, in pieces
    of their own before the first token."""

    request_id: RequestId
    choice: Count
    sequence_number: Count
    text: str
    token_ids: TokenList
    logprobs: Annotated[list[TokenLogprob], Meta(max_length=1 << 18)] | None = None
    logits: Annotated[list[Annotated[bytes, Meta(max_length=MAX_FRAME_BYTES)]], Meta(max_length=64)] | None = None
    context_logits: Annotated[list[Annotated[bytes, Meta(max_length=MAX_FRAME_BYTES)]], Meta(max_length=64)] | None = None


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
    protocol_version: Count = msgspec.field(default_factory=own_version)


ClientMessage = Generate | Cancel | Health
WorkerReply = Accepted | Delta | Done | Failed | HealthReply
