"""Lark guides before the engine reads them: names that are defined once and for all, and a `start` that can be finished.

Nothing is refused that is not certainly wrong: what this reader does not know (conditions, nested grammars, attributes) counts as
something that can be written, and a text that it cannot read is left to the engine, which says where.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.errors import BadRequest, Unsatisfiable

_ARGUMENT = r"[\w\[\]:.]+(?:\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\))?"
_TOKEN = re.compile(
    rf"""(?P<skip>[ \t\r]+|//[^\n]*|\#[^\n]*)|(?P<line>\n)
    |(?P<text>"(?:\\.|[^"\\\n])*"i?(?:\s*\.\.\s*"(?:\\.|[^"\\\n])*")?|/(?!/)(?:\\.|[^/\\\n])+/[imslux]*|<[^<>\s]+>|@[\w.-]+)
    |(?P<condition>%if\s+{_ARGUMENT})|(?P<argument>::\s*{_ARGUMENT})
    |(?P<nested>%(?:json|lark|regex|grammar|llguidance)\b)|(?P<directive>%\w+)
    |(?P<repeat>[?*+]|\{{\s*\d*\s*(?:,\s*\d*\s*)?\}}|~\s*\d+(?:\.\.\d+)?(?=[\s)|]|$))
    |(?P<attributes>(?<=\w)\[(?:"[^"\n]*"|[^\]\n"])*\])
    |(?P<alias>->\s*\w+)|(?P<priority>\.-?\d+)|(?P<name>[!?]?[A-Za-z_]\w*)|(?P<mark>[()|:&~\[\]])""",
    re.VERBOSE,
)


class Token(NamedTuple):
    kind: str
    text: str
    line: int


@dataclass
class Definition:
    """A rule or terminal: the tokens of its body, and where it stands."""

    name: str
    line: int
    body: list[Token] = field(default_factory=list)


class Unreadable(Exception):
    """This reader cannot follow; the engine may."""


def check_lark(text: str) -> None:
    """Raises BadRequest for a missing start, a name defined twice or not at all, a terminal that refers to itself; Unsatisfiable
    where `start` has no finite text."""
    try:
        definitions, imported = _definitions(list(_tokens(text)))
        if "start" not in definitions:
            raise BadRequest("there is no rule `start`", field="lark")
        for definition in definitions.values():
            _check_names(definition, definitions, imported)
        bodies = {name: _Reader(definition.body).alternatives() for name, definition in definitions.items()}
    except Unreadable:
        return
    _check_terminals(definitions)
    if "start" not in _productive(bodies):
        raise Unsatisfiable(
            "the rule `start` has no finite text: every way to write it writes it again", field="lark", keyword="start"
        )


def _tokens(text: str) -> Iterator[Token]:
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise Unreadable
        kind, piece = found.lastgroup or "", found.group()
        at = found.end()
        if kind == "nested":
            at = _after_braces(text, at)
        if kind != "skip":
            yield Token(kind, piece, line)
        line += text.count("\n", found.start(), at)


def _after_braces(text: str, at: int) -> int:
    """Behind the braces that open next; strings and regexes inside may hold braces."""
    inside = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?!/)(?:\\.|[^/\\\n])+/|[{}]|[^"/{}]+|.', re.DOTALL)
    depth = 0
    for found in inside.finditer(text, at):
        depth += {"{": 1, "}": -1}.get(found.group(), 0)
        if depth == 0 and not found.group().isspace():
            return found.end()
    raise Unreadable


def _definitions(tokens: list[Token]) -> tuple[dict[str, Definition], set[str]]:
    """What is defined, in order, and the names that directives bring in. A definition begins a line: a name, then a colon."""
    definitions: dict[str, Definition] = {}
    imported: set[str] = set()
    current: Definition | None = None
    body_from, in_directive = 0, False
    for at, token in enumerate(tokens):
        begins_line = at == 0 or tokens[at - 1].kind == "line"
        if begins_line and (length := _head(tokens, at)):
            current, body_from, in_directive = Definition(token.text.lstrip("!?"), token.line), at + length, False
            if current.name in definitions:
                raise BadRequest(f"{current.name!r} is defined twice (line {token.line})", field="lark")
            definitions[current.name] = current
        elif begins_line and (token.kind == "directive" or token.text == "%llguidance"):
            current, in_directive = None, True
        elif in_directive and token.kind == "name":
            imported.add(token.text)
        elif current is not None and at >= body_from and token.kind != "line":
            current.body.append(token)
    return definitions, imported


def _head(tokens: list[Token], at: int) -> int:
    """How many tokens the head of a definition has here, colon included; 0 where none begins."""
    if tokens[at].kind != "name":
        return 0
    for end in range(at + 1, min(at + 5, len(tokens))):
        if tokens[end].text == ":":
            return end - at + 1
        if tokens[end].kind not in ("argument", "priority", "attributes"):
            return 0
    return 0


def _check_names(definition: Definition, definitions: dict[str, Definition], imported: set[str]) -> None:
    for token in definition.body:
        if token.kind == "name" and token.text not in definitions and token.text not in imported:
            message = f"{token.text!r}, used in {definition.name!r}, is not defined (line {token.line})"
            raise BadRequest(message, field="lark", keyword=token.text[:64])


def _check_terminals(definitions: dict[str, Definition]) -> None:
    """A terminal is one lexeme: it cannot hold itself."""
    state: dict[str, bool] = {}  # True while it is open
    stack = [(name, False) for name in definitions if name.isupper()]
    while stack:
        name, done = stack.pop()
        if done:
            state[name] = False
        elif state.get(name):
            raise BadRequest(f"the terminal {name!r} refers to itself (line {definitions[name].line})", field="lark", keyword=name)
        elif name not in state:
            state[name] = True
            stack.append((name, True))
            stack += [(t.text, False) for t in definitions[name].body if t.kind == "name" and t.text in definitions]


Node = tuple[str, tuple["Node", ...] | str]
LEAF: Node = ("leaf", "")


class _Reader:
    """Alternatives, sequences, groups and repetitions of one body."""

    def __init__(self, body: list[Token]) -> None:
        self._body, self._at = body, 0

    def alternatives(self) -> Node:
        found = self._either()
        if self._at < len(self._body):
            raise Unreadable
        return found

    def _either(self) -> Node:
        options = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            options.append(self._sequence())
        return ("any", tuple(options))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while (text := self._next()) not in ("", "|", ")", "]"):
            token = self._body[self._at]
            self._at += 1
            if text in ("(", "["):
                items.append(self._group("]" if text == "[" else ")"))
            elif text in ("&", "~"):
                raise Unreadable  # a language within languages: only the engine can tell
            elif token.kind == "repeat":
                items[-1:] = [LEAF] if _may_be_left_out(text) else items[-1:]
            elif token.kind in ("name", "text", "nested"):
                items.append(("name", text) if token.kind == "name" else LEAF)
            elif token.kind not in ("condition", "argument", "alias", "priority", "attributes"):
                raise Unreadable
        return ("all", tuple(items))

    def _group(self, closing: str) -> Node:
        inner = self._either()
        if self._next() != closing:
            raise Unreadable
        self._at += 1
        return LEAF if closing == "]" else inner  # in brackets: it may be left out

    def _next(self) -> str:
        return self._body[self._at].text if self._at < len(self._body) else ""


def _may_be_left_out(mark: str) -> bool:
    return mark in ("?", "*") or bool(re.match(r"[{~]\s*(?:0\b|,)", mark))


def _productive(bodies: dict[str, Node]) -> set[str]:
    """Names with a finite text; the least fixpoint, each body looked at again when a name in it was found."""
    users: dict[str, list[str]] = {}
    for name, body in bodies.items():
        for used in _names(body):
            users.setdefault(used, []).append(name)
    found: set[str] = set()
    queue = list(bodies)
    while queue:
        name = queue.pop()
        if name not in found and _can_end(bodies[name], found, bodies):
            found.add(name)
            queue += users.get(name, ())
    return found


def _names(node: Node) -> Iterator[str]:
    kind, inner = node
    if isinstance(inner, str):
        if kind == "name":
            yield inner
    else:
        for part in inner:
            yield from _names(part)


def _can_end(node: Node, known: set[str], bodies: dict[str, Node]) -> bool:
    kind, inner = node
    if kind == "name":
        return inner in known or inner not in bodies
    if isinstance(inner, str):
        return True
    results = (_can_end(part, known, bodies) for part in inner)
    return any(results) if kind == "any" else all(results)
