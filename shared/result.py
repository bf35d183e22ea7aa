"""A finished request as a client sees it."""

from __future__ import annotations

import msgspec

from shared.protocol import Choice, Done, TokenLogprob, Usage
from shared.tools import ToolCall


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request. ``text``, ``valid`` and so on are those of the first choice."""

    request_id: str
    choices: list[Choice]
    usage: Usage
    guide_kind: str
    engine: str
    warnings: list[str]
    services: list[str]
    prompt_logprobs: list[TokenLogprob] | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def tool_calls(self) -> list[ToolCall]:
        return self.choices[0].tool_calls or []

    @property
    def answer(self) -> str:
        """The text behind the reasoning; all of it without a reasoning gate, empty where the gate never closed."""
        return self.text[self.choices[0].answer_start or 0 :]

    @property
    def reasoning(self) -> str:
        """The free part with its markers, as the text shows it; empty without a reasoning gate."""
        return self.text[: self.choices[0].answer_start or 0]

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        return self.choices[0].stop_reason

    @property
    def valid(self) -> bool | None:
        return self.choices[0].valid

    @classmethod
    def of(cls, done: Done) -> Result:
        return cls(**{name: getattr(done, name) for name in cls.__struct_fields__})
