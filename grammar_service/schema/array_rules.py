"""Arrays to grammar sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from grammar_service.regex_language import texts_of
from grammar_service.schema.arrays import Arrays, Counted
from grammar_service.schema.case import Case
from grammar_service.schema.distinct_classes import class_lexemes, class_sets
from grammar_service.schema.expr import TRUE, Expr, Values, conj, exact, neg, values
from grammar_service.schema.grammar import Distinct, Literal, Repeated, Rule, Sequence, Symbol, Terminal, optional
from grammar_service.schema.numbers import Numbers
from grammar_service.schema.texts import Texts, language

MAX_STATES = 2_000
MAX_DISTINCT = 63
OPEN, CLOSE, COMMA = Literal("["), Literal("]"), Literal(",")


class Writer(Protocol):
    """What the array and object rules need of the grammar writer."""

    any_order: bool

    def symbol_of(self, expr: Expr) -> Symbol: ...
    def new_rule(self, bodies: list[Sequence]) -> Rule: ...
    def reserve(self) -> Rule: ...
    def define(self, rule: Rule, bodies: list[Sequence]) -> None: ...
    def refuse(self, pointer: str, keyword: str, message: str) -> None: ...
    def narrower(self, message: str, *, cut: bool = True) -> None: ...
    def is_empty(self, expr: Expr) -> bool: ...
    def cases(self, expr: Expr) -> tuple[Case, ...]: ...


def array_sequence(writer: Writer, case: Arrays) -> list[Sequence]:
    """The alternatives of one array case, brackets included."""
    if case.unique is False:
        writer.refuse(case.origin, "uniqueItems", "arrays with equal items cannot be told apart: drop `not uniqueItems`")
        case = replace(case, unique=None)
    if case.unique:
        distinct = _distinct(writer, case) or _distinct_classes(writer, case)
        if distinct is not None:
            return [distinct]
        writer.refuse(
            case.origin, "uniqueItems",
            f"unique items are enforced for strings, integers, objects that must have a string, or {MAX_DISTINCT} values: drop it",
        )  # fmt: skip
        case = replace(case, unique=None)
    if case.counted:
        return _counting(writer, case)
    return [(OPEN, *_plain(writer, case), CLOSE)]


def _plain(writer: Writer, case: Arrays) -> Sequence:
    """The prefix as nested options, then the rest as one repetition."""
    length = len(case.prefix)
    rest: Sequence = ()
    if case.high is None or case.high > length:
        item = writer.symbol_of(case.items)
        rest = _tail(item, max(case.low - length, 0), None if case.high is None else case.high - length, length == 0)
    for index in range(length - 1, -1, -1):
        here = (*((COMMA,) if index else ()), writer.symbol_of(case.prefix[index]), *rest)
        rest = here if index < case.low else (optional(*here),)
    return rest


def _tail(item: Symbol, low: int, high: int | None, first: bool) -> Sequence:
    if not first:
        return (Repeated((COMMA, item), low, high),)
    more = Repeated((COMMA, item), max(low - 1, 0), None if high is None else high - 1)
    return (item, more) if low else (optional(item, more),)


def _distinct(writer: Writer, case: Arrays) -> Sequence | None:
    """Unique items out of a finite set: each at most once, in any order."""
    members = members_of(writer, case.items, MAX_DISTINCT)
    if members is None or case.prefix or case.counted:
        return None
    symbols = tuple(dict.fromkeys(writer.symbol_of(values([value])) for value in members))
    high = len(symbols) if case.high is None else min(case.high, len(symbols))
    return (OPEN, Distinct(symbols, case.low, high), CLOSE)


def _distinct_classes(writer: Writer, case: Arrays) -> Sequence | None:
    """Unique items out of an infinite set: each class of items at most once."""
    if case.prefix or case.counted:
        return None
    items = writer.cases(case.items)
    lexemes = class_lexemes(items)
    symbols: list[Symbol] = [Terminal(tree) for tree in lexemes or ()]
    if lexemes is None:
        sets = [conj(case.items, part) for part in class_sets(items, writer.cases) or ()]
        symbols = list(dict.fromkeys(writer.symbol_of(part) for part in sets if not writer.is_empty(part)))
    if not symbols or case.low > min(len(symbols), MAX_DISTINCT):
        return None
    writer.narrower(f"#{case.origin}: unique items must differ in the first or last characters of a string")
    high = len(symbols) if case.high is None else min(case.high, len(symbols))
    return (OPEN, Distinct(tuple(symbols), case.low, high), CLOSE)


def members_of(writer: Writer, expr: Expr, limit: int) -> list[object] | None:
    """All values of a set where they are at most ``limit``, else None."""
    found: list[object] = []
    for case in writer.cases(expr):
        if isinstance(case, Values):
            found.extend(member.value for member in case.members)
        elif isinstance(case, Numbers) and (numbers := case.listed(limit)) is not None:
            found.extend(int(number) if number.denominator == 1 else float(number) for number in numbers)
        elif isinstance(case, Texts) and (texts := texts_of(language(*case.patterns()), limit)) is not None:
            found.extend(texts)
        else:
            return None
    distinct = values(found)
    inexact = any(isinstance(value, float) and exact(value) != exact(float(repr(value))) for value in found)
    if not isinstance(distinct, Values) or inexact or len(distinct.members) > limit:
        return None
    return [member.value for member in distinct.members]


def _counting(writer: Writer, case: Arrays) -> list[Sequence]:
    """A rule for each state (items so far, hits of each count), both capped where more makes no difference.

    An item is taken as a hit (in the counted set) or a miss. A count without upper bound may leave an item uncounted, which
    only asks for more; with an upper bound a miss must be outside of the counted set.
    """
    states: dict[tuple[int, ...], Rule] = {}
    queue: list[tuple[int, ...]] = []

    def rule_of(state: tuple[int, ...]) -> Rule:
        if state not in states:
            states[state] = writer.reserve()
            queue.append(state)
        return states[state]

    first = rule_of((0,) * (len(case.counted) + 1))
    while queue:
        state = queue.pop()
        if len(states) > MAX_STATES:
            writer.refuse(case.origin, "contains", "the counts need too many states: use smaller bounds")
            return [(OPEN, *_plain(writer, replace(case, counted=())), CLOSE)]
        bodies: list[Sequence] = [()] if _done(case, state) else []
        for item, after in _steps(writer, case, state):
            comma: Sequence = (COMMA,) if state[0] else ()
            bodies.append((*comma, writer.symbol_of(item), rule_of(after)))
        writer.define(states[state], bodies)
    return [(OPEN, first, CLOSE)]


def _done(case: Arrays, state: tuple[int, ...]) -> bool:
    return state[0] >= case.low and all(hits >= count.low for count, hits in zip(case.counted, state[1:], strict=True))


def _steps(writer: Writer, case: Arrays, state: tuple[int, ...]) -> list[tuple[Expr, tuple[int, ...]]]:
    at = state[0]
    if case.high is not None and at >= case.high:
        return []
    cap = max([len(case.prefix), case.low, *(count.start for count in case.counted), 1])
    after = at + 1 if case.high is not None else min(at + 1, cap)
    found: list[tuple[Expr, tuple[int, ...]]] = [(case.item(at), (after,))]
    for count, hits in zip(case.counted, state[1:], strict=True):
        found = [(conj(item, choice), (*reached, new)) for item, reached in found for choice, new in _choices(count, hits, at)]
    return [(item, reached) for item, reached in found if not writer.is_empty(item)]


def _choices(count: Counted, hits: int, at: int) -> list[tuple[Expr, int]]:
    if at < count.start or (count.high is None and hits >= count.low):
        return [(TRUE, hits)]
    if count.high is None:
        return [(count.item, hits + 1), (TRUE, hits)]
    hit = [(count.item, hits + 1)] if hits < count.high else []
    return [*hit, (neg(count.item), hits)]
