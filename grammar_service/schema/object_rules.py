"""Objects to grammar sequences: declared properties in their order, then any others.

Two properties of one name are possible among the others (an engine has no memory of the names it saw). A reader keeps the
last one; so the value rules stay right, an upper bound on the number of properties holds a fortiori, "some property" is
written last, and of the others only one counts towards a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grammar_service.regex_language import is_empty
from grammar_service.regex_tree import NEVER, Tree, both, negate
from grammar_service.schema.array_rules import COMMA, Writer
from grammar_service.schema.expr import FALSE, TRUE, Expr, conj
from grammar_service.schema.grammar import Literal, Repeated, Rule, Sequence, Symbol, Terminal, Unordered, many, optional
from grammar_service.schema.keys import Keys
from grammar_service.schema.objects import Objects
from grammar_service.schema.text_syntax import free_keys, key_tree, scalar_tree

MAX_CLASSES = 128
MAX_UNORDERED = 63
OPEN, CLOSE, COLON = Literal("{"), Literal("}"), Literal(":")


@dataclass(frozen=True, slots=True)
class Member:
    """One declared property: its name with the value, and whether it must be there."""

    body: Sequence
    required: bool


def object_sequences(writer: Writer, case: Objects) -> list[Sequence]:
    """The alternatives of one object case, braces included."""
    return [body for settled, last in _placed(writer, case) for body in _written(writer, settled, last)]


def _placed(writer: Writer, case: Objects) -> list[tuple[Objects, tuple[Keys, Expr] | None]]:
    """Every "some property" put at a declared name (then it is required there) or, all that are left together, at one last
    free property."""
    found: list[tuple[Objects, tuple[Keys, Expr] | None]] = [(replace(case, exists=()), None)]
    for keys, item in case.exists:
        step: list[tuple[Objects, tuple[Keys, Expr] | None]] = []
        for settled, last in found:
            for name in case.names():
                if keys.holds(name, False):
                    step.append((settled.meet(Objects(props=((name, item),), required=(name,))), last))
            step.append((settled, (keys, item) if last is None else (last[0].meet(keys), conj(last[1], item))))
        found = step
    if case.exists:
        writer.narrower(f"#{case.origin}: a property that only has to be some property is written last, and once for all rules")
    return found


def _written(writer: Writer, case: Objects, last: tuple[Keys, Expr] | None) -> list[Sequence]:
    if case.high is not None and len(case.required) > case.high:
        return []
    members: list[Member] = []
    taken = case.names()
    for name in taken:
        item, required = case.value_of(name), name in case.required
        if not writer.is_empty(item):
            body = (Terminal(scalar_tree(name)), COLON, writer.symbol_of(item))
            members.append(Member(body, required))
        elif required:
            return []
    tail = _tail_rule(writer, case, taken, None)
    end = None if last is None else _tail_rule(writer, case, taken, last)
    if last is not None and (end is None or case.high == len(case.required)):
        return []
    if tail and case.low > 1:
        writer.narrower(f"#{case.origin}: of the properties that are not declared only one counts towards minProperties")
    if writer.any_order and not _uncountable(case, members, tail) and (symbol := _unordered(case, members, tail, end)) is not None:
        return [(OPEN, symbol, CLOSE)]
    if len(members) > 1 or (members and tail is not None):
        writer.narrower(
            f"#{case.origin}: properties are written in the order of the schema, those it does not declare last", cut=False
        )
    if case.low == 0 and case.high is None:
        return [(OPEN, *_chain(writer, members, tail, end), CLOSE)]
    return [(OPEN, _counting(writer, case, members, tail, end), CLOSE)]


def _uncountable(case: Objects, members: list[Member], tail: Symbol | None) -> bool:
    """A lower bound that the declared members and one free property do not reach: refused by the counting rules."""
    return tail is not None and case.low > len(members) + 1


def _unordered(case: Objects, members: list[Member], tail: Symbol | None, end: Symbol | None) -> Unordered | None:
    """Any order, where the engine's 64 bits can remember the members and the counted free properties."""
    low = case.low if case.low > sum(member.required for member in members) else 0
    if len(members) + (tail is not None) < 2 or not members or low > len(members) + (tail is not None or end is not None):
        return None
    needed = [member.body for member in members if member.required]
    others = [member.body for member in members if not member.required]
    found = Unordered((*needed, *others), len(needed), tail, end, low, case.high)
    return found if len(members) + max(found.tail_places() or 0, 0) <= MAX_UNORDERED else None


def _tail_rule(writer: Writer, case: Objects, taken: list[str], last: tuple[Keys, Expr] | None) -> Symbol | None:
    """A property whose name is not declared. The rules split the names into classes, one value set each: the rules in whose
    names it is, and in no other's."""
    names = frozenset(taken)
    grouped: dict[Keys, Expr] = {}
    for keys, item in case.rest:
        grouped[keys] = conj(grouped.get(keys, TRUE), item)
    rules = [(tree, item) for keys, item in grouped.items() if (tree := free_keys(keys, names)) != NEVER]
    wanted = TRUE if last is None else last[1]
    classes: list[tuple[Tree, Expr]] = [(both() if last is None else last[0].language(False), wanted)]
    for tree, item in rules:
        split = [(both(names_in, tree), conj(value, item)) for names_in, value in classes]
        split += [(both(names_in, negate(tree)), value) for names_in, value in classes]
        classes = [(names_in, value) for names_in, value in split if value != FALSE and is_empty(names_in) is not True]
        if len(classes) > MAX_CLASSES:
            writer.refuse(case.origin, "patternProperties", f"more than {MAX_CLASSES} classes of names: make the patterns disjoint")
            return None
    bodies: list[Sequence] = []
    for names_in, value in classes:
        if not writer.is_empty(value) and is_empty(key := key_tree(names_in, taken)) is not True:
            bodies.append((Terminal(key), COLON, writer.symbol_of(value)))
    return writer.new_rule(bodies) if bodies else None


def _chain(writer: Writer, members: list[Member], tail: Symbol | None, end: Symbol | None) -> Sequence:
    """No bound on the number: each member with its comma if another came before; the first one present has none."""
    if end is not None:
        final: Sequence = (*((many(COMMA, tail),) if tail else ()), COMMA, end)
        alone: Sequence = (*((many(tail, COMMA),) if tail else ()), end)
    else:
        final = (many(COMMA, tail),) if tail else ()
        alone = (optional(tail, many(COMMA, tail)),) if tail else ()
    first = next((at for at, member in enumerate(members) if member.required), len(members))
    behind: list[Sequence] = [final]
    for member in reversed(members[1:]):
        here: Sequence = (COMMA, *member.body)
        step: Sequence = here if member.required else (optional(*here),)
        shared = behind[-1] if len(members) - len(behind) > first + 1 or first == 0 else _shared(writer, behind[-1])
        behind.append((*step, *shared))
    behind.reverse()
    starts = [(*members[at].body, *behind[at]) for at in range(min(first + 1, len(members)))]
    if first == len(members):
        starts.append(alone)
    return starts[0] if len(starts) == 1 else (writer.new_rule(starts),)


def _shared(writer: Writer, body: Sequence) -> Sequence:
    """A rule in place of a sequence that several alternatives end in."""
    return body if len(body) < 2 else (writer.new_rule([body]),)


def _counting(writer: Writer, case: Objects, members: list[Member], tail: Symbol | None, end: Symbol | None) -> Rule:
    """A rule for each state (member index, number so far); the number is capped where more makes no difference."""
    low, high = case.low, case.high
    cap = low if high is None else high + 1
    reachable = len(members) + (1 if tail or end else 0)
    if low > reachable and tail:
        writer.refuse(
            case.origin, "minProperties",
            "free names may repeat, so they count once: list more properties, or lower minProperties",
        )  # fmt: skip
        low = reachable
    rules = {(len(members), n): _ending(writer, n, low, high, tail, end) for n in range(cap + 1)}
    for at in range(len(members) - 1, -1, -1):
        for n in range(cap + 1):
            after = rules[at + 1, min(n + 1, cap)]
            taken: Sequence = (*((COMMA,) if n else ()), *members[at].body, after)
            bodies = [taken] if high is None or n < high else []
            rules[at, n] = writer.new_rule(bodies if members[at].required else [*bodies, (rules[at + 1, n],)])
    return rules[0, 0]


def _ending(writer: Writer, n: int, low: int, high: int | None, tail: Symbol | None, end: Symbol | None) -> Rule:
    """What may follow the declared members when ``n`` came before (capped)."""
    room = None if high is None else high - n
    if room is not None and room < 0:
        return writer.new_rule([])
    comma: Sequence = (COMMA,) if n else ()
    if end is not None:
        if room == 0 or n + 1 < low:
            return writer.new_rule([])
        more = None if room is None else room - 1
        before: Sequence = () if not tail else (Repeated((*comma, tail), 0, more),) if n else (Repeated((tail, COMMA), 0, more),)
        return writer.new_rule([(*before, *comma, end)])
    bodies: list[Sequence] = [()] if n >= low else []
    if tail and room != 0 and n + 1 >= low:
        bodies.append((*comma, tail, Repeated((COMMA, tail), 0, None if room is None else room - 1)))
    return writer.new_rule(bodies)
