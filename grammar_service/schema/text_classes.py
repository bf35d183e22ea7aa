"""All texts split into 64, or 16 coarser, disjoint classes by their first and last characters."""

from __future__ import annotations

from functools import lru_cache

from grammar_service.regex_tree import ANY_TEXT, EMPTY, Tree, alt, both, cat, chars

BUCKETS = 8


@lru_cache(maxsize=16)
def coarse_language(index: int) -> Tree:
    """One of 16 coarser classes."""
    parts = class_languages()
    return alt(*(part for at, part in enumerate(parts) if (at // BUCKETS % 4, at % 4) == divmod(index, 4)))


@lru_cache(maxsize=1)
def class_languages() -> tuple[Tree, ...]:
    """64 disjoint sets of texts that hold every text; the empty one is in the first."""
    buckets = [_bucket(index) for index in range(BUCKETS)]
    found: list[Tree] = []
    for first in buckets:
        for last in buckets:
            found.append(alt(cat(first, ANY_TEXT, last), both(first, last)))
    return (alt(EMPTY, found[0]), *found[1:])


def _bucket(index: int) -> Tree:
    """Characters whose code is ``index`` modulo 8, in ASCII; the first bucket has all others."""
    low = [(code, code) for code in range(index, 0x80, BUCKETS)]
    return chars(*low, *([(0x80, 0x10FFFF)] if index == 0 else []))
