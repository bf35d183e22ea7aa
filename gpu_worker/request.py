"""A request as the step loop sees it, made from a Generate message by ``admit``: everything checked, nothing pending."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpu_worker.reasoning import FREE, gate_of
from gpu_worker.sampler.admission import make_rules
from gpu_worker.sampler.context_logits import row_bytes, rows_a_piece
from gpu_worker.sampler.finish import FinishRules
from gpu_worker.sampler.logits_processors import LogitsProcessor, NamedProcessor, chosen
from gpu_worker.sampler.rules import SamplingRules
from shared import guide as guides
from shared import sampling_params
from shared.errors import BadRequest, MaskstreamError, ProtocolVersion, TooLarge
from shared.gate import Gate
from shared.guide import Guide
from shared.protocol import MAX_FRAME_BYTES, PROTOCOL_VERSION, Generate
from shared.sampling_params import SamplingParams
from shared.tokenizer import Vocabulary, special_id_set
from shared.tools import ToolUse, tool_use

ENTRY_BYTES, TOP_BYTES = 20, 16
"""A token's log-probability in a reply, and one alternative, at most."""


MAX_LOGITS_BYTES = 64 << 20
"""Logits that one request may have returned."""


class PromptEncoder(Protocol):
    """Turns text and chats into token ids (``gpu_worker.models.chat``)."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def encode_messages(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]: ...

    @property
    def shows_tools(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Model:
    """What admission needs to know of the model. ``defaults``: its own sampling defaults, in our names; ``processors``: the logits
    processors that are installed beside it; ``max_slots`` sequences are decoded at once, with ``max_draft_tokens`` guessed
    ahead."""

    name: str
    vocabulary: Vocabulary
    encoder: PromptEncoder
    max_length: int
    defaults: Mapping[str, Any] = field(default_factory=dict)
    processors: Mapping[str, LogitsProcessor] = field(default_factory=dict)
    max_slots: int = 1024
    max_draft_tokens: int = 0
    max_prompt_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        # A longer text cannot have max_length tokens or fewer: it is refused before the tokenizer spends seconds on it.
        longest = max(map(len, self.vocabulary.token_bytes))
        object.__setattr__(self, "max_prompt_bytes", self.max_length * longest)


@dataclass(slots=True)
class Request:
    """One admitted request. ``deadline_s`` and ``received_s`` are on the worker's clock; ``end_ids`` are the tokens that end a text
    by themselves (the request's stop set towards a grammar); ``output_token_ids`` are tokens it came with (continuation);
    ``rules``: what its parameters forbid, prefer and end; ``gate``: the free part before the guide; ``tools``: what the
    guide lets be called. Texts that are ranked at the end are not streamed."""

    client: bytes
    request_id: str
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    params: SamplingParams
    guide: Guide | None
    end_ids: frozenset[int]
    max_tokens: int
    stream: bool
    verify: bool
    received_s: float
    deadline_s: float
    rules: SamplingRules
    processors: list[NamedProcessor] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    gate: Gate | None = None
    tools: ToolUse | None = None
    guide_field: str = ""

    @property
    def guide_kind(self) -> str:
        """Empty without a guide of the client's."""
        return self.guide.kind if self.guide is not None and self.guide is not FREE else ""

    @property
    def key(self) -> tuple[bytes, str]:
        return self.client, self.request_id

    def blamed(self, error: MaskstreamError) -> MaskstreamError:
        """An error about the guide, told about the field of the request that it comes from."""
        return self.tools.blamed(error) if self.tools is not None else guides.blamed(error, self.guide_field)

    def finish_rules(self) -> FinishRules:
        end_ids = frozenset() if self.params.ignore_eos else self.end_ids
        return FinishRules(end_ids, frozenset(self.params.stop_token_ids) - end_ids, self.max_tokens)


def admit(message: Generate, client: bytes, model: Model, *, now_s: float, deadline_s: float, max_deadline_s: float) -> Request:
    """Checks a message and makes a request of it. Raises BadRequest (field named), TooLarge, ProtocolVersion."""
    if message.protocol_version != PROTOCOL_VERSION:
        text = f"this worker speaks version {PROTOCOL_VERSION}, not {message.protocol_version}"
        raise ProtocolVersion(text, field="protocol_version")
    params = sampling_params.from_mapping(message.sampling_params, model.defaults)
    guide = guides.guide_from_request(message.response_format, message.structured_outputs)
    tools = tool_use(message.tools, message.tool_choice, parallel=message.parallel_tool_calls)
    if tools is not None:
        if guide is not None:
            raise BadRequest("tools and a guide given: with tools the guide is theirs", field="tools")
        guide = tools.guide()
    _check_combination(params, guide)
    _check_beams(params, message, model)
    end_ids = _end_ids(params, model.vocabulary)
    gate = gate_of(message.reasoning, params, model.vocabulary, end_ids)
    rules = _rules(params, model)
    prompt = _prompt_ids(message, params, model, [tool.shown() for tool in tools.shown] if tools else [])
    room = model.max_length - len(prompt)
    if room < 1:
        raise TooLarge(f"{len(prompt)} prompt tokens leave no room in {model.max_length}", field="prompt")
    if len(message.output_token_ids) >= room:
        raise TooLarge(f"prompt and output so far leave no room in {model.max_length}", field="output_token_ids")
    _check_ids(message.output_token_ids, model.vocabulary, "output_token_ids")
    _check_reply(params, len(prompt))
    _check_logits(params, message.stream, model.vocabulary.size, len(prompt), min(params.max_tokens, room))
    if len(message.output_token_ids) >= params.max_tokens:
        raise BadRequest("as many tokens as max_tokens are already there", field="output_token_ids")
    wanted_s = min(message.deadline_s or deadline_s, max_deadline_s)
    return Request(
        client=client, request_id=message.request_id, prompt_token_ids=prompt, output_token_ids=list(message.output_token_ids),
        params=params, guide=FREE if guide is None and gate is not None else guide, gate=gate, end_ids=end_ids,
        max_tokens=min(params.max_tokens, room),
        stream=message.stream and not params.is_ranked, verify=message.verify, received_s=now_s, deadline_s=now_s + wanted_s,
        rules=rules, processors=chosen(params.logits_processors, model.processors), tools=tools,
        guide_field=guides.guide_field(message.response_format, message.structured_outputs),
        warnings=_warnings(message, tools, model),
    )  # fmt: skip


def _warnings(message: Generate, tools: ToolUse | None, model: Model) -> list[str]:
    unseen = tools is not None and message.messages is not None and not model.encoder.shows_tools
    return ["the model's chat template does not show tools: say in a message what there is"] if unseen else []


def _check_reply(params: SamplingParams, prompt_tokens: int) -> None:
    """A reply is one frame: the prompt's log-probabilities may take half of it."""
    num_bytes = prompt_tokens * (ENTRY_BYTES + TOP_BYTES * (params.prompt_logprobs or 0))
    if params.prompt_logprobs is not None and num_bytes > MAX_FRAME_BYTES // 2:
        raise TooLarge(f"those of {prompt_tokens} tokens do not fit in a reply", field="prompt_logprobs")


def _check_beams(params: SamplingParams, message: Generate, model: Model) -> None:
    if not params.use_beam_search:
        return
    if params.num_drawn > model.max_slots:
        raise TooLarge(f"{params.num_drawn} beams, but this worker decodes {model.max_slots} texts at once", field="best_of")
    if model.max_draft_tokens:
        raise BadRequest(f"beams are not drafted, and this worker drafts {model.max_draft_tokens} tokens", field="use_beam_search")
    if message.output_token_ids:
        raise BadRequest("one text does not say where its beam search stood", field="output_token_ids")


def _check_logits(params: SamplingParams, stream: bool, vocab_size: int, prompt_tokens: int, max_tokens: int) -> None:
    """Returned logits travel with the pieces of the text, and a client that reads slowly must not fill the worker's memory."""
    for name, num_rows in (("return_generation_logits", params.n * max_tokens), ("return_context_logits", prompt_tokens)):
        if not getattr(params, name):
            continue
        if not stream or params.is_ranked:
            raise BadRequest("the logits come with streamed pieces, which this request has not", field=name)
        num_bytes = num_rows * row_bytes(vocab_size)
        if num_bytes > MAX_LOGITS_BYTES or not rows_a_piece(vocab_size):
            text = f"{num_bytes} bytes, {row_bytes(vocab_size)} a token; at most {MAX_LOGITS_BYTES} are returned"
            raise TooLarge(text, field=name)


def _rules(params: SamplingParams, model: Model) -> SamplingRules:
    def encode(text: str) -> list[int]:
        return model.encoder.encode(text, add_special_tokens=False)

    return make_rules(params, model.vocabulary.size, encode, _end_ids(params, model.vocabulary))


def _check_combination(params: SamplingParams, guide: Guide | None) -> None:
    if guide is not None and params.ignore_eos:
        raise BadRequest("cannot be honoured with a guide: the grammar decides where the text ends", field="ignore_eos")
    if guide is not None and params.end_id == -1:
        raise BadRequest("a guided text needs an end token", field="end_id")


def _prompt_ids(message: Generate, params: SamplingParams, model: Model, tools: list[dict[str, Any]]) -> list[int]:
    given = [name for name in ("prompt", "messages", "prompt_token_ids") if getattr(message, name) is not None]
    if len(given) != 1:
        raise BadRequest(f"{len(given)} prompts given: exactly one of prompt, messages, prompt_token_ids", field="prompt")
    _check_length(message, params, model, tools)
    if message.messages is not None:
        ids = model.encoder.encode_messages([{"role": m.role, "content": m.content} for m in message.messages], tools)
    elif message.prompt is not None:
        ids = model.encoder.encode(message.prompt, add_special_tokens=params.add_special_tokens)
    else:
        ids = list(message.prompt_token_ids or [])
        _check_ids(ids, model.vocabulary, "prompt_token_ids")
    if params.truncate_prompt_tokens is not None:
        ids = ids[-params.truncate_prompt_tokens :]
    if not ids:
        raise BadRequest("the prompt has no tokens", field=given[0])
    return ids


def _check_length(message: Generate, params: SamplingParams, model: Model, tools: list[dict[str, Any]]) -> None:
    if message.messages == []:
        raise BadRequest("at least one message is needed", field="messages")
    shown = json.dumps(tools) if tools and message.messages is not None else ""
    texts = [m.content for m in message.messages or []] + [message.prompt or "", shown]
    num_bytes = sum(len(text.encode()) for text in texts)
    if num_bytes > model.max_prompt_bytes and params.truncate_prompt_tokens is None:
        field_name = "messages" if message.messages is not None else "prompt"
        raise TooLarge(f"{num_bytes} bytes cannot fit in {model.max_length} tokens", field=field_name)


def _check_ids(ids: list[int], vocabulary: Vocabulary, field_name: str) -> None:
    for at, token_id in enumerate(ids):
        if not 0 <= token_id < vocabulary.size:
            raise BadRequest(f"{token_id} is outside the vocabulary [0, {vocabulary.size})", field=f"{field_name}[{at}]")


def _end_ids(params: SamplingParams, vocabulary: Vocabulary) -> frozenset[int]:
    """The request's own stop set: its end id or the vocabulary's, and those of its stop ids that are special tokens (an ordinary
    token as a stop id may end a guided text early, but it is not how the text ends)."""
    own = frozenset(vocabulary.stop_ids) if params.end_id is None else frozenset({params.end_id} - {-1})
    return own | (frozenset(params.stop_token_ids) & special_id_set(vocabulary))
