"""Every message on the wire, grouped by link. Encoding: MessagePack maps with a ``type`` key; PROTOCOL.md shows the bytes.

A message is one frame; a StepAnswer is followed by one frame a DENSE row. Unknown fields, over-long lists, numbers out of range
(NaN and infinity among them) and wrong types are refused at decode (``BadRequest``). Hot entries of the grammar link are arrays
(``array_like``) instead of maps. Text without a bound of its own is bounded by its frame.
"""

from shared.protocol.base import (
    MAX_CHUNKS,
    MAX_FRAME_BYTES,
    MAX_REASON_CHARS,
    PROTOCOL_VERSION,
    Count,
    Digest,
    Handle,
    Key,
    Logprob,
    Message,
    Milliseconds,
    Name,
    Names,
    PathList,
    Reason,
    Reasons,
    RequestId,
    Seconds,
    TokenId,
    TokenList,
    WireError,
)
from shared.protocol.codec import decode_client, decode_reply, decode_service, decode_worker, encode
from shared.protocol.front_door import (
    Accepted,
    Cancel,
    ChatMessage,
    Choice,
    ClientMessage,
    Delta,
    Done,
    Failed,
    Generate,
    Health,
    HealthReply,
    TokenLogprob,
    Usage,
    WorkerReply,
)
from shared.protocol.grammar_link import (
    Close,
    Compile,
    Compiled,
    Drain,
    Hello,
    HelloAgain,
    Open,
    Opened,
    Ping,
    Plan,
    Pong,
    PoolWrite,
    Ready,
    ServiceMessage,
    Step,
    StepAnswer,
    StepAnswerEntry,
    StepEntry,
    StepStatus,
    VocabularyChunk,
    VocabularyRequest,
    Welcome,
    WireRow,
    WorkerMessage,
)
from shared.tools import ToolCall

__all__ = [
    "MAX_CHUNKS", "MAX_FRAME_BYTES", "MAX_REASON_CHARS", "PROTOCOL_VERSION", "Accepted", "Cancel", "ChatMessage", "Choice",
    "ClientMessage", "Close", "Compile", "Compiled", "Count", "Delta", "Digest", "Done", "Drain", "Failed", "Generate",
    "Handle", "Health", "HealthReply", "Hello", "HelloAgain", "Key", "Logprob", "Message", "Milliseconds", "Name", "Names",
    "Open", "Opened", "PathList", "Ping", "Plan", "Pong", "PoolWrite", "Ready", "Reason", "Reasons", "RequestId", "Seconds",
    "ServiceMessage", "Step", "StepAnswer", "StepAnswerEntry", "StepEntry", "StepStatus", "TokenId", "TokenList",
    "TokenLogprob", "ToolCall", "Usage", "VocabularyChunk", "VocabularyRequest", "Welcome", "WireError", "WireRow",
    "WorkerMessage", "WorkerReply", "decode_client", "decode_reply", "decode_service", "decode_worker", "encode",
]  # fmt: skip
