"""Questions about regex trees, answered with Brzozowski derivatives: does a text match, is the language empty or finite.

Every search is bounded by a number of states; past it the answer is ``None``: unknown.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from grammar_service.regex_tree import (
    EMPTY,
    NEVER,
    Alt,
    And,
    Cat,
    Chars,
    Not,
    Rep,
    Tree,
    alt,
    both,
    cat,
    is_plain,
    negate,
    nullable,
    rep,
)  # fmt: skip

MAX_STATES = 500
MAX_DERIVATIVES = 8_000  # of one search


@lru_cache(maxsize=200_000)
def derivative(tree: Tree, code: int) -> Tree:
    """The tree of all rests: texts t such that ``chr(code) + t`` matches ``tree``."""
    match tree:
        case Chars(ranges):
            return EMPTY if any(low <= code <= high for low, high in ranges) else NEVER
        case Cat(parts):
            return _derivative_cat(parts, code)
        case Alt(options):
            return alt(*(derivative(option, code) for option in options))
        case Rep(item, low, high):
            rest = rep(item, max(low - 1, 0), None if high is None else high - 1)
            return cat(derivative(item, code), rest)
        case And(parts):
            return both(*(derivative(part, code) for part in parts))
        case Not(item):
            return negate(derivative(item, code))


def _derivative_cat(parts: tuple[Tree, ...], code: int) -> Tree:
    options: list[Tree] = []
    for at, part in enumerate(parts):
        options.append(cat(derivative(part, code), *parts[at + 1 :]))
        if not nullable(part):
            break
    return alt(*options)


def matches(tree: Tree, text: str) -> bool:
    """Whether the whole text is in the language; a lone surrogate matches nothing."""
    for char in text:
        tree = derivative(tree, ord(char))
        if tree == NEVER:
            return False
    return nullable(tree)


@lru_cache(maxsize=65536)
def first_cuts(tree: Tree) -> frozenset[int]:
    """Code points at which the derivative may change: it is the same for all points between two neighbouring cuts."""
    match tree:
        case Chars(ranges):
            return frozenset(cut for low, high in ranges for cut in (low, high + 1))
        case Cat(parts):
            return _first_cuts_cat(parts)
        case Alt(parts) | And(parts):
            return frozenset().union(*(first_cuts(part) for part in parts))
        case Rep(item, _, _) | Not(item):
            return first_cuts(item)


def _first_cuts_cat(parts: tuple[Tree, ...]) -> frozenset[int]:
    cuts: frozenset[int] = frozenset()
    for part in parts:
        cuts |= first_cuts(part)
        if not nullable(part):
            break
    return cuts


def representatives(tree: Tree) -> list[int]:
    """One code point of each class of code points with the same derivative."""
    points = sorted(first_cuts(tree) | {0})
    return [point for point in points if point <= 0x10FFFF and not 0xD800 <= point <= 0xDFFF]


@lru_cache(maxsize=8192)
def is_empty(tree: Tree, max_states: int = MAX_STATES) -> bool | None:
    """True or False where the search ends, None where it passes ``max_states`` or the number of derivatives."""
    if is_plain(tree):
        return tree == NEVER
    seen, stack, budget = {tree}, [tree], MAX_DERIVATIVES
    while stack:
        state = stack.pop()
        if nullable(state):
            return False
        codes = representatives(state)
        budget -= len(codes)
        if budget < 0:
            return None
        for code in codes:
            successor = derivative(state, code)
            if successor != NEVER and successor not in seen:
                if is_plain(successor):
                    return False
                if len(seen) >= max_states:
                    return None
                seen.add(successor)
                stack.append(successor)
    return True


def disjoint(a: Tree, b: Tree) -> bool:
    """Proved to have no text in common (False also where the search was cut short)."""
    return is_empty(both(a, b)) is True


def included(a: Tree, b: Tree) -> bool:
    """Proved: every text of ``a`` is one of ``b``."""
    return is_empty(both(a, negate(b))) is True


def texts_of(tree: Tree, limit: int) -> list[str] | None:
    """All texts of the language where they are at most ``limit``, else None."""
    out: list[str] = []
    stack: list[tuple[Tree, str]] = [(tree, "")]
    budget = limit * 50
    while stack:
        state, prefix = stack.pop()
        budget -= 1
        if budget < 0 or len(out) > limit or len(prefix) > 200:
            return None
        if nullable(state):
            out.append(prefix)
        for low, high in _steps(state):
            if high - low >= limit:
                return None
            stack.extend((derivative(state, code), prefix + chr(code)) for code in range(low, high + 1))
    return sorted(out) if len(out) <= limit else None


def _steps(state: Tree) -> list[tuple[int, int]]:
    points = [*representatives(state), 0x110000]
    spans = [(low, high - 1) for low, high in pairwise(points)]
    return [(low, high) for low, high in spans if is_empty(derivative(state, low)) is not True]
