"""The regex tree: seven node kinds, built by small constructors that keep it simplified.

A tree denotes a set of whole texts (code points, surrogates left out). There are no anchors, look-aheads or captures in
it: the parser turns them into ``And`` and ``Not``. Equal languages need not have equal trees; equal trees hash alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from grammar_service.keyed import keyed

Ranges = tuple[tuple[int, int], ...]
_TOP = 0x10FFFF


@keyed
@dataclass(frozen=True)
class Chars:
    """One code point out of sorted, disjoint, inclusive ranges. ``label`` is a shorter spelling for printing."""

    ranges: Ranges
    label: str = ""


@keyed
@dataclass(frozen=True)
class Cat:
    parts: tuple[Tree, ...]


@keyed
@dataclass(frozen=True)
class Alt:
    options: tuple[Tree, ...]


@keyed
@dataclass(frozen=True)
class Rep:
    item: Tree
    low: int
    high: int | None


@keyed
@dataclass(frozen=True)
class And:
    parts: tuple[Tree, ...]


@keyed
@dataclass(frozen=True)
class Not:
    item: Tree


Tree = Chars | Cat | Alt | Rep | And | Not
EMPTY: Tree = Cat(())
NEVER: Tree = Alt(())


def normal_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted and merged; surrogates, which no UTF-8 text holds, taken out."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(_without_surrogates(ranges)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    for low, high in ranges:
        if low <= 0xD7FF:
            yield low, min(high, 0xD7FF)
        if high >= 0xE000:
            yield max(low, 0xE000), min(high, _TOP)


def complement(ranges: Ranges) -> Ranges:
    out, start = [], 0
    for low, high in ranges:
        if low > start:
            out.append((start, low - 1))
        start = high + 1
    if start <= _TOP:
        out.append((start, _TOP))
    return normal_ranges(out)


def meet_ranges(a: Ranges, b: Ranges) -> Ranges:
    return complement(normal_ranges(complement(a) + complement(b)))


ANY = Chars(complement(()), "(?s:.)")
ANY_TEXT: Tree = Rep(ANY, 0, None)


def chars(*ranges: tuple[int, int]) -> Tree:
    found = normal_ranges(ranges)
    return Chars(found) if found else NEVER


@lru_cache(maxsize=4096)
def _char(char: str) -> Tree:
    return chars((ord(char), ord(char)))


def literal(text: str) -> Tree:
    parts = tuple(_char(char) for char in text)
    if len(parts) == 1 or NEVER in parts:
        return NEVER if NEVER in parts else parts[0]
    return Cat(parts)


def cat(*parts: Tree) -> Tree:
    flat: list[Tree] = []
    for part in parts:
        if part == NEVER:
            return NEVER
        flat.extend(part.parts if isinstance(part, Cat) else (part,))
    return flat[0] if len(flat) == 1 else Cat(tuple(flat))


def alt(*options: Tree) -> Tree:
    flat: dict[Tree, None] = {}
    for option in options:
        flat.update(dict.fromkeys(option.options if isinstance(option, Alt) else (option,)))
    if ANY_TEXT in flat:
        return ANY_TEXT
    singles = [option for option in flat if isinstance(option, Chars) and not option.label]
    if len(singles) > 1:
        merged = chars(*(pair for single in singles for pair in single.ranges))
        flat = dict.fromkeys([merged, *(option for option in flat if option not in singles)])
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def rep(item: Tree, low: int, high: int | None) -> Tree:
    if high == 0 or item == EMPTY:
        return EMPTY
    if item == NEVER:
        return EMPTY if low == 0 else NEVER
    if (low, high) == (1, 1):
        return item
    if isinstance(item, Rep) and (item.low, item.high) == (0, None):
        return item
    return Rep(item, low, high)


def both(*parts: Tree) -> Tree:
    flat: dict[Tree, None] = {}
    for part in parts:
        if part == NEVER:
            return NEVER
        flat.update(dict.fromkeys(part.parts if isinstance(part, And) else (part,)))
    flat.pop(ANY_TEXT, None)
    if not flat:
        return ANY_TEXT
    kept = tuple(flat)
    if all(isinstance(part, Chars) for part in kept):
        return _meet_chars([part for part in kept if isinstance(part, Chars)])
    if EMPTY in flat:
        return EMPTY if all(nullable(part) for part in kept) else NEVER
    return kept[0] if len(kept) == 1 else And(kept)


def _meet_chars(sets: list[Chars]) -> Tree:
    if len(sets) == 1:
        return sets[0]
    ranges = sets[0].ranges
    for other in sets[1:]:
        ranges = meet_ranges(ranges, other.ranges)
    return chars(*ranges)


def negate(item: Tree) -> Tree:
    if isinstance(item, Not):
        return item.item
    if item == NEVER:
        return ANY_TEXT
    return NEVER if item == ANY_TEXT else Not(item)


@lru_cache(maxsize=65536)
def nullable(tree: Tree) -> bool:
    """Whether the empty text is in the language."""
    match tree:
        case Chars():
            return False
        case Cat(parts) | And(parts):
            return all(nullable(part) for part in parts)
        case Alt(options):
            return any(nullable(option) for option in options)
        case Rep(item, low, _):
            return low == 0 or nullable(item)
        case Not(item):
            return not nullable(item)


def is_plain(tree: Tree) -> bool:
    """Without And and Not: then a tree other than NEVER holds at least one text."""
    match tree:
        case Chars():
            return True
        case Cat(parts):
            return all(is_plain(part) for part in parts)
        case Alt(options):
            return all(is_plain(option) for option in options)
        case Rep(item, _, _):
            return is_plain(item)
        case _:
            return False
