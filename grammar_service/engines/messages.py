"""Turns an engine's refusal text into the error class that a caller can act on."""

from __future__ import annotations

import re

from shared.errors import BadRequest, GrammarTooLarge, MaskstreamError, Unsatisfiable, UnsupportedSchema

MAX_CHARS = 400
_LOCATION = re.compile(r"^\[?[0-9:]*\]?\s*/?\S*\.(cc|h):\d+:\s*")
_UNSATISFIABLE = (
    "unsatisfiable",
    "noextensionbias",
    "cannot accept any value",
    "minimum greater than maximum",
    "enum array must not be empty",
)
_TOO_LARGE = (
    "too many",
    "limit",
    "fuel",
    "too large",
    "nest layer exceeded",
    "recursion",
    "lexer precomputation failed",
    "too complex",
    "grammar.symbols.len()",  # an assertion: more than 65,525 symbols
)
_UNSUPPORTED = ("unimplemented", "not supported", "unsupported", "not disjoint", "unknown format", "look-around", "lookarounds")


def refusal(text: str, field: str = "guide") -> MaskstreamError:
    """The error for a grammar that an engine refused with ``text``."""
    first = " ".join(_LOCATION.sub("", text.strip().partition("<backtrace>")[0]).split())[:MAX_CHARS]
    lowered = first.lower()
    if any(word in lowered for word in _UNSATISFIABLE):
        return Unsatisfiable(first)
    if any(word in lowered for word in _UNSUPPORTED):
        return UnsupportedSchema(first)
    if any(word in lowered for word in _TOO_LARGE):
        return GrammarTooLarge(first)
    return BadRequest(first, field=field)
