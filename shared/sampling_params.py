"""SamplingParams: fields, ranges, spellings, the one greedy rule, and what does not go together (refused by name)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.decoding import refusal
from shared.errors import BadRequest

UNSIGNED_64 = 1 << 64
MAX_TOP_K = 1 << 31
MAX_BIAS = 3.4e38
TokenIds = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=1024)]
TokenSequence = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1, max_length=1024)]
Strings = Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=16)]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How tokens are chosen and when to stop. OpenAI / vLLM names; ``from_mapping`` also takes TensorRT-LLM's.

    None means "not given" where the greedy rule or the model's defaults care. Floats must be finite. ``seed`` is any uint64 (values
    from 2^63 are reinterpreted as signed). ``logit_bias`` maps a token id (as text) to a value added to its logit. A beam search
    has ``best_of`` (without it ``n``) beams, ranked by their log-probabilities under guide, penalties and bans, and returns n
    texts.
    """

    n: Annotated[int, Meta(ge=1, le=8)] = 1
    best_of: Annotated[int, Meta(ge=1, le=64)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1000)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOP_K)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63))] | None = None
    deterministic: bool = False
    top_p_decay: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_p_min: Annotated[float, Meta(gt=0, le=1)] = 1e-6
    top_p_reset_id: Annotated[int, Meta(ge=-1)] = -1
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = 1.0
    presence_penalty: Annotated[float, Meta(ge=-100, le=100)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-100, le=100)] = 0.0
    prompt_ignore_length: Annotated[int, Meta(ge=0)] = 0
    bad_words: Annotated[list[Annotated[str, Meta(max_length=1000)]], Meta(max_length=1000)] = []
    no_repeat_ngram_size: Annotated[int, Meta(ge=0, le=1024)] = 0
    logit_bias: Annotated[dict[str, float], Meta(max_length=1024)] = {}
    allowed_token_ids: TokenIds = []
    max_tokens: Annotated[int, Meta(ge=1, le=1 << 20)] = 256
    min_tokens: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    stop: Strings = []
    stop_token_ids: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=128)] = []
    stop_token_sequences: Annotated[list[TokenSequence], Meta(max_length=128)] = []
    end_id: Annotated[int, Meta(ge=-1)] | None = None
    ignore_eos: bool = False
    include_stop: bool = False
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    logprobs_mode: str = "raw"
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    use_beam_search: bool = False
    beam_width_array: Annotated[list[Annotated[int, Meta(ge=1, le=64)]], Meta(max_length=8)] = []
    length_penalty: Annotated[float, Meta(ge=-6, le=6)] = 1.0
    beam_search_diversity_rate: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    early_stopping: Annotated[int, Meta(ge=0, le=2)] = 1
    detokenize: bool = True
    skip_special_tokens: bool = True
    add_special_tokens: bool = True
    exclude_input_from_output: bool = True
    truncate_prompt_tokens: Annotated[int, Meta(ge=1)] | None = None
    thinking_token_budget: Annotated[int, Meta(ge=0)] | None = None
    logits_processors: Annotated[list[str], Meta(max_length=8)] = []

    @property
    def is_greedy(self) -> bool:
        """The one greedy rule. Explicit (spec 66) beats everything; implicit (spec 67) where nothing that samples is given."""
        if self.use_beam_search:
            return False
        if self.top_k == 1 or self.top_p == 0 or self.min_p == 1 or self.temperature == 0:
            return True
        unset = self.temperature is None and self.top_p is None and self.top_k is None
        return unset and not (self.min_p is not None and 0 < self.min_p < 1) and self.top_p_decay >= 1

    @property
    def num_drawn(self) -> int:
        """Texts that are made: best_of, n without it."""
        return self.n if self.best_of is None else self.best_of

    @property
    def is_ranked(self) -> bool:
        """Whether n of more are returned, by cumulative log-probability (spec 129), or the texts of a beam search."""
        return self.num_drawn > self.n or self.use_beam_search

    def resolve(self) -> RowParams:
        """Row values (spec 68): greedy rows store neutral values and temperature 0."""
        if self.is_greedy or self.use_beam_search:
            return RowParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
        return RowParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p if self.min_p is not None and self.min_p > 0 else 0.0,
        )

    def signed_seed(self, child: int = 0) -> int | None:
        """The seed of child ``child`` (seed + child, spec 129) as a signed 64-bit value (spec 90), None if unseeded."""
        if self.seed is None:
            return None
        value = (self.seed + child) % UNSIGNED_64
        return value - UNSIGNED_64 if value >= UNSIGNED_64 >> 1 else value


class RowParams(msgspec.Struct, frozen=True):
    """What one row of the sampler needs; temperature 0 means greedy; top_k 0, top_p 1, min_p 0 mean off."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


ALIASES: dict[str, str] = {
    "max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens", "min_length": "min_tokens",
    "min_new_tokens": "min_tokens", "bad": "bad_words",
    "random_seed": "seed", "stop_words": "stop", "include_stop_str_in_output": "include_stop",
    "top_p_reset_ids": "top_p_reset_id", "output_log_probs": "logprobs", "top_logprobs": "logprobs",
    "embedding_bias": "logit_bias", "return_generation_logit": "return_generation_logits",
}  # fmt: skip

MAX_DRAWN = 8
BEAM_FIELDS = ("beam_width_array", "beam_search_diversity_rate", "length_penalty", "early_stopping")
# Beams are ranked, not drawn: what only draws has no place. The values that mean nothing else are taken.
SAMPLED: dict[str, tuple[float | None, ...]] = {
    "temperature": (None, 0, 1), "top_k": (None, 0, -1), "top_p": (None, 1), "min_p": (None, 0), "top_p_decay": (1,),
}  # fmt: skip
_DEFAULTS = SamplingParams()


def from_mapping(values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> SamplingParams:
    """Parameters from a request's map. ``defaults``, in our names, stand in for what is not given (spec 74: the request's value,
    then the model's, then ours). Raises BadRequest naming the field; unknown names, bad types, ranges, non-finite floats."""
    renamed: dict[str, Any] = {}
    for name, value in _openai_logprobs(values).items():
        target = ALIASES.get(name, name)
        if target in renamed:
            raise BadRequest(f"given twice ({name} means {target})", field=name)
        if value is not None:
            renamed[target] = _normalise(target, value)
    standing_in = {
        name: value for name, value in (defaults or {}).items() if not renamed.get("use_beam_search") or name not in SAMPLED
    }
    try:
        params = msgspec.convert({**standing_in, **renamed}, SamplingParams)
    except msgspec.ValidationError as error:
        raise refusal(error, field="sampling_params") from error
    check(params)
    return params


def _openai_logprobs(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """OpenAI's pair: ``logprobs: true`` asks for the sampled token's, ``top_logprobs`` for how many beside it."""
    if values.get("logprobs") is not True or values.get("top_logprobs") is None:
        return values
    return {name: value for name, value in values.items() if name != "logprobs"}


def _normalise(name: str, value: Any) -> Any:
    if name in ("stop", "bad_words") and isinstance(value, str):
        return [value]
    if name == "logprobs" and isinstance(value, bool):
        return int(value) if value else None  # spec 73: true means the sampled token's, false none
    if name == "early_stopping" and (isinstance(value, bool) or value == "never"):
        return 2 if value == "never" else int(value)
    if name == "logit_bias" and isinstance(value, Mapping):
        return {str(token): bias for token, bias in value.items()}
    return value


def check(params: SamplingParams) -> None:
    """Ranges that cross fields, finite floats and combinations. Raises BadRequest."""
    for name in SamplingParams.__struct_fields__:
        value = getattr(params, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise BadRequest("must be finite", field=name)
    if any(not abs(bias) <= MAX_BIAS for bias in params.logit_bias.values()):
        raise BadRequest("every bias must be a finite 32-bit float", field="logit_bias")
    if params.seed is not None and params.seed >= UNSIGNED_64:
        raise BadRequest("must be below 2^64", field="seed")
    if params.logprobs_mode not in ("raw", "processed"):
        raise BadRequest("one of raw, processed", field="logprobs_mode")
    if params.min_tokens > params.max_tokens:
        raise BadRequest(f"{params.min_tokens} is more than max_tokens {params.max_tokens}", field="min_tokens")
    if params.top_p_decay == 1:
        for name in ("top_p_min", "top_p_reset_id"):
            if getattr(params, name) != getattr(_DEFAULTS, name):
                raise BadRequest("has no meaning without a top_p_decay below 1", field=name)
    _check_best_of(params)
    _check_beams(params)


def _check_best_of(params: SamplingParams) -> None:
    if params.num_drawn < params.n:
        raise BadRequest(f"{params.best_of} is less than n {params.n}", field="best_of")
    if params.num_drawn > 1 and params.is_greedy:
        field = "n" if params.n > 1 else "best_of"
        raise BadRequest("greedy sampling gives the same text every time; set a temperature", field=field)
    if params.num_drawn > MAX_DRAWN and not params.use_beam_search:
        raise BadRequest(f"at most {MAX_DRAWN} texts are drawn", field="best_of")


def _check_beams(params: SamplingParams) -> None:
    """Spec 109, and what has no meaning with beams or without them."""
    if not params.use_beam_search:
        for name in BEAM_FIELDS:
            if getattr(params, name) != getattr(_DEFAULTS, name):
                raise BadRequest("has no meaning without use_beam_search", field=name)
        return
    for name, neutral in SAMPLED.items():
        if getattr(params, name) not in neutral:
            raise BadRequest("has no meaning with use_beam_search, which draws nothing", field=name)
    if params.logprobs:
        raise BadRequest("beams tell the log-probability of each token of the text and no alternatives: 0", field="logprobs")
    widths = params.beam_width_array
    if widths != sorted(widths):
        raise BadRequest(f"{widths} gets narrower", field="beam_width_array")
    if widths and widths[-1] != params.num_drawn:
        raise BadRequest(f"its last width {widths[-1]} is not best_of {params.num_drawn}", field="beam_width_array")
