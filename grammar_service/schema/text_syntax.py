"""Sets of strings as regex trees over their JSON spelling, quotes included."""

from __future__ import annotations

import json
from typing import Any

from grammar_service.regex_print import UNIT, json_quoted
from grammar_service.regex_resolve import whole_language
from grammar_service.regex_tree import Tree, alt, both, cat, literal, negate, rep
from grammar_service.schema.keys import Keys
from grammar_service.schema.texts import Texts, language

QUOTE = literal('"')
# Any \uXXXX but a lone surrogate; a pair is one character. Only where no pattern looks at the text.
_ESCAPED = whole_language(
    r"\\(?:/|u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|"
    r"[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
FREE_UNIT: Tree = alt(UNIT, _ESCAPED)
STRING: Tree = cat(QUOTE, rep(FREE_UNIT, 0, None), QUOTE)


def text_tree(case: Texts) -> Tree:
    """The length is counted on the spelling, where a unit is one character, so that it needs no second intersection."""
    if not case.require and not case.forbid:
        return cat(QUOTE, rep(FREE_UNIT, case.low, case.high), QUOTE)
    spelled = json_quoted(language(case.require, case.forbid))
    if case.low == 0 and case.high is None:
        return spelled
    return both(spelled, cat(QUOTE, rep(UNIT, case.low, case.high), QUOTE))


def key_tree(names: Tree, taken: list[str]) -> Tree:
    """Property names of a language, the taken ones left out."""
    spelled = json_quoted(names)
    return both(spelled, negate(alt(*(json_quoted(literal(name)) for name in taken)))) if taken else spelled


def scalar_tree(value: Any) -> Tree:
    """The JSON text of a scalar; a whole number written with a fraction also without it."""
    written = literal(json.dumps(value, ensure_ascii=False))
    if isinstance(value, float) and value.is_integer():
        return alt(literal(str(int(value))), written)
    return written


def free_keys(keys: Keys, taken: frozenset[str]) -> Tree:
    """The names of a rule, in the wide reading, as far as they are not declared anyway."""
    if keys.only is not None:
        return alt(*(literal(name) for name in sorted(keys.only - taken)))
    return Keys(keys.require, keys.forbid, keys.without - taken).language(True)
