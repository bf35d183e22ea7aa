"""Prompts to token ids: plain text, or messages through the model's chat template."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.errors import BadRequest, ConfigError
from shared.tokenizer import Vocabulary

Messages = Sequence[Mapping[str, str]]
"""Maps with ``role`` and ``content``."""
Tools = Sequence[Mapping[str, Any]]
"""``{"type": "function", "function": {"name", "description", "parameters"}}``, as chat templates take them."""
_STAND_IN = "\ue000"  # from the private use area


class Chat(ABC):
    """Turns what a client sent into token ids. Text of a client never becomes a special token."""

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain prompt; with ``add_special_tokens`` the token that begins a text goes first, where there is one."""

    @abstractmethod
    def encode_messages(self, messages: Messages, tools: Tools = ()) -> list[int]:
        """Token ids of a conversation up to where the answer begins. Raises BadRequest where the template refuses it."""

    @property
    def shows_tools(self) -> bool:
        """Whether the template tells the model which tools there are."""
        return True


class TemplateChat(Chat):
    """The tokenizer and the chat template of a model folder."""

    def __init__(self, model_dir: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model_dir, local_files_only=True, use_fast=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{model_dir}: the tokenizer cannot be read: {error}", field="model") from error
        self._specials = [token.content for token in self._tokenizer.added_tokens_decoder.values() if token.special]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._tokenizer(text, split_special_tokens=True, add_special_tokens=add_special_tokens)["input_ids"]
        return ids

    @property
    def shows_tools(self) -> bool:
        return "tools" in str(self._tokenizer.chat_template)

    def encode_messages(self, messages: Messages, tools: Tools = ()) -> list[int]:
        contents = [message["content"] for message in messages]
        if tools and any(special in text for special in self._specials for text in _texts(tools)):
            raise BadRequest("a text of the tools names a special token", field="tools")
        if any(special in message["role"] for special in self._specials for message in messages):
            raise BadRequest("a role names a special token", field="messages")
        if not any(special in content for content in contents for special in self._specials):
            return self._pieces(self._render(messages, tools), {})
        # A client's "<|im_end|>" is text: the template is rendered around stand-ins, whose text is encoded without specials.
        stand_ins = {f"{_STAND_IN}{i};": content for i, content in enumerate(contents)}
        covered = [{**message, "content": key} for message, key in zip(messages, stand_ins, strict=True)]
        return self._pieces(self._render(covered, tools), stand_ins)

    def _render(self, messages: Messages, tools: Tools) -> str:
        if self._tokenizer.chat_template is None:
            raise BadRequest("the model has no chat template; send a prompt", field="messages")
        from jinja2.exceptions import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tools=[dict(tool) for tool in tools] or None, tokenize=False,
                add_generation_prompt=True,
            )  # fmt: skip
        except TemplateError as error:
            raise BadRequest(f"the chat template refuses the messages: {error}", field="messages") from error
        return text

    def _pieces(self, text: str, stand_ins: dict[str, str]) -> list[int]:
        ids: list[int] = []
        for key, content in stand_ins.items():
            before, found, text = text.partition(key)
            if not found or _STAND_IN in before or key in text:
                raise BadRequest("the chat template changes a message that names special tokens", field="messages")
            ids += self._tokenizer(before, add_special_tokens=False)["input_ids"]
            ids += self._tokenizer(content, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        rest: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids + rest


def _texts(value: Any) -> Iterator[str]:
    """Every string inside, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (str(key), *_texts(inner))
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)


class TableChat(Chat):
    """For models without a tokenizer: the longest token first, tools as lines of JSON, messages as lines of ``role: content``."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        hidden = {*vocabulary.special_ids, *vocabulary.stop_ids}
        self._ids = {text: i for i, text in enumerate(vocabulary.token_bytes) if text and i not in hidden}
        self._longest = max(map(len, self._ids), default=1)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        data, ids, position = text.encode(), [], 0
        while position < len(data):
            lengths = range(min(self._longest, len(data) - position), 0, -1)
            length = next((n for n in lengths if data[position : position + n] in self._ids), 0)
            if length == 0:
                raise BadRequest(f"no token holds the byte {data[position]:#04x}", field="prompt")
            ids.append(self._ids[data[position : position + length]])
            position += length
        return ids

    def encode_messages(self, messages: Messages, tools: Tools = ()) -> list[int]:
        lines = [f"tool: {json.dumps(tool)}\n" for tool in tools]
        lines += [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join(lines) + "assistant: ")
