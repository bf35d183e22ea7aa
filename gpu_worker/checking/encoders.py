"""Tokenizers of the check: a vocabulary and the tokenizer's own encoding, from a file or folder that a user names."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gpu_worker.models.prepare import default_folder, is_prepared
from gpu_worker.models.vocabulary import load_vocabulary, vocabulary_of_tiktoken, vocabulary_of_tokenizer
from shared.errors import ConfigError
from shared.tokenizer import Vocabulary


class Encoder(NamedTuple):
    """``encode`` gives the ids of a text, without special tokens around it; ``name`` is for the report."""

    name: str
    vocabulary: Vocabulary
    encode: Callable[[str], list[int]]


def load_encoder(named: str = "") -> Encoder:
    """The encoder of a folder, a ``tokenizer.json`` or a ``.tiktoken`` file; unnamed: the demo model's, Qwen's ranks where a
    package ships them, or bytes (which ``bytes`` names). Raises ConfigError."""
    if named == "bytes":
        return byte_encoder()
    if named:
        return _of_path(Path(named))
    if is_prepared(default_folder()):
        return _of_path(default_folder())
    ranks = _shipped_ranks()
    return _of_tiktoken(ranks) if ranks else byte_encoder()


def byte_encoder() -> Encoder:
    """One token a byte, and a stop token."""
    table = [*(bytes([i]) for i in range(256)), b"<|end|>"]
    vocabulary = Vocabulary(token_bytes=table, special_ids=[256], stop_ids=[256])
    return Encoder("bytes", vocabulary, lambda text: list(text.encode()))


def _of_path(path: Path) -> Encoder:
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.suffix == ".tiktoken":
        return _of_tiktoken(file)
    if not file.is_file():
        raise ConfigError(f"{file} is not there", field="tokenizer")
    is_model = (file.parent / "config.json").is_file()
    return _of_huggingface(file, load_vocabulary(file.parent) if is_model else vocabulary_of_tokenizer(file))


def _of_huggingface(file: Path, vocabulary: Vocabulary) -> Encoder:
    tokenizers = _import("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    return Encoder(str(file), vocabulary, lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids))


def _of_tiktoken(file: Path) -> Encoder:
    tiktoken = _import("tiktoken")
    vocabulary = vocabulary_of_tiktoken(file)
    special = set(vocabulary.special_ids)
    ranks = {text: i for i, text in enumerate(vocabulary.token_bytes) if text and i not in special}
    pattern = json.loads(vocabulary.definition)["pattern"]
    encoding = tiktoken.Encoding(file.stem, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return Encoder(str(file), vocabulary, encoding.encode_ordinary)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"this tokenizer file is read with the package {name}, which is not installed", field="tokenizer"
        ) from error


def _shipped_ranks() -> Path | None:
    spec = importlib.util.find_spec("dashscope")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [Path(folder) / "resources" / "qwen.tiktoken" for folder in folders]
    return next((file for file in files if file.is_file() and importlib.util.find_spec("tiktoken")), None)
