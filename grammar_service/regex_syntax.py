"""Regex text to a syntax tree with anchors and look-aheads, and the refusal of what no engine here enforces.

One dialect for all guides (the common part of ECMA-262, Python and Rust): dot excludes line ends, ``\\d \\w \\s`` are ASCII,
lazy quantifiers mean the same language as greedy ones. Back-references, look-behind, ``\\b``, possessive quantifiers and
atomic groups are refused by name. Raises :class:`RegexError`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from grammar_service.regex_classes import LINE_ENDS, fold_ascii, property_class, shorthand
from grammar_service.regex_tree import ANY, Chars, Ranges, complement, normal_ranges

MAX_DEPTH = 100
MAX_REPEAT = 100_000
_CONTROL = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}|U([0-9A-Fa-f]{8})")
_COUNT = re.compile(r"\{(\d{1,7})(?:(,)(\d{0,7}))?\}")
_FLAGS = re.compile(r"\?([ismxu]*)(?:-([ismx]+))?([:)])")
_NAMED = re.compile(r"\?P?<[A-Za-z_$][\w$]*>")


class RegexError(ValueError):
    """The text is no regex of our dialect; ``at`` is the position, ``construct`` names an unsupported feature."""

    def __init__(self, message: str, at: int, construct: str = "") -> None:
        super().__init__(f"{message} (at position {at})")
        self.at = at
        self.construct = construct


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Syntax
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    end: bool


@dataclass(frozen=True, slots=True)
class Look:
    """A look-ahead, positive or negative."""

    item: Syntax
    negative: bool


Syntax = Chars | Sequence | Choice | Repeat | Anchor | Look
NOTHING: Syntax = Sequence(())


def parse_regex(text: str, *, wide: bool = False) -> Syntax:
    """The syntax tree of ``text``. ``wide``: read classes at their largest (for patterns that will be complemented)."""
    if "\x00" in text:
        raise RegexError("NUL is not allowed in a guide", text.index("\x00"))
    parser = _Parser(text, wide)
    found = parser.choice(0)
    if parser.at < len(text):
        raise RegexError("unbalanced ')'", parser.at)
    return found


@dataclass(slots=True)
class _Parser:
    text: str
    wide: bool
    at: int = 0
    flags: frozenset[str] = field(default_factory=frozenset)

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def choice(self, depth: int) -> Syntax:
        if depth > MAX_DEPTH:
            raise RegexError(f"groups are nested deeper than {MAX_DEPTH}", self.at)
        options = [self.sequence(depth)]
        while self.peek() == "|":
            self.at += 1
            options.append(self.sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self, depth: int) -> Syntax:
        parts: list[Syntax] = []
        while (char := self.peek()) and char not in "|)":
            parts.append(self.quantified(self.atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def quantified(self, item: Syntax) -> Syntax:
        bounds = self.bounds()
        if bounds is None:
            return item
        low, high = bounds
        if isinstance(item, Anchor):
            raise RegexError("a quantifier cannot follow an anchor", self.at)
        if self.peek() == "+":
            raise RegexError("possessive quantifiers are not supported", self.at, "possessive")
        if self.peek() == "?":  # lazy: the same language
            self.at += 1
        if self.bounds() is not None:
            raise RegexError("two quantifiers in a row", self.at)
        return Repeat(item, low, high)

    def bounds(self) -> tuple[int, int | None] | None:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self.peek() in simple and self.peek():
            self.at += 1
            return simple[self.text[self.at - 1]]
        found = _COUNT.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        low = int(found[1])
        high = low if found[2] is None else int(found[3]) if found[3] else None
        if max(low, high or 0) > MAX_REPEAT:
            raise RegexError(f"a repeat count is over {MAX_REPEAT}", found.start())
        if high is not None and high < low:
            raise RegexError("repeat bounds are the wrong way round", found.start())
        return low, high

    def atom(self, depth: int) -> Syntax:
        char = self.text[self.at]
        self.at += 1
        match char:
            case "(":
                return self.group(depth)
            case "[":
                return self.folded(self.bracket())
            case ".":
                return ANY if "s" in self.flags else Chars(complement(((10, 10),) if self.wide else LINE_ENDS))
            case "^" | "$":
                return Anchor(char == "$")
            case "\\":
                return self.escape()
            case "*" | "+" | "?":
                raise RegexError("nothing to repeat", self.at - 1)
            case "{" if _COUNT.match(self.text, self.at - 1):
                raise RegexError("nothing to repeat", self.at - 1)
        return self.folded(Chars(((ord(char), ord(char)),)))

    def folded(self, found: Syntax) -> Syntax:
        return Chars(fold_ascii(found.ranges)) if "i" in self.flags and isinstance(found, Chars) else found

    def group(self, depth: int) -> Syntax:
        outer, look = self.flags, ""
        for opener in ("?=", "?!"):
            if self.text.startswith(opener, self.at):
                look, self.at = opener, self.at + 2
        if not look and self.peek() == "?" and self.opener():
            return NOTHING
        self.wide ^= look == "?!"  # a smaller class inside a negation would make the whole language larger
        inner = self.choice(depth + 1)
        self.wide ^= look == "?!"
        if self.peek() != ")":
            raise RegexError("unclosed group", self.at)
        self.at += 1
        self.flags = outer
        return Look(inner, look == "?!") if look else inner

    def opener(self) -> bool:
        """Reads what follows ``(`` when it is ``?``. True for flags that hold to the end of the enclosing group."""
        if found := _NAMED.match(self.text, self.at):
            self.at = found.end()
            return False
        found = _FLAGS.match(self.text, self.at)
        if found is None:
            kind = "look-behind" if self.text.startswith(("?<=", "?<!"), self.at) else "this kind of group"
            raise RegexError(f"{kind} is not supported", self.at, kind)
        if set(found[1] + (found[2] or "")) - {"i", "s", "u"}:
            raise RegexError(f"flags ({found[0]} are not supported", self.at, "flags")
        self.flags = (self.flags | set(found[1])) - set(found[2] or "")
        self.at = found.end()
        return found[3] == ")"

    def escape(self) -> Syntax:
        if (char := self.peek()) in "bBAZzGK" or char.isdigit():
            construct = "back-reference" if char.isdigit() and char != "0" else f"\\{char}"
            raise RegexError(f"{construct} is not supported" if char else "the text ends in a backslash", self.at, construct)
        if char == "k":
            raise RegexError("back-reference is not supported", self.at, "back-reference")
        return self.folded(self.class_escape())

    def class_escape(self) -> Chars:
        """One escape that stands for a set of characters, inside or outside of brackets; ``at`` is behind the backslash."""
        char = self.peek()
        if char in "dDwWsS" and char:
            self.at += 1
            return shorthand(char, self.wide)
        if char in "pP" and char:
            return self.property()
        if found := _HEX.match(self.text, self.at):
            self.at = found.end()
            return self.code(found)
        self.at += 1
        if char in _CONTROL and char:
            return Chars(((_CONTROL[char], _CONTROL[char]),))
        if char == "c" and self.peek().isascii() and self.peek().isalpha():
            self.at += 1
            return Chars(((ord(self.text[self.at - 1]) % 32,) * 2,))
        if not char or (char.isascii() and char.isalnum()):
            raise RegexError(f"unknown escape \\{char}" if char else "the text ends in a backslash", self.at - 1, f"\\{char}")
        return Chars(((ord(char), ord(char)),))

    def code(self, found: re.Match[str]) -> Chars:
        value = int(next(group for group in found.groups() if group), 16)
        low = re.compile(r"\\u([dD][c-fC-F][0-9A-Fa-f]{2})").match(self.text, self.at)
        if 0xD800 <= value < 0xDC00 and low is not None:
            self.at = low.end()
            value = 0x10000 + ((value - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        if value == 0:
            raise RegexError("NUL is not allowed in a guide", self.at)
        if value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
            raise RegexError("the escape is not a character", self.at)
        return Chars(((value, value),))

    def property(self) -> Chars:
        found = re.compile(r"[pP](?:\{(\^?)([A-Za-z_=]+)\}|([A-Z]))").match(self.text, self.at)
        name = (found[2] or found[3]) if found else ""
        known = property_class(name, (found[0][0] == "P") != bool(found[1])) if found else None
        if found is None or known is None:
            raise RegexError(f"Unicode property {name!r} is not supported (general categories are)", self.at, "\\p")
        self.at = found.end()
        return known

    def bracket(self) -> Syntax:
        start, negated = self.at - 1, self.peek() == "^"
        self.at += negated
        ranges: list[tuple[int, int]] = []
        label: list[str] = []
        first, strict = True, not self.wide
        self.wide ^= negated  # a smaller class inside a negation would make the negated one larger
        while (char := self.peek()) != "]" or (first and strict and self.closes_later()):
            if not char:
                raise RegexError("unclosed character class", start)
            first = False
            part = self.member()
            label.append(part.label)
            ranges.extend(self.span(part))
        self.wide ^= negated
        self.at += 1
        found = normal_ranges(ranges)
        if negated:
            found = complement(found)
        return Chars(found) if found else Choice(())

    def closes_later(self) -> bool:
        """``[]abc]``: ECMA-262 reads an empty class, Python and Rust a class that holds ``]``."""
        raise RegexError("']' at the start of a class is read differently by different engines: write '\\]'", self.at)

    def member(self) -> Chars:
        char = self.text[self.at]
        self.at += 1
        if char == "[" and self.peek() == ":":
            raise RegexError("POSIX classes are not supported", self.at, "[:class:]")
        if char != "\\":
            return Chars(((ord(char), ord(char)),))
        if self.peek() == "b":
            self.at += 1
            return Chars(((8, 8),))
        return self.class_escape()

    def span(self, part: Chars) -> Ranges:
        """``part`` alone, or with ``-x`` behind it the range up to x."""
        single = len(part.ranges) == 1 and part.ranges[0][0] == part.ranges[0][1]
        if self.peek() != "-" or self.text[self.at + 1 : self.at + 2] in ("]", "") or not single:
            return part.ranges
        self.at += 1
        last = self.member()
        if len(last.ranges) != 1 or last.ranges[0][0] != last.ranges[0][1]:
            return normal_ranges((*part.ranges, (0x2D, 0x2D), *last.ranges))
        low, high = part.ranges[0][0], last.ranges[0][0]
        if low > high:
            raise RegexError("a class range is the wrong way round", self.at)
        return normal_ranges(((low, high),))
