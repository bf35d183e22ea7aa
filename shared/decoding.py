"""What msgspec says about a value that does not fit, as a BadRequest that names the field."""

from __future__ import annotations

import re

from shared.errors import BadRequest

_NAMED = re.compile(r"(?:unknown|required) field `([^`]+)`")
_PATH = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*)`$")


def refusal(error: Exception, *, field: str = "") -> BadRequest:
    """``field`` stands where the message names none: the value as a whole is wrong."""
    message = str(error)
    found = field_of(message)
    return BadRequest(_PATH.sub("", message), field=found or field)


def field_of(message: str) -> str:
    """The path of what is wrong (``messages[0].role``): an unknown or missing field, or a bad value; empty if none is named."""
    path, named = _PATH.search(message), _NAMED.search(message)
    return ".".join(part for part in (path.group(1) if path else "", named.group(1) if named else "") if part)
