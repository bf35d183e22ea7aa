"""Expressions to a grammar: one rule for each distinct union of cases, made from a worklist."""

from __future__ import annotations

from grammar_service.regex_tree import NEVER, Tree, alt
from grammar_service.schema.array_rules import array_sequence
from grammar_service.schema.arrays import Arrays
from grammar_service.schema.case import Case
from grammar_service.schema.expr import Expr, Values
from grammar_service.schema.grammar import Grammar, Numeric, Rule, Sequence, Symbol, Terminal
from grammar_service.schema.membership import structure_of
from grammar_service.schema.number_syntax import engine_schema, number_tree
from grammar_service.schema.numbers import Numbers
from grammar_service.schema.object_rules import object_sequences
from grammar_service.schema.objects import Objects
from grammar_service.schema.solver import Solver
from grammar_service.schema.text_syntax import scalar_tree, text_tree
from grammar_service.schema.texts import Texts
from shared.errors import GrammarTooLarge

MAX_RULES = 20_000


class GrammarWriter:
    """Writes the grammar of ``root``; what no engine enforces is refused by the solver's policy."""

    def __init__(self, solver: Solver, *, any_order: bool = True) -> None:
        self.any_order = any_order
        self._solver = solver
        self._grammar = Grammar()
        self._known: dict[tuple[Case, ...], Symbol] = {}
        self._queue: list[tuple[Rule, tuple[Case, ...]]] = []

    def write(self, root: Expr) -> Grammar:
        self._grammar.rules["start"] = [(self.symbol_of(root),)]
        while self._queue:
            rule, cases = self._queue.pop()
            self.define(rule, self._bodies(cases))
        return self._grammar

    def symbol_of(self, expr: Expr) -> Symbol:
        cases = self._solver.cases(expr)
        if cases not in self._known:
            self._known[cases] = self._symbol(cases)
        return self._known[cases]

    def _symbol(self, cases: tuple[Case, ...]) -> Symbol:
        trees = [self._scalar(case) for case in cases]
        if all(tree is not None for tree in trees):
            return Terminal(alt(*(tree for tree in trees if tree is not None)))
        rule = self.reserve()
        self._queue.append((rule, cases))
        return rule

    def _scalar(self, case: Case) -> Tree | None:
        """The whole case as one lexeme; None where it is or holds something else."""
        match case:
            case Values(members):
                if any(isinstance(member.value, list | dict) for member in members):
                    return None
                return alt(*(scalar_tree(member.value) for member in members))
            case Numbers():
                return number_tree(case)
            case Texts():
                return text_tree(case)
            case _:
                return None

    def _bodies(self, cases: tuple[Case, ...]) -> list[Sequence]:
        """All lexemes of the union in one terminal, then the other alternatives."""
        scalars: list[Tree] = []
        bodies: list[Sequence] = []
        for case in cases:
            tree = self._scalar(case)
            if tree is not None:
                scalars.append(tree)
            else:
                bodies.extend(self._composite(case, scalars))
        lexeme = alt(*scalars)
        return bodies if lexeme == NEVER else [(Terminal(lexeme),), *bodies]

    def _composite(self, case: Case, scalars: list[Tree]) -> list[Sequence]:
        match case:
            case Arrays():
                return array_sequence(self, case)
            case Objects():
                return object_sequences(self, case)
            case Values(members):
                plain = [member.value for member in members if not isinstance(member.value, list | dict)]
                scalars.extend(scalar_tree(value) for value in plain)
                return [(self.symbol_of(structure_of(m.value)),) for m in members if isinstance(m.value, list | dict)]
            case Numbers():
                schema = engine_schema(case)
                if schema is None:
                    self.refuse(case.origin, "multipleOf", "this step with these other number keywords: use an enum or bounds")
                    return [(Terminal(number_tree(Numbers(case.low, case.low_open, case.high, case.high_open)) or NEVER),)]
                return [(Numeric(schema),)]
            case _:
                return []

    def reserve(self) -> Rule:
        if len(self._grammar.rules) > MAX_RULES:
            raise GrammarTooLarge(f"the schema needs more than {MAX_RULES} grammar rules", keyword="rules")
        rule = Rule(f"r{len(self._grammar.rules)}")
        self._grammar.rules[rule.name] = []
        return rule

    def define(self, rule: Rule, bodies: list[Sequence]) -> None:
        self._grammar.rules[rule.name] = bodies

    def new_rule(self, bodies: list[Sequence]) -> Rule:
        rule = self.reserve()
        self.define(rule, bodies)
        return rule

    def refuse(self, pointer: str, keyword: str, message: str) -> None:
        self._solver.unsupported(pointer, keyword, message)

    def narrower(self, message: str, *, cut: bool = True) -> None:
        """``cut``: whole values are left out, so that an empty grammar proves nothing."""
        self._solver.warn(message)
        self._solver.cut |= cut

    def is_empty(self, expr: Expr) -> bool:
        return self._solver.is_empty(expr)

    def cases(self, expr: Expr) -> tuple[Case, ...]:
        return self._solver.cases(expr)
