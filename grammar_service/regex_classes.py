"""Character classes of the regex dialects as code-point ranges.

``\\d \\w \\s`` are ASCII (``\\s`` in a JSON Schema pattern is ECMA-262's). Their complements are taken smaller than the
ASCII complements where validators disagree: ``\\D``, ``\\W`` and ``\\S`` leave out what any common dialect would count as a
digit, a word character or a space. So a text that we let through is right under each of them.
"""

from __future__ import annotations

import sys
import unicodedata
from functools import cache

from grammar_service.regex_tree import Chars, Ranges, complement, normal_ranges

DIGIT: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
ASCII_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
ECMA_SPACE: Ranges = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
# Python's and Rust's ideas of a space that ECMA-262 does not share.
ANY_SPACE: Ranges = normal_ranges((*ECMA_SPACE, (0x1C, 0x1F), (0x85, 0x85)))
LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))


@cache
def category_ranges(name: str) -> Ranges:
    """All code points whose Unicode general category is ``name`` or begins with it (``L``, ``Lu``, ``Nd`` ...)."""
    found, start = [], -1
    for code in range(sys.maxunicode + 2):
        inside = code <= sys.maxunicode and unicodedata.category(chr(code)).startswith(name)
        if inside and start < 0:
            start = code
        elif not inside and start >= 0:
            found.append((start, code - 1))
            start = -1
    return normal_ranges(found)


@cache
def shorthand(letter: str, wide: bool) -> Chars:
    """The class of ``\\d \\D \\w \\W \\s \\S``. ``wide`` asks for the largest reading instead of the smallest: it is used
    where the pattern is to be complemented."""
    match letter:
        case "d":
            return Chars(category_ranges("Nd"), r"\p{Nd}") if wide else Chars(DIGIT)
        case "w":
            return Chars(_any_word(), r"[\p{L}\p{N}_]") if wide else Chars(WORD)
        case "s":
            return Chars(ANY_SPACE if wide else ECMA_SPACE)
        case "D":
            return Chars(complement(DIGIT)) if wide else Chars(complement(category_ranges("Nd")), r"\P{Nd}")
        case "W":
            return Chars(complement(WORD)) if wide else Chars(complement(_any_word()), r"[^\p{L}\p{N}_]")
        case _:
            return Chars(complement(ECMA_SPACE if wide else ANY_SPACE))


def _any_word() -> Ranges:
    return normal_ranges((*category_ranges("L"), *category_ranges("N"), (0x5F, 0x5F)))


_CATEGORIES = frozenset(
    ("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
     "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "C", "Cc", "Cf", "Co", "Cn")
)  # fmt: skip
_LONG_NAMES = {
    "Letter": "L", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Mark": "M", "Number": "N", "Decimal_Number": "Nd",
    "Punctuation": "P", "Symbol": "S", "Separator": "Z", "digit": "Nd", "punct": "P",
}  # fmt: skip


def property_class(name: str, negated: bool) -> Chars | None:
    """``\\p{name}``; None where the name is not a general category."""
    short = _LONG_NAMES.get(name.removeprefix("General_Category=").removeprefix("gc="), name)
    if short not in _CATEGORIES:
        return None
    ranges = category_ranges(short)
    return Chars(complement(ranges), rf"\P{{{short}}}") if negated else Chars(ranges, rf"\p{{{short}}}")


def fold_ascii(ranges: Ranges) -> Ranges:
    """Closed under ASCII case, for ``(?i)``."""
    extra = [(code ^ 0x20, code ^ 0x20) for low, high in ranges for code in range(max(low, 0x41), min(high, 0x7A) + 1)
             if chr(code).isalpha()]  # fmt: skip
    return normal_ranges((*ranges, *extra))
