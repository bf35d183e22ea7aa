"""From parameters to SamplingRules: ids are checked against the vocabulary, strings become tokens, what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from gpu_worker.sampler.rules import NO_WORDS, SamplingRules
from gpu_worker.sampler.token_words import TokenWords
from shared.bitmask import pack
from shared.errors import BadRequest
from shared.sampling_params import SamplingParams

MAX_BAD_CHARS = 1 << 16
MAX_WORD_TOKENS = 1 << 14
"""Tokens of all bad words together, and of all stop sequences: about 10 MB of automaton."""
Encode = Callable[[str], list[int]]


def make_rules(params: SamplingParams, vocab_size: int, encode: Encode, end_ids: frozenset[int]) -> SamplingRules:
    """``encode`` makes tokens of plain text, without special tokens. ``end_ids``: the request's own stop set, whatever ignore_eos
    says (spec 103). Raises BadRequest naming the field."""
    _check_ids(params, vocab_size)
    bias = _biases(params, vocab_size)
    words = _bad_words(params.bad_words, encode)
    return SamplingRules(
        vocab_size=vocab_size,
        bias_ids=np.array(list(bias), np.int32),
        bias_values=np.array(list(bias.values()), np.float32),
        allowed_words=pack(params.allowed_token_ids, vocab_size) if params.allowed_token_ids else None,
        bad_ids=frozenset(word[0] for word in words if len(word) == 1),
        bad_words=_token_words([word for word in words if len(word) > 1], "bad_words"),
        ngram_size=params.no_repeat_ngram_size,
        stops=_token_words(params.stop_token_sequences, "stop_token_sequences"),
        end_ids=end_ids | frozenset(params.stop_token_ids),
        min_tokens=params.min_tokens,
    )


def _check_ids(params: SamplingParams, vocab_size: int) -> None:
    given: list[tuple[str, Iterable[int]]] = [
        ("stop_token_ids", params.stop_token_ids),
        ("end_id", [] if params.end_id in (None, -1) else [params.end_id or 0]),
        ("allowed_token_ids", params.allowed_token_ids),
        ("top_p_reset_id", [max(params.top_p_reset_id, 0)]),
        *((f"stop_token_sequences[{at}]", ids) for at, ids in enumerate(params.stop_token_sequences)),
    ]
    for name, ids in given:
        for token_id in ids:
            if token_id >= vocab_size:
                raise BadRequest(f"{token_id} is outside the vocabulary [0, {vocab_size})", field=name)


def _biases(params: SamplingParams, vocab_size: int) -> dict[int, float]:
    """Value by token id, ascending."""
    found: dict[int, float] = {}
    for text, bias in params.logit_bias.items():
        if not (text.isascii() and text.isdecimal() and len(text) <= 10 and str(int(text)) == text):
            raise BadRequest(f"{text!r} is not a token id", field="logit_bias")
        if int(text) >= vocab_size:
            raise BadRequest(f"{text} is outside the vocabulary [0, {vocab_size})", field="logit_bias")
        found[int(text)] = bias
    return dict(sorted(found.items()))


def _bad_words(strings: list[str], encode: Encode) -> list[list[int]]:
    """Each string as it stands and after a space: a word has other tokens inside a text than at its beginning (spec 75)."""
    if sum(map(len, strings)) > MAX_BAD_CHARS:
        raise BadRequest(f"more than {MAX_BAD_CHARS} characters together", field="bad_words")
    words: list[list[int]] = []
    for at, text in enumerate(strings):
        bare = text.lstrip(" ") or text
        try:
            words += [encode(bare), encode(f" {bare}")] if bare else []
        except BadRequest as error:
            raise BadRequest(error.message, field=f"bad_words[{at}]") from error
    return words


def _token_words(words: list[list[int]], field: str) -> TokenWords:
    if sum(map(len, words)) > MAX_WORD_TOKENS:
        raise BadRequest(f"more than {MAX_WORD_TOKENS} tokens together", field=field)
    return TokenWords(words) if words else NO_WORDS
