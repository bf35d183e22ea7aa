"""The reasoning gate of a request: which markers and budget it means, and where the answer begins in a finished text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from shared.errors import BadRequest
from shared.gate import Gate, answer_at
from shared.guide import Guide
from shared.sampling_params import SamplingParams
from shared.tokenizer import Detokenizer, Vocabulary

USUAL_END = b"</think>"
FREE = Guide(kind="choice", text='[""]', after_guide="free")
"""What follows the gate where the request has no guide: anything."""


class Split(NamedTuple):
    """The answer begins behind ``tokens`` tokens and ``chars`` characters."""

    tokens: int
    chars: int


def gate_of(reasoning: Gate | None, params: SamplingParams, vocabulary: Vocabulary, end_ids: frozenset[int]) -> Gate | None:
    """The gate with its budget. A budget alone means the marker ``</think>``, where that is a token of the vocabulary. Raises
    BadRequest naming the field."""
    budget = params.thinking_token_budget
    if reasoning is None:
        if budget is None:
            return None
        if USUAL_END not in vocabulary.token_bytes:
            text = "the model's end marker is not known: give reasoning.end"
            raise BadRequest(text, field="thinking_token_budget")
        reasoning = Gate(end=USUAL_END.decode())
    if budget is not None and reasoning.budget not in (None, budget):
        raise BadRequest(f"{budget}, but reasoning.budget is {reasoning.budget}", field="thinking_token_budget")
    for name in ("start", "end"):
        marker = getattr(reasoning, name)
        if isinstance(marker, list):
            _check_ids(marker, vocabulary, end_ids, f"reasoning.{name}")
    return reasoning if budget is None else msgspec.structs.replace(reasoning, budget=budget)


def _check_ids(marker: list[int], vocabulary: Vocabulary, end_ids: frozenset[int], field: str) -> None:
    for at, token_id in enumerate(marker):
        if token_id >= vocabulary.size:
            raise BadRequest(f"{token_id} is outside the vocabulary [0, {vocabulary.size})", field=f"{field}[{at}]")
        if token_id in end_ids or token_id in vocabulary.stop_ids:
            raise BadRequest(f"{token_id} ends a text", field=f"{field}[{at}]")


def split(gate: Gate, token_ids: Sequence[int], vocabulary: Vocabulary, *, skip_special_tokens: bool) -> Split | None:
    """Where the answer begins; None while the gate is open."""
    at = answer_at(gate, token_ids, vocabulary.token_bytes)
    if at is None:
        return None
    return Split(at, len(Detokenizer(vocabulary, skip_special_tokens=skip_special_tokens).push(list(token_ids[:at]))))
