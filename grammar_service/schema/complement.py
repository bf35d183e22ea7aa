"""The complement of a set, type by type: De Morgan's laws down to typed cases, whose own complements are lists of cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grammar_service.schema.arrays import Arrays
from grammar_service.schema.case import UNIVERSE, Case
from grammar_service.schema.expr import All, ExactlyOne, Expr, Node, Opaque, Some, Values, conj, disj, neg, values
from grammar_service.schema.membership import structure_of
from grammar_service.schema.numbers import Numbers
from grammar_service.schema.objects import Objects
from grammar_service.schema.pattern import Pattern
from grammar_service.schema.texts import Texts
from shared.errors import UnsupportedSchema

if TYPE_CHECKING:
    from grammar_service.schema.solver import Solver


def complement_cases(solver: Solver, item: Expr) -> list[Case]:
    match item:
        case Node():
            before = solver.loops
            found = list(solver.cases(neg(solver.expand(item))))
            if solver.loops != before:
                raise UnsupportedSchema("a reference loops through not", pointer=item.pointer, keyword="$ref")
            return found
        case All(parts):
            return list(solver.cases(disj(*(neg(part) for part in parts))))
        case Some(options):
            if all(isinstance(option, Case) for option in options):
                return [case for whole in UNIVERSE for case in _outside(solver, whole, options)]
            return list(solver.cases(conj(*(neg(option) for option in options))))
        case ExactlyOne(options):
            pairs = [conj(a, b) for at, a in enumerate(options) for b in options[at + 1 :]]
            return list(solver.cases(disj(conj(*(neg(option) for option in options)), *pairs)))
        case Opaque():
            return list(UNIVERSE)
        case Values():
            return _outside_values(solver, item)
        case _:
            others = [case for case in UNIVERSE if type(case) is not type(item)]
            return others + [kept for case in item.complement() if (kept := solver.kept(case)) is not None]


def _outside(solver: Solver, whole: Case, options: tuple[Case, ...]) -> list[Case]:
    """What typed cases leave of one type: only those of the type take anything away."""
    found = [whole]
    for option in options:
        if isinstance(option, Values):
            found = solver.met(found, solver.cases(neg(option)), (whole,))
        elif type(option) is type(whole):
            found = solver.met(found, option.complement(), (whole,))
    return found


def _outside_values(solver: Solver, item: Values) -> list[Case]:
    """All values but these: every scalar taken out of its type, every array and object by its structure."""
    scalars = [member.value for member in item.members if not isinstance(member.value, list | dict)]
    literals = [value for value in (None, True, False) if not any(value is scalar for scalar in scalars)]
    numbers = frozenset(m.key[1] for m in item.members if m.key[0] == "number")  # type: ignore[index]
    texts = frozenset(Pattern("text", value) for value in scalars if isinstance(value, str))
    found: list[Case] = [values(literals)] if literals else []
    found += [Numbers(excluded=numbers), Texts(forbid=texts)]
    for universe in (Arrays(), Objects()):
        shapes = [structure_of(m.value) for m in item.members if isinstance(m.value, list | dict)]
        same = [shape for shape in shapes if type(shape) is type(universe)]
        found.extend(case for case in solver.cases(conj(universe, *(neg(shape) for shape in same))))
    return found
