"""Real vocabularies for tests, from files that packages of the environment ship; nothing of those packages is imported."""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
from pathlib import Path

from shared.tokenizer import Vocabulary

QWEN_WIDTH = 151_936
QWEN_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@functools.cache
def qwen() -> Vocabulary:
    """The 151,643 ranks of Qwen's tokenizer and its first specials, at the model's padded width."""
    spec = importlib.util.find_spec("dashscope")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package with qwen.tiktoken is not installed")
    lines = (Path(spec.submodule_search_locations[0]) / "resources" / "qwen.tiktoken").read_bytes().splitlines()
    table = [base64.b64decode(line.split()[0]) for line in lines]
    specials = [b"<|endoftext|>", b"<|im_start|>", b"<|im_end|>"]
    first = len(table)
    table += specials
    return Vocabulary(
        token_bytes=table + [b""] * (QWEN_WIDTH - len(table)), special_ids=list(range(first, first + len(specials))),
        stop_ids=[first, first + 2], definition_kind="tiktoken", definition=json.dumps({"pattern": QWEN_PATTERN}),
    )  # fmt: skip


@functools.cache
def tiny() -> Vocabulary:
    """256 single bytes, a few longer tokens, two stop ids and two empty ids: 264 tokens, for tests that look at every bit."""
    longer = [b"ab", b"))", b"true", b'{"']
    table = [bytes([i]) for i in range(256)] + longer + [b"<eos>", b"<end>", b"", b""]
    return Vocabulary(token_bytes=table, special_ids=[260, 261], stop_ids=[260, 261])


def encode_greedy(vocabulary: Vocabulary, text: bytes) -> list[int]:
    """Token ids of ``text``, longest token first; any tokenization is legal for a grammar."""
    ids = _ids_by_bytes(vocabulary.definition_kind, vocabulary.size)
    out: list[int] = []
    while text:
        length = next(n for n in range(min(32, len(text)), 0, -1) if text[:n] in ids)
        out.append(ids[text[:length]])
        text = text[length:]
    return out


@functools.cache
def _ids_by_bytes(kind: str, size: int) -> dict[bytes, int]:
    vocabulary = qwen() if (kind, size) == ("tiktoken", QWEN_WIDTH) else tiny()
    special = set(vocabulary.special_ids)
    return {text: i for i, text in enumerate(vocabulary.token_bytes) if text and i not in special}
