"""A grammar as xgrammar's EBNF, the same language as the Lark text: white space, bounded, before every lexeme but the first.

A lexeme with intersections or complements becomes the rules of its automaton. What has no such form there is refused:
numbers that only the other engine's own number front can tell, unique items over many values.
"""

from __future__ import annotations

from itertools import pairwise

from grammar_service.regex_language import derivative, representatives
from grammar_service.regex_tree import NEVER, Alt, Cat, Chars, Ranges, Rep, Tree, complement, is_plain, normal_ranges, nullable
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
from shared.errors import UnsupportedSchema

MAX_STATES = 300
MAX_DISTINCT = 5


class EbnfText:
    """Prints one grammar; lexemes with equal trees share a rule."""

    def __init__(self, grammar: Grammar, max_whitespace: int) -> None:
        self._grammar = grammar
        self._space = f"[ \\t\\n\\r]{{0,{max_whitespace}}}" if max_whitespace else ""
        self._names = {name: f"v{at}" for at, name in enumerate(grammar.rules)}
        self._lexemes: dict[Tree, str] = {}
        self._extra: list[str] = []
        self._first: dict[str, None] = {}

    def text(self) -> str:
        root = self._grammar.root
        lines = [f"root ::= {self._names[root]}_first"]
        self._first[root] = None
        lines += [f"{self._names[name]} ::= {self._bodies(bodies, False)}" for name, bodies in self._grammar.rules.items()]
        at = 0
        while at < len(self._first):
            name = list(self._first)[at]
            lines.append(f"{self._names[name]}_first ::= {self._bodies(self._grammar.rules[name], True)}")
            at += 1
        space = [f"ws ::= {self._space}"] if self._space else []
        return "\n".join([*lines, *space, *self._extra]) + "\n"

    def _bodies(self, bodies: list[Sequence], first: bool) -> str:
        return " | ".join(self._sequence(body, first) for body in bodies)

    def _sequence(self, body: Sequence, first: bool = False) -> str:
        return " ".join(self._symbol(symbol, first and at == 0) for at, symbol in enumerate(body)) or '""'

    def _symbol(self, symbol: Symbol, first: bool) -> str:
        space = "" if first or not self._space else "ws "
        match symbol:
            case Literal(text):
                return f'{space}"{"".join(ebnf_char(ord(char)) for char in text)}"'
            case Terminal(tree):
                return space + self._lexeme(tree)
            case Rule(name):
                if first:
                    self._first[name] = None
                return self._names[name] + ("_first" if first else "")
            case Repeated(body, low, high):
                return f"({self._sequence(body)}){_mark(low, high)}"
            case Distinct():
                return self._distinct(symbol)
            case Numeric():
                raise UnsupportedSchema("xgrammar does not enforce this step: use llguidance", keyword="multipleOf")
            case Unordered():
                raise UnsupportedSchema("xgrammar writes properties in one order only", keyword="properties")

    def _lexeme(self, tree: Tree) -> str:
        if tree not in self._lexemes:
            name = f"t{len(self._lexemes)}"
            self._lexemes[tree] = name
            lines = [f"{name} ::= {tree_text(tree)}"] if is_plain(tree) else _automaton(tree, name)
            self._extra.extend(lines)
        return self._lexemes[tree]

    def _distinct(self, symbol: Distinct) -> str:
        """A rule for each set of symbols written so far."""
        if len(symbol.symbols) > MAX_DISTINCT:
            raise UnsupportedSchema(f"xgrammar: unique items over more than {MAX_DISTINCT} values", keyword="uniqueItems")
        name = f"d{len(self._extra)}"
        for seen in range(1 << len(symbol.symbols)):
            count = seen.bit_count()
            options = ['""'] if count >= symbol.low else []
            for at, item in enumerate(symbol.symbols):
                if count < symbol.high and not seen >> at & 1:
                    comma = self._symbol(Literal(","), False) + " " if seen else ""
                    options.append(f"{comma}{self._symbol(item, False)} {name}_{seen | 1 << at}")
            if options:
                self._extra.append(f"{name}_{seen} ::= {' | '.join(options)}")
        return f"{name}_0"


def _mark(low: int, high: int | None) -> str:
    known: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
    return known.get((low, high), f"{{{low},{'' if high is None else high}}}")


def ebnf_char(code: int) -> str:
    if 0x20 <= code < 0x7F and chr(code) not in '"\\[]^-':
        return chr(code)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def ebnf_class(ranges: Ranges) -> str:
    inverse = complement(ranges)
    negated = len(inverse) < len(ranges) and bool(inverse)
    shown = inverse if negated else ranges
    spans = "".join(ebnf_char(low) + (f"-{ebnf_char(high)}" if high > low else "") for low, high in shown)
    return f"[{'^' if negated else ''}{spans}]"


def tree_text(tree: Tree) -> str:
    """EBNF for a plain tree."""
    match tree:
        case Chars(ranges):
            return ebnf_class(ranges)
        case Cat(parts):
            return " ".join(f"({tree_text(part)})" if isinstance(part, Alt) else tree_text(part) for part in parts) or '""'
        case Alt(options):
            return " | ".join(tree_text(option) for option in options)
        case Rep(item, low, high):
            return f"({tree_text(item)}){_mark(low, high)}"
        case _:
            raise ValueError(f"no EBNF for {tree!r}")


def _automaton(tree: Tree, name: str) -> list[str]:
    """A rule for each derivative from which a text can still be finished."""
    order, edges = _explored(tree)
    alive = {state for state in order if nullable(state)}
    grown = True
    while grown:
        new = {state for state in order if state not in alive and any(after in alive for after in edges[state])}
        grown = bool(new)
        alive |= new
    index = {state: at for at, state in enumerate(order)}
    lines: list[str] = []
    for state in order:
        if state in alive:
            options = [f"{ebnf_class(normal_ranges(spans))} {_state_name(name, index[after])}"
                       for after, spans in edges[state].items() if after in alive]  # fmt: skip
            options += ['""'] if nullable(state) else []
            lines.append(f"{_state_name(name, index[state])} ::= {' | '.join(options)}")
    return lines


def _state_name(name: str, at: int) -> str:
    return name if at == 0 else f"{name}_{at}"


def _explored(tree: Tree) -> tuple[list[Tree], dict[Tree, dict[Tree, list[tuple[int, int]]]]]:
    order, edges = [tree], {}
    for state in order:
        after: dict[Tree, list[tuple[int, int]]] = {}
        for low, high in pairwise([*representatives(state), 0x110000]):
            successor = derivative(state, low)
            if successor != NEVER:
                after.setdefault(successor, []).append((low, high - 1))
        edges[state] = after
        order.extend(successor for successor in after if successor not in edges and successor not in order)
        if len(order) > MAX_STATES:
            raise UnsupportedSchema("xgrammar: the pattern needs too large an automaton: use llguidance", keyword="pattern")
    return order, edges
