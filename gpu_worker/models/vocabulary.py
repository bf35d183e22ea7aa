"""The vocabulary table of a model folder or of a tokenizer file, read without the tokenizer libraries."""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import json
import string
from pathlib import Path
from typing import Any

from gpu_worker.models.token_bytes import bytes_reader
from shared.errors import ConfigError
from shared.tokenizer import Vocabulary

_QWEN_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN_SPECIALS = (b"<|endoftext|>", b"<|im_start|>", b"<|im_end|>")


def load_vocabulary(model_dir: Path) -> Vocabulary:
    """The table of a model folder, as wide as the model's logits. Raises ConfigError naming the file and what is wrong."""
    config = read_json(model_dir / "config.json")
    width = (config.get("text_config") or config).get("vocab_size")
    if not isinstance(width, int) or width < 1:
        raise ConfigError(f"{model_dir / 'config.json'}: vocab_size has value {width!r}", field="model")
    return vocabulary_of_tokenizer(model_dir / "tokenizer.json", width)


def vocabulary_of_tokenizer(file: Path, width: int = 0) -> Vocabulary:
    """The table of a ``tokenizer.json``, padded to ``width`` ids (0: no padding); stop ids come from the files beside it."""
    definition = _read_text(file)
    tokenizer = _parse(definition, file)
    table, special = _table(tokenizer, file)
    size = max(table, default=-1) + 1
    if width and size > width:
        raise ConfigError(f"{file}: {size} tokens, but the logits are {width} wide", field="model")
    added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or []}
    stop_ids = _stop_ids(file.parent, tokenizer["model"]["vocab"] | added)
    if not stop_ids or max(stop_ids) >= (width or size):
        raise ConfigError(f"{file.parent}: no stop token, or one out of range: {sorted(stop_ids)}", field="model")
    return Vocabulary(
        token_bytes=[table.get(i, b"") for i in range(width or size)], special_ids=special,
        stop_ids=sorted(stop_ids), definition_kind="huggingface", definition=definition,
    )  # fmt: skip


def _table(tokenizer: dict[str, Any], file: Path) -> tuple[dict[int, bytes], list[int]]:
    """Bytes by id, and the special ids."""
    vocab = tokenizer.get("model", {}).get("vocab")
    if not isinstance(vocab, dict):
        raise ConfigError(f"{file}: model.vocab must map tokens to ids (BPE)", field="model")
    to_bytes = bytes_reader(tokenizer, file)
    table = {i: to_bytes(token) for token, i in vocab.items()}
    added = tokenizer.get("added_tokens") or []
    table.update({token["id"]: token["content"].encode() for token in added})
    return table, sorted(token["id"] for token in added if token.get("special"))


def _stop_ids(folder: Path, ids: dict[str, int]) -> set[int]:
    """Every end of text that any file of the folder names."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        value = read_json(folder / name).get("eos_token_id") if (folder / name).is_file() else None
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = read_json(folder / name).get("eos_token") if (folder / name).is_file() else None
        text = token.get("content") if isinstance(token, dict) else token
        found.update([ids[text]] if text in ids else [])
    return found


def vocabulary_of_tiktoken(file: Path, width: int = 0) -> Vocabulary:
    """The table of a ``.tiktoken`` rank file read as Qwen's: its pattern, three of its special tokens after the ranks."""
    try:
        ranks = [base64.b64decode(line.split()[0], validate=True) for line in file.read_bytes().splitlines() if line]
    except (OSError, binascii.Error) as error:
        raise ConfigError(f"{file}: {error}", field="model") from error
    table, first = [*ranks, *_QWEN_SPECIALS], len(ranks)
    if width and len(table) > width:
        raise ConfigError(f"{file}: {len(table)} tokens, but the logits are {width} wide", field="model")
    return Vocabulary(
        token_bytes=table + [b""] * (width - len(table)), special_ids=list(range(first, len(table))),
        stop_ids=[first, len(table) - 1], definition_kind="tiktoken",
        definition=json.dumps({"pattern": _QWEN_PATTERN}),
    )  # fmt: skip


@functools.cache
def invented_vocabulary(size: int) -> Vocabulary:
    """All 256 bytes, one stop token, then words of two letters and more, to exactly ``size`` ids (at least 257)."""
    if size < 257:
        raise ConfigError(f"a vocabulary of {size} tokens does not hold all bytes and a stop token", field="model")
    words = ("".join(word).encode() for n in itertools.count(2) for word in itertools.product(string.ascii_lowercase, repeat=n))
    table = [*(bytes([i]) for i in range(256)), b"<|end|>", *itertools.islice(words, size - 257)]
    return Vocabulary(token_bytes=table, special_ids=[256], stop_ids=[256])


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises ConfigError naming the file."""
    return _parse(_read_text(file), file)


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", field="model") from error


def _parse(text: str, file: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file} is not JSON: {error}", field="model") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file} holds {type(value).__name__}, not an object", field="model")
    return value
