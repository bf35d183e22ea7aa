"""Regex trees as text for the engines: Rust regex syntax, Lark terminals (with ``&`` and ``~``), and the JSON string form.

``json_quoted`` maps a language of texts to the language of the JSON strings that spell them: every character raw where JSON
allows it, the short escapes, ``\\u00XX`` for the other control characters. It is a substitution character by character,
hence commutes with concatenation, union and repetition; an intersection stays one because each spelling stands for exactly
one text; a complement is taken within the set of all these spellings.
"""

from __future__ import annotations

from functools import lru_cache

from grammar_service.regex_tree import (
    Alt,
    And,
    Cat,
    Chars,
    Not,
    Ranges,
    Rep,
    Tree,
    alt,
    both,
    cat,
    chars,
    complement,
    is_plain,
    literal,
    meet_ranges,
    negate,
    normal_ranges,
    rep,
)  # fmt: skip

_SPECIAL = set(r"\.+*?()|[]{}^$#&-~/ ")
_RAW: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF))
_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}


def _code(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isprintable():
        return f"\\x{code:02x}" if char in "/ #&~" else "\\" + char if char in _SPECIAL else char
    return f"\\x{{{code:x}}}"


def _class(ranges: Ranges) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _code(ranges[0][0])
    inverse = complement(ranges)
    if inverse and len(inverse) < len(ranges):
        return f"[^{_spans(inverse)}]"
    return f"[{_spans(ranges)}]"


def _spans(ranges: Ranges) -> str:
    return "".join(_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in ranges)


@lru_cache(maxsize=16384)
def to_rust(tree: Tree) -> str:
    """Rust regex syntax for a plain tree (no And, no Not), to be matched from end to end."""
    match tree:
        case Chars(ranges, label):
            return label or _class(ranges)
        case Cat(parts):
            return "".join(_grouped(part, isinstance(part, Alt)) for part in parts)
        case Alt(options):
            return "|".join(to_rust(option) for option in options) if options else "[^\\x00-\\x{10ffff}]"
        case Rep(item, low, high):
            return _grouped(item, not isinstance(item, Chars)) + _bounds(low, high)
        case _:
            raise ValueError("And and Not have no Rust spelling")


def _grouped(tree: Tree, group: bool) -> str:
    return f"(?:{to_rust(tree)})" if group else to_rust(tree)


def _bounds(low: int, high: int | None) -> str:
    known: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    if (low, high) in known:
        return known[low, high]
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"


@lru_cache(maxsize=16384)
def to_lark(tree: Tree) -> str:
    """The right-hand side of a Lark terminal for any tree."""
    if is_plain(tree):
        return f"/{to_rust(tree)}/" if tree != Cat(()) else '""'
    match tree:
        case Cat(parts):
            return " ".join(_in_parens(part) for part in _runs(parts))
        case Alt(options):
            plain = [option for option in options if is_plain(option)]
            rest = [option for option in options if not is_plain(option)]
            return " | ".join(_in_parens(option) for option in ([alt(*plain)] if plain else []) + rest)
        case And(parts):
            # `~` alone would also match bytes that are no UTF-8.
            safe = parts if any(not isinstance(part, Not) for part in parts) else (rep(_any(), 0, None), *parts)
            return " & ".join(_in_parens(part) for part in safe)
        case Rep(item, low, high):
            return f"({to_lark(item)})" + _bounds(low, high)
        case Not(item):
            return f"/(?s:.*)/ & ~({to_lark(item)})"
        case _:
            raise ValueError(f"unexpected {tree!r}")


def _any() -> Tree:
    return Chars(complement(()), "(?s:.)")


def _in_parens(tree: Tree) -> str:
    if isinstance(tree, Not):
        return f"~({to_lark(tree.item)})" if is_plain(tree.item) else f"({to_lark(tree)})"
    return to_lark(tree) if is_plain(tree) else f"({to_lark(tree)})"


def _runs(parts: tuple[Tree, ...]) -> list[Tree]:
    """Neighbouring plain parts joined, so that each becomes one ``/regex/``."""
    out: list[Tree] = []
    for part in parts:
        if out and is_plain(part) and is_plain(out[-1]):
            out[-1] = cat(out[-1], part)
        else:
            out.append(part)
    return out


def _spelled(code: int) -> Tree:
    short = literal("\\" + _SHORT[code]) if code in _SHORT else None
    if code in (0x22, 0x5C):
        return short or alt()
    hexadecimal = cat(literal("\\u00"), literal(f"{code >> 4:x}"), _hex_digit(code & 15))
    return alt(short, hexadecimal) if short else hexadecimal


def _hex_digit(value: int) -> Tree:
    return chars(*((ord(form), ord(form)) for form in {f"{value:x}", f"{value:X}"}))


@lru_cache(maxsize=4096)
def quoted_chars(found: Chars) -> Tree:
    raw = meet_ranges(found.ranges, _RAW)
    escaped = [code for code in (*range(0x20), 0x22, 0x5C) if any(low <= code <= high for low, high in found.ranges)]
    if raw == found.ranges:
        return found
    if len(escaped) == 34:
        return alt(chars(*raw), _ALL_ESCAPED)
    return alt(*([chars(*raw)] if raw else []), *(_spelled(code) for code in escaped))


def _all_escapes() -> Tree:
    low = chars(*((ord(c), ord(c)) for c in "0123456789abcdefABCDEF"))
    short = chars(*((ord(c), ord(c)) for c in 'btnfr"\\'))
    return cat(literal("\\"), alt(short, cat(literal("u00"), chars((0x30, 0x31)), low)))


_ALL_ESCAPED = _all_escapes()
UNIT: Tree = alt(chars(*normal_ranges(_RAW)), _ALL_ESCAPED)  # one character of a text, in any of its canonical spellings
BODY: Tree = rep(UNIT, 0, None)


@lru_cache(maxsize=16384)
def quoted_body(tree: Tree) -> Tree:
    """The JSON spellings of a language, without the quotes around them."""
    match tree:
        case Chars():
            return quoted_chars(tree)
        case Cat(parts):
            return cat(*(quoted_body(part) for part in parts))
        case Alt(options):
            return alt(*(quoted_body(option) for option in options))
        case Rep(item, low, high):
            return rep(quoted_body(item), low, high)
        case And(parts):
            return both(*(_quoted_part(part) for part in parts), *([] if _has_positive(parts) else [BODY]))
        case Not(item):
            return both(BODY, negate(quoted_body(item)))


def _quoted_part(part: Tree) -> Tree:
    return negate(quoted_body(part.item)) if isinstance(part, Not) else quoted_body(part)


def _has_positive(parts: tuple[Tree, ...]) -> bool:
    return any(not isinstance(part, Not) for part in parts)


def json_quoted(tree: Tree) -> Tree:
    """The JSON strings, quotes included, that spell the texts of ``tree``."""
    quote = literal('"')
    return cat(quote, quoted_body(tree), quote)
