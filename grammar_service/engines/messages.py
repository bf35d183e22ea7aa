"""What an engine says of a grammar, as an error in our words: the class that a caller can act on, and where the grammar is wrong.

The engine's own text, which may hold the guide, goes into the log at level debug (and along with the error as a note, from a
process that tries guides to the one that logs).
"""

from __future__ import annotations

import re

from shared import log
from shared.errors import BadRequest, GrammarTooLarge, MaskstreamError, StepError, StepTimeout, Unsatisfiable, UnsupportedSchema

MAX_NOTE_CHARS = 1_000
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
# What is plainly the grammar's fault, by the engine's words; the group is a name of the grammar's own.
_FAULTS: tuple[tuple[str, str], ...] = (
    (r'unknown special token: "([^"]{1,64})"', "the vocabulary has no special token {}"),
    (r'unknown name: "(\w{1,64})"', "{} is not defined"),
    (r'duplicate rule: "(\w{1,64})"', "{} is defined twice"),
    (r'circular reference in token "(\w{1,64})"', "the terminal {} refers to itself"),
    (r"unknown grammar (@[\w.-]{1,64})", "there is no grammar {}"),
    (r"Token id (-?\d+) in the grammar is out", "token {} is outside the vocabulary"),
    (r"(no start rule)", "there is no rule start"),
    (r"(range end must be >= start|min must be <= max)", "a repetition ends before it begins"),
    (r"(invalid regex|Regex parsing error)", "a regex cannot be read"),
    (r"(failed to compile JSON schema)", "a JSON schema inside cannot be read"),
)
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\)")
_LINE = re.compile(r"^\[?[0-9:]*\]?\s*/?\S*\.(?:cc|h):\d+:\s*")


def refusal(text: str, field: str = "guide") -> MaskstreamError:
    """The error for a grammar that an engine refused with ``text``."""
    first = " ".join(_LINE.sub("", text.strip().partition("<backtrace>")[0]).split())
    error = _classified(first, field)
    note(error, first)
    return error


def _classified(text: str, field: str) -> MaskstreamError:
    lowered, place = text.lower(), _place(text)
    if any(word in lowered for word in _UNSATISFIABLE):
        return Unsatisfiable(f"no text fits the grammar{place}")
    if any(word in lowered for word in _UNSUPPORTED):
        return UnsupportedSchema(f"the engine does not enforce a construct of the grammar{place}")
    for pattern, ours in _FAULTS:
        if (found := re.search(pattern, text)) is not None:
            return BadRequest(ours.format(found.group(1)) + place, field=field)
    if any(word in lowered for word in _TOO_LARGE):
        return GrammarTooLarge("the grammar goes beyond the engine's own limits")
    return BadRequest(f"the engine cannot read the grammar{place}", field=field)


def _place(text: str) -> str:
    found = _PLACE.match(text)
    return f" (line {found.group(1)}, column {found.group(2)})" if found else ""


def note(error: MaskstreamError, text: str) -> None:
    """Keeps the engine's words with the error, and in the log."""
    error.add_note(text[:MAX_NOTE_CHARS])
    log.get("engines").debug("an engine refused", code=error.code, text=text[:MAX_NOTE_CHARS])


def broken(engine: str, text: str, *, too_slow: bool = False) -> StepError:
    """The error of a matcher that broke in use. Its cause is the error that the same words mean of a grammar."""
    cause = refusal(text or "the matcher is in an error state")
    what = "one of its own limits was reached" if too_slow else cause.message
    error = (StepTimeout if too_slow else StepError)(f"{engine} broke: {what}")
    error.__cause__ = cause
    return error


def cause_of(error: StepError) -> MaskstreamError:
    """What a matcher that broke within a few tokens says of its grammar."""
    cause = error.__cause__
    return cause if isinstance(cause, MaskstreamError) else refusal(error.message)
