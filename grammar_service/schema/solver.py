"""Expressions to unions of typed cases: the normal form from which a grammar is written.

``cases(e)`` is a list of typed sets whose union is e; what is plainly empty is left out. References are followed when a set
is asked for, never before, so that recursion through a property or an item ends. A reference that loops without one stands
for the least set: nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from grammar_service.schema.arrays import Arrays
from grammar_service.schema.case import UNIVERSE, Case, TooMany, weight
from grammar_service.schema.complement import complement_cases
from grammar_service.schema.document import Document
from grammar_service.schema.exclusive import exactly_one, frugal
from grammar_service.schema.expand import expand_node
from grammar_service.schema.expr import (
    FALSE,
    TRUE,
    All,
    ExactlyOne,
    Expr,
    Neg,
    Node,
    Opaque,
    Some,
    Values,
    Without,
    conj,
)  # fmt: skip
from grammar_service.schema.keys import Keys, finite
from grammar_service.schema.membership import accepts
from grammar_service.schema.numbers import Numbers
from grammar_service.schema.objects import Objects
from grammar_service.schema.slim import finite_set, slim
from grammar_service.schema.texts import Texts
from shared.errors import GrammarTooLarge, UnsupportedSchema

MAX_CASES = 400  # of one set in a proof
MAX_WRITTEN = 128  # of one set in the grammar
MAX_PROOF_WORK = 5_000  # of one proof, in intersections of two cases, some 20 us each
MAX_PROOFS_WORK = 40_000  # of all proofs: afterwards nothing more is proved
MAX_WORK = 80_000  # of all writing
MAX_PROOF_DEPTH = 6


class Solver:
    """Holds one document and what was worked out about it. ``validate``: unsupported keywords are collected in ``dropped``
    and read as "anything" instead of refused."""

    def __init__(self, document: Document, *, validate: bool = False) -> None:
        self.document = document
        self.draft = document.draft
        self.validate = validate
        self.rewrites: dict[str, None] = {}
        self.warnings: dict[str, None] = {}
        self.dropped: dict[str, None] = {}
        self._expanded: dict[str, Expr] = {}
        self._known: dict[tuple[bool, Expr], tuple[Case, ...]] = {}
        self._chain: set[Expr] = set()
        self._proving: set[Expr] = set()
        self.loops = 0
        self.exact = False
        self.cut = False  # whether anything was left out of the grammar to keep it small
        self._work = 0
        self._proof_work = 0
        self._unproved: set[Expr] = set()
        self._finite: dict[Node, Expr] = {}
        self._proof_end = 0

    def note(self, rewrite: str, pointer: str) -> None:
        self.rewrites[f"{rewrite} at #{pointer}"] = None

    def warn(self, message: str) -> None:
        self.warnings[message] = None

    def unsupported(self, pointer: str, keyword: str, message: str) -> Expr:
        """Refuses, or in ``validate`` mode returns the set that stands for the keyword."""
        if not self.validate:
            raise UnsupportedSchema(message, pointer=pointer, keyword=keyword)
        self.dropped[f"#{pointer} {keyword}"] = None
        return Opaque(pointer, keyword)

    def expand(self, node: Node) -> Expr:
        if node.pointer not in self._expanded:
            self._expanded[node.pointer] = expand_node(self, self.document, node.pointer)
        return self._expanded[node.pointer]

    def accepts(self, expr: Expr, value: object) -> bool:
        return accepts(self.expand, expr, value, True)

    def cases(self, expr: Expr) -> tuple[Case, ...]:
        known = self._known.get((self.exact, expr))
        if known is not None:
            return known
        if expr in self._chain:
            self.loops += 1
            return ()
        before, outermost = self.loops, not self._chain
        self._chain.add(expr)
        try:
            found = _absorbed(self._solve(expr))
        finally:
            self._chain.discard(expr)
        if outermost or self.loops == before:
            self._known[self.exact, expr] = found
        return found

    def _solve(self, expr: Expr) -> list[Case]:
        match expr:
            case Node():
                return list(self.cases(self.expand(expr)))
            case All(parts):
                return self._product(parts)
            case Some(options):
                return [case for option in options for case in self.cases(option)]
            case ExactlyOne():
                return exactly_one(self, expr)
            case Neg(item):
                return complement_cases(self, item)
            case Without(item):
                return frugal(self, item)
            case Opaque():
                return list(UNIVERSE)
            case _:
                kept = self.kept(expr)
                return [] if kept is None else [kept]

    def _product(self, parts: tuple[Expr, ...]) -> list[Case]:
        found: list[Case] = list(self.cases(parts[0]) if parts else UNIVERSE)
        for part in parts[1:]:
            found = self.met(found, self.cases(part), parts)
        return found

    def met(self, found: Iterable[Case], options: Iterable[Case], whole: tuple[Expr, ...]) -> list[Case]:
        """All intersections of two. A proof that needs too many is given up; for writing the simplest are kept, which
        leaves values out and lets none in."""
        met = {case: None for a in found for b in options if (case := self._meet(a, b)) is not None}
        if self.exact and (len(met) > MAX_CASES or self._proof_work > self._proof_end):
            raise TooMany(
                f"its combinations come to more than {MAX_CASES} cases: write fewer alternatives, or make them disjoint",
                pointer=_pointer_of(whole), keyword=_keyword_of(whole),
            )  # fmt: skip
        if len(met) <= MAX_WRITTEN:
            return list(met)
        self.cut = True
        self.warn(f"#{_pointer_of(whole)}: of {len(met)} combinations of alternatives the {MAX_WRITTEN} simplest are written")
        return sorted(met, key=weight)[:MAX_WRITTEN]

    def _meet(self, a: Case, b: Case) -> Case | None:
        if self.exact:
            self._proof_work += 1
        else:
            self._work += 1
        if self._work > MAX_WORK:
            raise GrammarTooLarge("the schema's alternatives combine in too many ways: write fewer, or make them disjoint")
        if isinstance(b, Values) and not isinstance(a, Values):
            a, b = b, a
        if isinstance(a, Values):
            kept = tuple(member for member in a.members if accepts(self.expand, b, member.value, True))
            return Values(kept) if kept else None
        if type(a) is not type(b):
            return None
        met = a.meet(b)  # type: ignore[arg-type]
        return None if met is None else self.kept(met)

    def kept(self, case: Case) -> Case | None:
        """The case, settled; None where it is proved empty."""
        match case:
            case Numbers() | Texts():
                return None if case.is_empty() else case
            case Arrays():
                settled = case.settled()
                return settled if settled and not self._lacks_item(settled) else None
            case Objects():
                found = slim(self.finite_of, case).settled()
                return found if found and not self._lacks_value(found) else None
            case _:
                return case

    def _lacks_item(self, case: Arrays) -> bool:
        return any(self.is_empty(case.item(index)) for index in range(min(case.low, len(case.prefix) + 1)))

    def _lacks_value(self, case: Objects) -> bool:
        return any(self.is_empty(case.value_of(name)) for name in case.required)

    def is_empty(self, expr: Expr) -> bool:
        """Proved empty. Only intersections and complements are looked into: a schema alone is rarely empty on purpose."""
        if isinstance(expr, Node):
            expr = self.expand(expr)
        if expr == FALSE:
            return True
        if expr == TRUE or not isinstance(expr, All | Neg) or expr in self._proving or len(self._proving) > MAX_PROOF_DEPTH:
            return False
        self._proving.add(expr)
        try:
            return self._has_no_case(expr)
        finally:
            self._proving.discard(expr)

    def proved(self, expr: Expr) -> tuple[Case, ...]:
        """The cases for a proof: behind a property or an item, hence a chain of their own, and with whole complements."""
        chain, self._chain = self._chain, set()
        exact, end = self.exact, self._proof_end
        self.exact, self._proof_end = True, end if exact else min(self._proof_work + MAX_PROOF_WORK, MAX_PROOFS_WORK)
        try:
            return self.cases(expr)
        finally:
            self._chain, self.exact, self._proof_end = chain, exact, end

    def disjoint(self, a: Expr, b: Expr) -> bool:
        """Proved to have nothing in common."""
        met = conj(a, b)
        return met == FALSE or self._has_no_case(met)

    def _has_no_case(self, expr: Expr) -> bool:
        if expr in self._unproved:
            return False
        try:
            return not self.proved(expr)
        except TooMany:
            self._unproved.add(expr)
            return False

    def finite_of(self, node: Node) -> Expr:
        """The node as a finite set where its keywords plainly make it one."""
        if node not in self._finite:
            self._finite[node] = finite_set(self.expand, node)
        return self._finite[node]

    def keys_of(self, expr: Expr) -> list[Keys]:
        """The strings of a set, as sets of property names."""
        found: list[Keys] = []
        for case in self.proved(expr):
            if isinstance(case, Texts):
                found.append(Keys(*case.patterns()))
            elif isinstance(case, Values):
                found.append(finite(member.value for member in case.members if isinstance(member.value, str)))
        return [keys for keys in found if keys != finite(())]


def _absorbed(found: list[Case]) -> tuple[Case, ...]:
    """Each case once; a whole type makes its other cases needless."""
    distinct = list(dict.fromkeys(found))
    whole = {type(case) for case in distinct if case in UNIVERSE and not isinstance(case, Values)}
    return tuple(case for case in distinct if type(case) not in whole or case in UNIVERSE)


def _pointer_of(parts: tuple[Expr, ...]) -> str:
    pointers = [part.pointer for part in parts if isinstance(part, Node | ExactlyOne)]
    pointers += [part.item.pointer for part in parts if isinstance(part, Neg) and isinstance(part.item, Node)]
    return min(pointers, key=len) if pointers else ""


def _keyword_of(parts: tuple[Expr, ...]) -> str:
    if any(isinstance(part, ExactlyOne) for part in parts):
        return "oneOf"
    return "not" if any(isinstance(part, Neg) for part in parts) else "allOf"
