"""A named set of texts: a ``pattern``, a ``format``, one text, or a length. Its language is made on demand and kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from grammar_service.keyed import keyed
from grammar_service.regex_resolve import search_language
from grammar_service.regex_tree import ANY, Tree, literal, rep
from grammar_service.schema.formats import format_language
from grammar_service.schema.text_classes import coarse_language

Kind = Literal["search", "format", "text", "length", "class"]


@keyed
@dataclass(frozen=True)
class Pattern:
    """``text`` is the regex, the format's name, the text itself, ``low,high`` of a length
    (high may be empty), or the number of a coarse class."""

    kind: Kind
    text: str

    @property
    def narrow(self) -> Tree:
        """The smallest reading: used where a text must match."""
        return _language(self.kind, self.text, False)

    @property
    def wide(self) -> Tree:
        """The largest reading: used where a text must not match."""
        return _language(self.kind, self.text, True)


def length_pattern(low: int, high: int | None) -> Pattern:
    return Pattern("length", f"{low},{'' if high is None else high}")


@lru_cache(maxsize=16384)
def _language(kind: Kind, text: str, wide: bool) -> Tree:
    if kind == "search":
        return search_language(text, wide=wide)
    if kind == "format":
        return format_language(text)
    if kind == "text":
        return literal(text)
    if kind == "class":
        return coarse_language(int(text))
    low, high = text.split(",")
    return rep(ANY, int(low), int(high) if high else None)
