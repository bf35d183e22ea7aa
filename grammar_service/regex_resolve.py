"""Syntax tree to language: anchors and look-aheads become And and Not.

``_language(node, rest, at_start)`` is the set of texts that ``node`` followed by ``rest`` matches, where ``rest`` is the
language of all that follows to the end of the whole text. With the continuation at hand an end anchor is "the rest is
empty", and a look-ahead is an intersection: ``(?=X)`` before ``rest`` is ``X.* & rest``. ``^`` matches only at position 0,
so a sequence whose head may be empty is split into the empty and the non-empty head.
"""

from __future__ import annotations

from functools import lru_cache

from grammar_service.regex_syntax import Anchor, Choice, Look, RegexError, Repeat, Sequence, Syntax, parse_regex
from grammar_service.regex_tree import (
    ANY,
    ANY_TEXT,
    EMPTY,
    NEVER,
    Chars,
    Tree,
    alt,
    both,
    cat,
    chars,
    negate,
    nullable,
    rep,
)  # fmt: skip


@lru_cache(maxsize=4096)
def search_language(text: str, *, wide: bool = False) -> Tree:
    """All texts in which the pattern is found: what JSON Schema's ``pattern`` means. Raises RegexError.

    ``wide`` gives the largest reading (for a pattern that is complemented): ``$`` then also matches before a last newline.
    """
    node = parse_regex(text, wide=wide)
    here = _language(node, ANY_TEXT, True, wide)
    if here == ANY_TEXT or not (_has_anchor(node) or _has_look(node)):
        return here if here == ANY_TEXT else cat(ANY_TEXT, here)
    later = _language(node, ANY_TEXT, False, wide)
    return alt(here, cat(ANY_TEXT, later)) if _unanchored(node) else alt(here, cat(rep(ANY, 1, None), later))


@lru_cache(maxsize=4096)
def whole_language(text: str) -> Tree:
    """All texts that the regex matches from end to end: the meaning of a ``regex`` guide. Raises RegexError, also for an
    anchor that is not at an end."""
    node = parse_regex(text)
    _check_anchors(node, True, True)
    return _language(node, EMPTY, True, False)


def _language(node: Syntax, rest: Tree, at_start: bool, wide: bool) -> Tree:
    match node:
        case Chars():
            return cat(node, rest)
        case Anchor(end):
            if not end:
                return rest if at_start else NEVER
            return both(rest, alt(EMPTY, chars((10, 10))) if wide else EMPTY)
        case Look(item, negative):
            ahead = _language(item, ANY_TEXT, at_start, wide)
            return both(negate(ahead) if negative else ahead, rest)
        case Choice(options):
            return alt(*(_language(option, rest, at_start, wide) for option in options))
        case Repeat():
            return _repeat(node, rest, at_start, wide)
        case Sequence(parts):
            return _sequence(parts, rest, at_start, wide)


def _sequence(parts: tuple[Syntax, ...], rest: Tree, at_start: bool, wide: bool) -> Tree:
    if not parts:
        return rest
    if not any(_has_anchor(part) or _has_look(part) for part in parts):
        return cat(*(_plain(part) for part in parts), rest)
    head, tail = parts[0], parts[1:]
    starts = at_start and any(_has_start(part) for part in tail)
    if not starts or isinstance(head, Anchor | Look):
        # Behind an anchor or a look-ahead the position is the same; behind anything else no ``^`` of the tail is at 0.
        stays = isinstance(head, Anchor | Look) and at_start
        return _language(head, _sequence(tail, rest, stays, wide), at_start, wide)
    return _split_head(head, tail, rest, wide)


def _split_head(head: Syntax, tail: tuple[Syntax, ...], rest: Tree, wide: bool) -> Tree:
    if _has_anchor(head) or _has_look(head):
        raise RegexError("an anchor behind another anchored group is not supported", 0, "anchor")
    plain = _plain(head)
    moved = cat(both(plain, negate(EMPTY)) if nullable(plain) else plain, _sequence(tail, rest, False, wide))
    return alt(_sequence(tail, rest, True, wide), moved) if nullable(plain) else moved


def _repeat(node: Repeat, rest: Tree, at_start: bool, wide: bool) -> Tree:
    if not (_has_anchor(node.item) or _has_look(node.item)):
        return cat(_plain(node), rest)
    if node.high == 1:
        once = _language(node.item, rest, at_start, wide)
        return once if node.low else alt(rest, once)
    raise RegexError("an anchor or look-ahead inside a repetition is not supported", 0, "anchor")


def _plain(node: Syntax) -> Tree:
    match node:
        case Chars():
            return node
        case Sequence(parts):
            return cat(*(_plain(part) for part in parts))
        case Choice(options):
            return alt(*(_plain(option) for option in options))
        case Repeat(item, low, high):
            return rep(_plain(item), low, high)
        case _:
            raise RegexError("an anchor or look-ahead is not supported here", 0, "anchor")


def _children(node: Syntax) -> tuple[Syntax, ...]:
    match node:
        case Sequence(parts) | Choice(parts):
            return parts
        case Repeat(item, _, _) | Look(item, _):
            return (item,)
        case _:
            return ()


@lru_cache(maxsize=16384)
def _has_anchor(node: Syntax) -> bool:
    return isinstance(node, Anchor) or any(_has_anchor(child) for child in _children(node))


@lru_cache(maxsize=16384)
def _has_start(node: Syntax) -> bool:
    return node == Anchor(False) or any(_has_start(child) for child in _children(node))


@lru_cache(maxsize=16384)
def _has_look(node: Syntax) -> bool:
    return isinstance(node, Look) or any(_has_look(child) for child in _children(node))


def _unanchored(node: Syntax) -> bool:
    """No ``^`` in it: then position 0 is like any other and one copy of the language is enough."""
    return not _has_start(node)


def _check_anchors(node: Syntax, first: bool, last: bool) -> None:
    """Raises where ``^`` is not at the start or ``$`` not at the end of the whole text."""
    if isinstance(node, Anchor) and not (last if node.end else first):
        raise RegexError("an anchor is allowed only at the ends", 0, "anchor")
    parts = _children(node)
    if not isinstance(node, Sequence):
        for part in parts:
            ends = isinstance(node, Choice) or (isinstance(node, Repeat) and node.high == 1)
            _check_anchors(part, first and ends, last and ends)
        return
    for at, part in enumerate(parts):
        _check_anchors(part, first and all(isinstance(p, Anchor) for p in parts[:at]),
                       last and all(isinstance(p, Anchor) for p in parts[at + 1 :]))  # fmt: skip
