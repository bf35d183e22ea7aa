"""EBNF text to rules. The dialect is that of GBNF: ``name ::= body`` with literals, classes, groups, ``|``, ``* + ?`` and
``{n,m}``; ``#`` begins a comment; the root rule is ``root``. Raises BadRequest with line and column."""

from __future__ import annotations

import re
from dataclasses import dataclass

from grammar_service.regex_syntax import RegexError, parse_regex
from grammar_service.regex_tree import Chars, literal
from grammar_service.schema.grammar import Literal, Repeated, Rule, Sequence, Symbol, Terminal
from shared.errors import BadRequest, GrammarTooLarge, UnsupportedSchema

MAX_RULES = 2_000
MAX_DEPTH = 100
MAX_REPEAT = 100_000
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*)|(?P<line>\n)|(?P<define>::=)|(?P<name>[A-Za-z_][\w.-]*)|(?P<text>"(?:[^"\\\n]|\\.)*")|"""
    r"""(?P<chars>\[(?:[^\]\\\n]|\\.)*\])|(?P<count>\{\s*\d+\s*(?:,\s*\d*\s*)?\})|(?P<look>\(=)|(?P<mark>[|()*+?])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_SIMPLE = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "'": "'", "f": "\f", "v": "\v", "b": "\b", "/": "/"}


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    line: int
    column: int


def parse_ebnf(text: str) -> dict[str, list[Sequence]]:
    """Rule name to alternatives. Groups become rules of their own, named after the rule they stand in."""
    parser = _Parser(_tokens(text))
    while parser.peek().kind != "end":
        parser.rule()
    if len(parser.rules) > MAX_RULES:
        raise GrammarTooLarge(f"more than {MAX_RULES} rules", keyword="rules")
    return parser.rules


def _tokens(text: str) -> list[Token]:
    out: list[Token] = []
    at, line, start = 0, 1, 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise BadRequest(f"line {line}, column {at - start + 1}: unexpected {text[at]!r}", field="ebnf")
        kind = found.lastgroup or ""
        if kind not in ("space", "line"):
            out.append(Token(kind, found[0], line, at - start + 1))
        at = found.end()
        if kind == "line":
            line, start = line + 1, at
    return [*out, Token("end", "", line, at - start + 1)]


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._all = tokens
        self._at = 0
        self._current = ""
        self.rules: dict[str, list[Sequence]] = {}

    def peek(self, ahead: int = 0) -> Token:
        return self._all[min(self._at + ahead, len(self._all) - 1)]

    def take(self) -> Token:
        token = self.peek()
        self._at += 1
        return token

    def fail(self, message: str, token: Token) -> BadRequest:
        return BadRequest(f"line {token.line}, column {token.column}: {message}", field="ebnf")

    def rule(self) -> None:
        name = self.take()
        if name.kind != "name" or self.take().kind != "define":
            raise self.fail("expected `name ::= ...`", name)
        if name.text in self.rules:
            raise self.fail(f"the rule {name.text!r} is defined twice", name)
        self._current = name.text
        self.rules[name.text] = []
        self.rules[name.text] = self.choice(0)

    def choice(self, depth: int) -> list[Sequence]:
        if depth > MAX_DEPTH:
            raise GrammarTooLarge(f"groups are nested deeper than {MAX_DEPTH}", keyword="depth")
        options = [self.sequence(depth)]
        while self.peek().text == "|" and self.peek().kind == "mark":
            self.take()
            options.append(self.sequence(depth))
        return options

    def sequence(self, depth: int) -> Sequence:
        parts: list[Symbol] = []
        while not self._at_end_of_sequence():
            parts.extend(self.quantified(self.element(depth)))
        return tuple(parts)

    def _at_end_of_sequence(self) -> bool:
        token = self.peek()
        return token.kind == "end" or token.text in ("|", ")") or (token.kind == "name" and self.peek(1).kind == "define")

    def element(self, depth: int) -> Sequence:
        token = self.take()
        match token.kind:
            case "text":
                text = self._unescaped(token)
                return (Literal(text),) if text else ()
            case "chars":
                return (Terminal(self._chars(token)),)
            case "name":
                return (Rule(token.text),)
            case "look":
                raise UnsupportedSchema("look-ahead assertions in EBNF are not supported", keyword="(=")
        if token.text != "(":
            raise self.fail(f"unexpected {token.text!r}", token)
        return self._group(depth, token)

    def _group(self, depth: int, opener: Token) -> Sequence:
        options = self.choice(depth + 1)
        if self.take().text != ")":
            raise self.fail("this group is not closed", opener)
        if len(options) == 1:
            return options[0]
        name = f"{self._current}.{len(self.rules)}"
        while name in self.rules:
            name += "_"
        self.rules[name] = options
        return (Rule(name),)

    def quantified(self, body: Sequence) -> Sequence:
        known: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        while (token := self.peek()).kind == "count" or (token.kind == "mark" and token.text in known):
            self.take()
            low, high = known[token.text] if token.text in known else self._count(token)
            body = (Repeated(body, low, high),) if body and high != 0 else ()
        return body

    def _count(self, token: Token) -> tuple[int, int | None]:
        low, comma, high = token.text.strip("{}").replace(" ", "").partition(",")
        bounds = int(low), (int(high) if high else None) if comma else int(low)
        if max(bounds[0], bounds[1] or 0) > MAX_REPEAT:
            raise GrammarTooLarge(f"a repeat count is over {MAX_REPEAT}", keyword="{}")
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise self.fail("repeat bounds are the wrong way round", token)
        return bounds

    def _unescaped(self, token: Token) -> str:
        def char(found: re.Match[str]) -> str:
            code = found[1] or found[2] or found[3]
            if code is None and found[4] not in _SIMPLE:
                raise self.fail(f"unknown escape \\{found[4]}", token)
            value = chr(int(code, 16)) if code and int(code, 16) <= 0x10FFFF else _SIMPLE.get(found[4] or "", "\0")
            if value == "\0" or "\ud800" <= value <= "\udfff":
                raise self.fail("NUL and lone surrogates are not allowed in a guide", token)
            return value

        return _ESCAPE.sub(char, token.text[1:-1])

    def _chars(self, token: Token) -> Chars:
        spelled = re.sub(r"\\U([0-9A-Fa-f]{8})", lambda found: f"\\u{{{found[1].lstrip('0') or '0'}}}", token.text)
        try:
            found = parse_regex(spelled)
        except RegexError as error:
            raise self.fail(str(error), token) from error
        if not isinstance(found, Chars):
            raise self.fail("an empty class matches nothing", token)
        return found


def spelled_out(body: Sequence) -> Sequence:
    """Literals as single characters: no lexeme is then longer than one character."""
    out: list[Symbol] = []
    for symbol in body:
        if isinstance(symbol, Literal):
            out.extend(Terminal(literal(char)) for char in symbol.text)
        elif isinstance(symbol, Repeated):
            out.append(Repeated(spelled_out(symbol.body), symbol.low, symbol.high))
        else:
            out.append(symbol)
    return tuple(out)
