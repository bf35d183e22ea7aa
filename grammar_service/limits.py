"""What is refused before any engine, and before any parser of ours, sees a byte of it. SECURITY.md lists the table.

Each field says its default and what it bounds. The scans are linear and iterative; they look at the text alone, so a nested repeat
inside a schema's ``pattern`` is for the planner, and what both miss is for the child process that tries the guide.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from shared.errors import GrammarTooLarge, MaskstreamError
from shared.guide import Guide


class GuideLimits(NamedTuple):
    """Bounds of one guide; each is a setting, ``guide_`` before its name, and costs what the setting says."""

    schema_bytes: int = 256 << 10
    regex_bytes: int = 8 << 10
    grammar_bytes: int = 64 << 10
    json_depth: int = 64
    json_nodes: int = 20_000
    # 500 would refuse tables of real products; 2,000 optional properties cost llguidance 0.8 s and 8 ms a row. Where xgrammar was
    # asked for by name, 300 cost seconds, and the child that tries the guide says so.
    members: int = 2_000
    entries: int = 5_000
    string_bytes: int = 64 << 10
    rules: int = 2_000
    nesting: int = 200
    # Not what is safe but what can be: .{1,100000} costs 3 ms, a{100000} seconds, and only the child that tries them can tell.
    # A product that llguidance cannot hold ends in its own fuel within 10 ms; xgrammar, which needs seconds from 8,000 on, gets no
    # regex.
    repeat: int = 100_000
    repeat_product: int = 1_000_000
    choices: int = 5_000
    choice_bytes: int = 256 << 10


DEFAULTS = GuideLimits()
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?')
_BRACKETS = re.compile(r"[\[{]|[\]}]|,")
_REGEX_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]?|\(|\)|\{(\d*),?(\d*)\}", re.DOTALL)
_GRAMMAR_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"?|\[(?:\\.|[^\]\\\n])*\]?|/(?:\\.|[^/\\\n])+/|#[^\n]*|(::=|\n\s*[\w.]+\s*:)|\(|\)')


def check(guide: Guide, limits: GuideLimits = DEFAULTS) -> None:
    """Raises GrammarTooLarge naming the limit."""
    most = {"regex": limits.regex_bytes, "ebnf": limits.grammar_bytes, "lark": limits.grammar_bytes}.get(
        guide.kind, limits.schema_bytes
    )
    size = len(guide.text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise too_large(f"{size} bytes of {guide.kind}, {most} allowed")
    if guide.kind == "regex":
        _check_regex(guide.text, limits)
    elif guide.kind in ("ebnf", "lark"):
        _check_grammar(guide.text, limits)
    elif guide.kind == "choice":
        _check_choice(guide.text, limits)
    elif guide.text:
        _check_json(guide.text, limits)


def too_large(message: str) -> MaskstreamError:
    return GrammarTooLarge(message, field="guide")


def _check_json(text: str, limits: GuideLimits) -> None:
    longest = max((len(literal) for literal in _STRING.findall(text)), default=0)
    if longest > limits.string_bytes:
        raise too_large(f"a string of {longest} characters, {limits.string_bytes} allowed")
    nodes = 0
    open_lists: list[list[int]] = [[limits.json_nodes, 1]]  # of each open bracket: what it may hold, and what it holds so far
    for mark in _BRACKETS.findall(_STRING.sub('""', text)):
        nodes += mark not in "]}"
        if nodes > limits.json_nodes:
            raise too_large(f"more than {limits.json_nodes} values of JSON")
        if mark in "[{":
            open_lists.append([limits.entries if mark == "[" else limits.members, 1])
            if len(open_lists) > limits.json_depth + 1:
                raise too_large(f"more than {limits.json_depth} levels of JSON")
        elif mark == ",":
            open_lists[-1][1] += 1
            if open_lists[-1][1] > open_lists[-1][0]:
                raise too_large(f"more than {open_lists[-1][0]} entries of one object or list")
        elif len(open_lists) > 1:
            open_lists.pop()


def _check_choice(text: str, limits: GuideLimits) -> None:
    _check_json(text, limits)
    try:
        number = len(json.loads(text))
    except (ValueError, TypeError):
        return  # not a list: the planner says so
    if number > limits.choices:
        raise too_large(f"{number} choices, {limits.choices} allowed")
    if len(text.encode("utf-8", "surrogatepass")) > limits.choice_bytes:
        raise too_large(f"more than {limits.choice_bytes} bytes of choices")


def _check_regex(text: str, limits: GuideLimits) -> None:
    """Depth of groups, and the product of repetitions inside one another: each group carries that of its parts."""
    inside: list[int] = [1]
    closed = 1  # the largest product inside the group that just closed
    for match in _REGEX_TOKEN.finditer(text):
        mark = match.group()
        if mark == "(":
            inside.append(1)
            if len(inside) > limits.nesting:
                raise too_large(f"more than {limits.nesting} groups inside one another")
        elif mark == ")" and len(inside) > 1:
            closed = inside.pop()
            inside[-1] = max(inside[-1], closed)
            continue
        elif mark.startswith("{"):
            inside[-1] = max(inside[-1], closed * _bound(match, limits))
            if inside[-1] > limits.repeat_product:
                raise too_large(f"repetitions inside one another multiply to more than {limits.repeat_product}")
        closed = 1


def _bound(match: re.Match[str], limits: GuideLimits) -> int:
    digits = max((match.group(1) or "", match.group(2) or ""), key=lambda text: (len(text), text))
    if len(digits) > 12 or int(digits or 1) > limits.repeat:
        raise too_large(f"a repetition of {digits[:12]}, {limits.repeat} allowed")
    return max(1, int(digits or 1))


def _check_grammar(text: str, limits: GuideLimits) -> None:
    depth = rules = 0
    for match in _GRAMMAR_TOKEN.finditer("\n" + text):
        mark = match.group()
        depth += (mark == "(") - (mark == ")")
        rules += match.group(1) is not None
        if depth > limits.nesting:
            raise too_large(f"more than {limits.nesting} brackets inside one another")
        if rules > limits.rules:
            raise too_large(f"more than {limits.rules} rules")


SAFE_CHOICES_BYTES = 4 << 10


def is_trivially_safe(guide: Guide) -> bool:
    """True for a guide that needs no child: it is fixed (json, json_object), or a list of literals of at most 4 KiB.

    Measured at 151,936 tokens: json and json_object 4 ms, 4 KiB of choices 8 ms, planning and 16 rows included. The time and memory
    of a list of literals are linear in its bytes; a single repetition or recursion in a guide sends it to the child.
    """
    return guide.kind in ("json", "json_object") or (guide.kind == "choice" and len(guide.text) <= SAFE_CHOICES_BYTES)
