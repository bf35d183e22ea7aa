"""A grammar as llguidance's Lark text. White space between lexemes is one bounded skip, so that every bound holds."""

from __future__ import annotations

import json

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
)  # fmt: skip


class LarkText:
    """Prints one grammar; terminals with equal trees share a name."""

    def __init__(self, grammar: Grammar, max_whitespace: int) -> None:
        self._grammar = grammar
        self._max_whitespace = max_whitespace
        self._terminals: dict[Tree, str] = {}
        self._extra: dict[Distinct, str] = {}

    def text(self) -> str:
        names = [self._grammar.root, *(name for name in self._grammar.rules if name != self._grammar.root)]
        rules = [f"{name}: {self._bodies(self._grammar.rules[name])}" for name in names]
        distinct = [line for symbol, name in self._extra.items() for line in self._distinct(symbol, name)]
        terminals = [f"{name}: {to_lark(tree)}" for tree, name in self._terminals.items()]
        return "\n".join([*self._head(), *rules, *distinct, *terminals]) + "\n"

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
                return f"%json {text}"
            case Distinct():
                return f"{self._extra.setdefault(symbol, f'd{len(self._extra)}')}_first"
            case Repeated(body, low, high):
                return self._repeated(body, low, high)

    def _repeated(self, body: Sequence, low: int, high: int | None) -> str:
        known: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
        if high == 0:
            return '""'
        suffix = known.get((low, high), f"{{{low},{'' if high is None else high}}}")
        return f"({self._sequence(body)}){suffix}"

    def _distinct(self, symbol: Distinct, name: str) -> list[str]:
        """Bit k of the rule's parameter says that symbol k was written."""
        first = [f"{self._symbol(item)} {name}::{hex(1 << at)}" for at, item in enumerate(symbol.symbols)]
        more = [f'"," {self._symbol(item)} {name}::set_bit({at}) %if and(bit_clear({at}), bit_count_lt(_, {symbol.high}))'
                for at, item in enumerate(symbol.symbols)]  # fmt: skip
        start = [*first, *(['""'] if symbol.low == 0 else [])] if symbol.high else ['""']
        end = f'"" %if bit_count_ge(_, {symbol.low})'
        return [f"{name}_first: {' | '.join(start)}", f"{name}::_: {' | '.join([end, *more])}"]
