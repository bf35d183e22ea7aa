"""A context-free grammar over terminals, in the making: rules by name, pruned to what can be finished and is reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from grammar_service.keyed import keyed
from grammar_service.regex_tree import NEVER, Tree


@keyed
@dataclass(frozen=True)
class Literal:
    """Exactly this text."""

    text: str


@keyed
@dataclass(frozen=True)
class Terminal:
    """One lexeme: a text of the tree's language."""

    tree: Tree


@keyed
@dataclass(frozen=True)
class Rule:
    name: str


@keyed
@dataclass(frozen=True)
class Repeated:
    """``body`` between ``low`` and ``high`` times; (0, 1) is an option."""

    body: tuple[Symbol, ...]
    low: int
    high: int | None


@keyed
@dataclass(frozen=True)
class Numeric:
    """A number that the engine's own JSON front describes: ``text`` is a JSON schema."""

    text: str


@keyed
@dataclass(frozen=True)
class Distinct:
    """Between ``low`` and ``high`` of the symbols, each at most once, in any order, with commas between."""

    symbols: tuple[Symbol, ...]
    low: int
    high: int


@keyed
@dataclass(frozen=True)
class Unordered:
    """Members in any order with commas between, each at most once; the first ``required`` of them must be there.

    ``tail`` may stand anywhere between them, any number of times; ``end``, where given, must come last. At most ``high`` of
    all are written; at least ``low``, where all of the tail count as one, since they may share a name.
    """

    members: tuple[Sequence, ...]
    required: int
    tail: Symbol | None = None
    end: Symbol | None = None
    low: int = 0
    high: int | None = None

    def tail_places(self) -> int | None:
        """How many of the tail are told apart: None where none needs to be, 1 where only "some" counts, else as many as
        leave room for the members that a bound still asks for."""
        if self.tail is None:
            return 0
        if self.high is None:
            return 1 if self.low else None
        return self.high - (self.end is not None) - max(self.required, self.low - 1)


Symbol = Literal | Terminal | Rule | Repeated | Numeric | Distinct | Unordered
Sequence = tuple[Symbol, ...]


def optional(*body: Symbol) -> Repeated:
    return Repeated(body, 0, 1)


def many(*body: Symbol) -> Repeated:
    return Repeated(body, 0, None)


@dataclass(slots=True)
class Grammar:
    """``rules``: name to alternatives. ``root`` is the start."""

    root: str = "start"
    rules: dict[str, list[Sequence]] = field(default_factory=dict)

    def pruned(self) -> Grammar | None:
        """Only alternatives that can be finished and rules that are reached; None where the root cannot be finished.

        The least fixpoint: a rule is productive when one alternative has only productive symbols.
        """
        productive = self._productive()
        if self.root not in productive:
            return None
        kept = {name: [cut for body in self.rules[name] if (cut := _cut(body, productive)) is not None] for name in productive}
        reached, queue = {self.root}, [self.root]
        while queue:
            for body in kept[queue.pop()]:
                new = [name for name in _names(body) if name not in reached]
                reached.update(new)
                queue.extend(new)
        return Grammar(self.root, {name: list(dict.fromkeys(kept[name])) for name in self.rules if name in reached})

    def _productive(self) -> set[str]:
        """Worklist over the uses of each rule, so that a long chain of rules takes linear time."""
        users: dict[str, set[str]] = {}
        for name, bodies in self.rules.items():
            for used in (inner for body in bodies for inner in _names(body)):
                users.setdefault(used, set()).add(name)
        found: set[str] = set()
        queue = list(self.rules)
        while queue:
            name = queue.pop()
            if name not in found and any(_cut(body, found) is not None for body in self.rules[name]):
                found.add(name)
                queue.extend(users.get(name, ()))
        return found


def _names(body: Sequence) -> Iterator[str]:
    for symbol in body:
        if isinstance(symbol, Rule):
            yield symbol.name
        elif isinstance(symbol, Repeated):
            yield from _names(symbol.body)
        elif isinstance(symbol, Distinct):
            yield from _names(symbol.symbols)
        elif isinstance(symbol, Unordered):
            others = tuple(inner for inner in (symbol.tail, symbol.end) if inner is not None)
            yield from _names((*(inner for member in symbol.members for inner in member), *others))


def _cut(body: Sequence, productive: set[str]) -> Sequence | None:
    """The sequence without its impossible options; None where a needed part is impossible."""
    out: list[Symbol] = []
    for symbol in body:
        if isinstance(symbol, Repeated):
            inner = _cut(symbol.body, productive)
            if inner is None and symbol.low > 0:
                return None
            if inner is not None:
                out.append(Repeated(inner, symbol.low, symbol.high))
        elif isinstance(symbol, Distinct):
            able = tuple(inner for inner in symbol.symbols if _cut((inner,), productive) is not None)
            if len(able) < symbol.low:
                return None
            out.append(Distinct(able, symbol.low, min(symbol.high, len(able))))
        elif isinstance(symbol, Unordered):
            settled = _cut_unordered(symbol, productive)
            if settled is None:
                return None
            out.append(settled)
        elif (isinstance(symbol, Rule) and symbol.name not in productive) or symbol == Terminal(NEVER):
            return None
        else:
            out.append(symbol)
    return tuple(out)


def _cut_unordered(symbol: Unordered, productive: set[str]) -> Unordered | None:
    """Members that cannot be written are left out; None where one of them, or the end, is needed."""
    needed = [_cut(member, productive) for member in symbol.members[: symbol.required]]
    others = [cut for member in symbol.members[symbol.required :] if (cut := _cut(member, productive)) is not None]
    kept = tuple(cut for cut in needed if cut is not None) + tuple(others)
    end_lost = symbol.end is not None and _cut((symbol.end,), productive) is None
    tail = symbol.tail if symbol.tail is not None and _cut((symbol.tail,), productive) is not None else None
    reachable = len(kept) + (tail is not None or symbol.end is not None)
    if None in needed or end_lost or reachable < symbol.low:
        return None
    return replace(symbol, members=kept, tail=tail)
