"""A grammar as llguidance's Lark text. White space between lexemes is one bounded skip, so that every bound holds."""

from __future__ import annotations

import json
from collections.abc import Iterator

from grammar_service.regex_print import to_lark
from grammar_service.regex_tree import Tree
from grammar_service.schema.grammar import (
    Distinct,
    Grammar,
    Literal,
    Numeric,
    Repeated,
    Rule,
    Sequence,
    Symbol,
    Terminal,
    Unordered,
)  # fmt: skip


class LarkText:
    """Prints one grammar; terminals with equal trees share a name."""

    def __init__(self, grammar: Grammar, max_whitespace: int) -> None:
        self._grammar = grammar
        self._max_whitespace = max_whitespace
        self._terminals: dict[Tree, str] = {}
        self._extra: dict[Distinct | Unordered, str] = {}

    def text(self) -> str:
        names = [self._grammar.root, *(name for name in self._grammar.rules if name != self._grammar.root)]
        rules = [f"{name}: {self._bodies(self._grammar.rules[name])}" for name in names]
        counted: list[str] = []
        for symbol, name in self._pending():
            counted += self._distinct(symbol, name) if isinstance(symbol, Distinct) else self._unordered(symbol, name)
        terminals = [f"{name}: {to_lark(tree)}" for tree, name in self._terminals.items()]
        return "\n".join([*self._head(), *rules, *counted, *terminals]) + "\n"

    def _head(self) -> list[str]:
        if self._max_whitespace == 0:
            return ["%llguidance {}"]
        return ['%llguidance {"ignore_once": true}', f"%ignore /[ \\t\\n\\r]{{1,{self._max_whitespace}}}/"]

    def _bodies(self, bodies: list[Sequence]) -> str:
        return " | ".join(self._sequence(body) for body in bodies)

    def _sequence(self, body: Sequence) -> str:
        return " ".join(self._symbol(symbol) for symbol in body) or '""'

    def _symbol(self, symbol: Symbol) -> str:
        match symbol:
            case Literal(text):
                return json.dumps(text, ensure_ascii=False)
            case Terminal(tree):
                return self._terminals.setdefault(tree, f"T{len(self._terminals)}")
            case Rule(name):
                return name
            case Numeric(text):
                return f"%json {self._with_same_skip(text)}"
            case Distinct() | Unordered():
                return f"{self._extra.setdefault(symbol, f'd{len(self._extra)}')}_first"
            case Repeated(body, low, high):
                return self._repeated(body, low, high)

    def _with_same_skip(self, text: str) -> str:
        """The engine merges two grammars' lexers only where they skip alike."""
        pattern = f"[ \\t\\n\\r]{{1,{self._max_whitespace}}}"
        skip: dict[str, object] = {"whitespace_pattern": pattern} if self._max_whitespace else {"whitespace_flexible": False}
        return json.dumps({**json.loads(text), "x-guidance": skip})

    def _repeated(self, body: Sequence, low: int, high: int | None) -> str:
        known: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
        if high == 0:
            return '""'
        suffix = known.get((low, high), f"{{{low},{'' if high is None else high}}}")
        return f"({self._sequence(body)}){suffix}"

    def _pending(self) -> Iterator[tuple[Distinct | Unordered, str]]:
        """The parametric rules, those too that are first met while others are printed."""
        at = 0
        while at < len(self._extra):
            yield list(self._extra.items())[at]
            at += 1

    def _unordered(self, symbol: Unordered, name: str) -> list[str]:
        """Bit k of the parameter says that member k was written (the required ones have the lowest bits), the bits above
        count the tail. Whoever is not required leaves room for those who are, so that no state is without a way on."""
        width, needed = len(symbol.members), symbol.required
        end = "" if symbol.end is None else self._symbol(symbol.end)
        spare = None if symbol.high is None else symbol.high - needed - bool(end)
        room = [] if spare is None else [f"bit_count_lt([{needed}:64], {spare})"]
        members = [self._sequence(member) for member in symbol.members]
        first = [f"{member} {name}::{hex(1 << at)}" for at, member in enumerate(members) if at < needed or spare != 0]
        more = [f'"," {member} {name}::set_bit({at}) %if {_all([f"bit_clear({at})", *(room if at >= needed else [])])}'
                for at, member in enumerate(members)]  # fmt: skip
        tails = symbol.tail_places()
        if symbol.tail is not None and tails != 0:
            tail = self._symbol(symbol.tail)
            first.append(f"{tail} {name}::{hex(1 << width if tails else 0)}")
            more += [f'"," {tail} {name}::{step}' for step in _tail_steps(width, tails, symbol.high is None, room)]
        if not needed and symbol.low <= bool(end):
            first.append(end or '""')
        done = _done(symbol, f"[0:{width + bool(tails and not end)}]")
        last = (f'"," {end}' if end else '""') + (f" %if {_all(done)}" if done else "")
        return [f"{name}_first: {' | '.join(first)}", f"{name}::_: {' | '.join([last, *more])}"]

    def _distinct(self, symbol: Distinct, name: str) -> list[str]:
        """Bit k of the rule's parameter says that symbol k was written."""
        first = [f"{self._symbol(item)} {name}::{hex(1 << at)}" for at, item in enumerate(symbol.symbols)]
        room = [f"bit_count_lt(_, {symbol.high})"] if symbol.high < len(symbol.symbols) else []
        more = [f'"," {self._symbol(item)} {name}::set_bit({at}) %if {_all([f"bit_clear({at})", *room])}'
                for at, item in enumerate(symbol.symbols)]  # fmt: skip
        start = [*first, *(['""'] if symbol.low == 0 else [])] if symbol.high else ['""']
        end = f'"" %if bit_count_ge(_, {symbol.low})'
        return [f"{name}_first: {' | '.join(start)}", f"{name}::_: {' | '.join([end, *more])}"]


def _all(conditions: list[str]) -> str:
    found = conditions[-1]
    for condition in reversed(conditions[:-1]):
        found = f"and({condition}, {found})"
    return found


def _tail_steps(width: int, tails: int | None, unbounded: bool, room: list[str]) -> list[str]:
    """How the parameter goes on behind a free property."""
    if tails is None:
        return ["_"]
    if unbounded:
        return [f"set_bit({width})"]
    steps: list[str] = []
    for at in range(width, width + tails):
        order = [] if at == width else [f"bit_set({at - 1})"]
        steps.append(f"set_bit({at}) %if {_all([f'bit_clear({at})', *order, *room])}")
    return steps


def _done(symbol: Unordered, seen: str) -> list[str]:
    """The conditions under which the object may end."""
    conditions = [f"is_ones([0:{symbol.required}])"] if symbol.required else []
    if symbol.low > symbol.required:
        conditions.append(f"bit_count_ge({seen}, {symbol.low - (symbol.end is not None)})")
    return conditions
