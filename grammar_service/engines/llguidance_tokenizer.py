"""The tokenizer that llguidance needs: the token table, and where the model's own definition came along, its exact tokenization.

A definition only decides which tokens are forced (canonical ones); the table that decides masks is always ``token_bytes``.
"""

from __future__ import annotations

from typing import Any

import msgspec
from llguidance import LLTokenizer, TokenizerWrapper

from grammar_service.engines.table import MARK
from shared.errors import BadRequest
from shared.tokenizer import Vocabulary, special_id_set


class TiktokenDefinition(msgspec.Struct, frozen=True):
    """``definition`` of kind tiktoken: JSON with the pre-tokenizer's pattern. The ranks are the table: rank = id of a token that is
    not special."""

    pattern: str


def make_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """Raises BadRequest where the definition cannot be read or is of another vocabulary."""
    makers = {"huggingface": _from_huggingface, "tiktoken": _from_tiktoken, "none": _from_table}
    maker = makers.get(vocabulary.definition_kind)
    if maker is None:
        raise BadRequest(f"unknown kind {vocabulary.definition_kind!r}; one of {', '.join(makers)}", field="definition_kind")
    try:
        tokenizer = maker(vocabulary)
    except (ValueError, TypeError, RuntimeError, msgspec.DecodeError) as error:
        raise BadRequest(f"the tokenizer cannot be built: {str(error)[:300]}", field="definition") from error
    _check_same_table(tokenizer, vocabulary)
    return tokenizer


def _from_huggingface(vocabulary: Vocabulary) -> LLTokenizer:
    return LLTokenizer(vocabulary.definition, n_vocab=vocabulary.size, eos_token=list(vocabulary.stop_ids))


def _from_tiktoken(vocabulary: Vocabulary) -> LLTokenizer:
    definition = msgspec.json.decode(vocabulary.definition, type=TiktokenDefinition)
    hidden = special_id_set(vocabulary)
    make: Any = getattr(LLTokenizer, "from_tiktoken")  # noqa: B009 - the stub file leaves it out
    tokenizer: LLTokenizer = make(
        encoder={text: i for i, text in enumerate(vocabulary.token_bytes) if text and i not in hidden},
        special_tokens={vocabulary.token_bytes[i].decode("utf-8", "replace"): i for i in hidden if vocabulary.token_bytes[i]},
        pattern=definition.pattern, eos_token=list(vocabulary.stop_ids), n_vocab=vocabulary.size,
    )  # fmt: skip
    return tokenizer


def _from_table(vocabulary: Vocabulary) -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Table(vocabulary)), n_vocab=vocabulary.size, eos_token=list(vocabulary.stop_ids))


class _Table:
    """What llguidance asks of a tokenizer without a definition: greedy, longest token first."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.token_bytes
        self.special_token_ids = sorted(special_id_set(vocabulary) | set(vocabulary.stop_ids))
        self.eos_token_id = vocabulary.stop_ids[0]
        self.bos_token_id = None
        special = set(self.special_token_ids)
        self._ids = {text: i for i, text in enumerate(self.tokens) if text and i not in special}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        data = text if isinstance(text, bytes) else text.encode()
        ids: list[int] = []
        position = 0
        while position < len(data):
            length = next((n for n in range(self._longest, 0, -1) if data[position : position + n] in self._ids), 0)
            if length == 0:
                raise ValueError("a byte has no token")
            ids.append(self._ids[data[position : position + length]])
            position += len(data[position : position + length])
        return ids


def _check_same_table(tokenizer: LLTokenizer, vocabulary: Vocabulary) -> None:
    if tokenizer.vocab_size != vocabulary.size:
        raise BadRequest(f"the definition has {tokenizer.vocab_size} tokens, the table {vocabulary.size}", field="definition")
    hidden = special_id_set(vocabulary) | set(vocabulary.stop_ids)
    decode: Any = tokenizer.decode_bytes
    for i, text in enumerate(vocabulary.token_bytes):
        if text and not text.startswith(MARK) and i not in hidden and decode([i]) != text:
            raise BadRequest(f"token {i} is {decode([i])!r} by the definition and {text!r} by the table", field="definition")
