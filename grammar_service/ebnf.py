"""EBNF guides: checked, pruned to what can be finished, and written for either engine.

For xgrammar the grammar is printed again as EBNF with its root wrapped (``root ::= start_``): a root rule that calls itself
makes that engine leave tokens out of its masks. For llguidance a grammar without recursion becomes one lexeme; any other
becomes a grammar whose lexemes are single characters, because that engine's lexer is greedy and longer lexemes would
compete. Both are exact.
"""

from __future__ import annotations

from grammar_service.ebnf_syntax import parse_ebnf, spelled_out
from grammar_service.regex_print import to_lark
from grammar_service.regex_tree import Chars, Tree, alt, cat, literal, rep
from grammar_service.schema.ebnf_text import ebnf_char, ebnf_class
from grammar_service.schema.grammar import Grammar, Literal, Repeated, Rule, Sequence, Symbol, Terminal
from grammar_service.schema.lark_text import LarkText
from shared.errors import BadRequest, GrammarTooLarge, Unsatisfiable, UnsupportedSchema

MAX_CHAIN = 500
MAX_INLINED = 5_000


def checked_ebnf(text: str) -> Grammar:
    """The grammar of ``text``, pruned. Raises BadRequest, Unsatisfiable, UnsupportedSchema, GrammarTooLarge."""
    rules = parse_ebnf(text)
    if "root" not in rules:
        raise BadRequest("there is no rule `root`", field="ebnf")
    for name, bodies in rules.items():
        for used in (inner for body in bodies for inner in names_in(body)):
            if used not in rules:
                raise BadRequest(f"the rule {used!r}, used in {name!r}, is not defined", field="ebnf")
    # A rule that is its own alternative adds nothing to itself.
    straight = {name: [body for body in bodies if body != (Rule(name),)] for name, bodies in rules.items()}
    grammar = Grammar("root", straight).pruned()
    if grammar is None:
        raise Unsatisfiable("the rule `root` has no finite text", keyword="root")
    _check_ambiguity(grammar)
    return grammar


def names_in(body: Sequence) -> list[str]:
    out: list[str] = []
    for symbol in body:
        if isinstance(symbol, Rule):
            out.append(symbol.name)
        elif isinstance(symbol, Repeated):
            out.extend(names_in(symbol.body))
    return out


def nullable_rules(grammar: Grammar) -> set[str]:
    """Rules that derive the empty text; the least fixpoint."""
    found: set[str] = set()
    grown = True
    while grown:
        new = {name for name, bodies in grammar.rules.items() if any(_nullable(body, found) for body in bodies)} - found
        grown = bool(new)
        found |= new
    return found


def _nullable(body: Sequence, known: set[str]) -> bool:
    return all(
        (isinstance(symbol, Rule) and symbol.name in known)
        or (isinstance(symbol, Repeated) and (symbol.low == 0 or _nullable(symbol.body, known)))
        for symbol in body
    )


def _check_ambiguity(grammar: Grammar) -> None:
    """Refuses a rule that derives itself beside nothing (A from A A with A possibly empty): it has infinitely many
    derivations of each text, and a step costs the cube of the length or worse."""
    empty = nullable_rules(grammar)
    for name, bodies in grammar.rules.items():
        for body in bodies:
            used = [symbol for symbol in body if isinstance(symbol, Rule) and symbol.name == name]
            rest = tuple(symbol for symbol in body if symbol not in used)
            if len(used) > 1 and name in empty and _nullable(rest, empty):
                raise UnsupportedSchema(
                    f"the rule {name!r} repeats itself and may be empty: write the repetition with * or +", keyword=name
                )  # fmt: skip


def recursive_rules(grammar: Grammar) -> bool:
    """Whether any rule reaches itself. Raises GrammarTooLarge where rules call each other in too long a chain."""
    depth: dict[str, int] = {}
    order: list[tuple[str, bool]] = [(grammar.root, False)]
    open_rules: set[str] = set()
    while order:
        name, done = order.pop()
        used = {inner for body in grammar.rules[name] for inner in names_in(body)}
        if done:
            open_rules.discard(name)
            depth[name] = 1 + max((depth.get(inner, 0) for inner in used), default=0)
            if depth[name] > MAX_CHAIN:
                raise GrammarTooLarge(f"rules call each other more than {MAX_CHAIN} deep", keyword="rules")
        elif name not in depth and name not in open_rules:
            open_rules.add(name)
            order.append((name, True))
            if used & open_rules:
                return True
            order.extend((inner, False) for inner in used)
    return False


def ebnf_for_xgrammar(grammar: Grammar) -> str:
    names = {name: f"rule_{at}" for at, name in enumerate(grammar.rules)}
    lines = [f"root ::= {names[grammar.root]}"]
    for name, bodies in grammar.rules.items():
        lines.append(f"{names[name]} ::= {' | '.join(_ebnf_sequence(body, names) for body in bodies)}")
    return "\n".join(lines) + "\n"


def _ebnf_sequence(body: Sequence, names: dict[str, str]) -> str:
    return " ".join(_ebnf_symbol(symbol, names) for symbol in body) or '""'


def _ebnf_symbol(symbol: Symbol, names: dict[str, str]) -> str:
    match symbol:
        case Literal(text):
            return '"' + "".join(ebnf_char(ord(char)) for char in text) + '"'
        case Terminal(Chars(ranges)):
            return ebnf_class(ranges)
        case Rule(name):
            return names[name]
        case Repeated(body, low, high):
            marks: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?"}
            mark = marks.get((low, high), f"{{{low},{'' if high is None else high}}}")
            return f"({_ebnf_sequence(body, names)}){mark}"
        case _:
            raise ValueError(f"no EBNF for {symbol!r}")


def ebnf_for_llguidance(grammar: Grammar) -> str:
    """Lark text for the same language."""
    if not recursive_rules(grammar):
        tree = inlined(grammar)
        if tree is not None:
            return f"start: TEXT\nTEXT: {to_lark(tree)}\n" if tree != cat() else 'start: ""\n'
    names = {name: f"r{at}" for at, name in enumerate(grammar.rules)}
    rules: dict[str, list[Sequence]] = {"start": [(Rule(names[grammar.root]),)]}
    rules |= {names[name]: [_renamed(spelled_out(body), names) for body in bodies] for name, bodies in grammar.rules.items()}
    return LarkText(Grammar("start", rules), 0).text()


def _renamed(body: Sequence, names: dict[str, str]) -> Sequence:
    out: list[Symbol] = []
    for symbol in body:
        if isinstance(symbol, Rule):
            out.append(Rule(names[symbol.name]))
        elif isinstance(symbol, Repeated):
            out.append(Repeated(_renamed(symbol.body, names), symbol.low, symbol.high))
        else:
            out.append(symbol)
    return tuple(out)


def inlined(grammar: Grammar) -> Tree | None:
    """The whole language as one tree; None where it would be too large."""
    trees: dict[str, Tree] = {}
    size = 0
    for name in _leaves_first(grammar):
        trees[name] = alt(*(_tree(body, trees) for body in grammar.rules[name]))
        size += sum(len(body) + sum(_weight(trees[inner]) for inner in names_in(body)) for body in grammar.rules[name])
        if size > MAX_INLINED:
            return None
    return trees[grammar.root]


def _weight(tree: Tree) -> int:
    parts = getattr(tree, "parts", getattr(tree, "options", ()))
    return 1 + sum(_weight(part) for part in parts)


def _leaves_first(grammar: Grammar) -> list[str]:
    out: list[str] = []
    stack: list[tuple[str, bool]] = [(grammar.root, False)]
    while stack:
        name, done = stack.pop()
        if done:
            out.append(name)
        elif name not in out:
            stack.append((name, True))
            stack.extend((inner, False) for body in grammar.rules[name] for inner in names_in(body))
    return list(dict.fromkeys(out))


def _tree(body: Sequence, trees: dict[str, Tree]) -> Tree:
    parts: list[Tree] = []
    for symbol in body:
        match symbol:
            case Literal(text):
                parts.append(literal(text))
            case Terminal(tree):
                parts.append(tree)
            case Rule(name):
                parts.append(trees[name])
            case Repeated(inner, low, high):
                parts.append(rep(_tree(inner, trees), low, high))
            case _:
                raise ValueError(f"no tree for {symbol!r}")
    return cat(*parts)
