"""Sets of numbers as regex trees over their decimal spelling.

Where nothing but the sign is bounded, all JSON spellings are allowed. Otherwise numbers are written without an exponent, and
integers without a fraction: narrower, never wider, because a spelling without exponent is compared digit by digit. Trees
that are complemented hold every spelling without exponent (trailing zeros too).
"""

from __future__ import annotations

import json
from fractions import Fraction
from functools import lru_cache

from grammar_service.regex_resolve import whole_language
from grammar_service.regex_tree import NEVER, Tree, alt, both, cat, chars, literal, negate, rep
from grammar_service.schema.binary_reading import off_integers, off_multiples, off_value
from grammar_service.schema.numbers import Numbers

DIGIT = chars((0x30, 0x39))
NONZERO = chars((0x31, 0x39))
NATURAL = whole_language("0|[1-9][0-9]*")
FRACTION = whole_language(r"\.[0-9]+")
ANY_NUMBER = whole_language(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
ANY_INTEGER = whole_language("-?(?:0|[1-9][0-9]*)")
PLAIN_NUMBER = whole_language(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
ZEROS = rep(chars((0x30, 0x30)), 0, None)
MINUS = literal("-")
# With an exponent only small ones, so that no binary reading of the number becomes zero; without one any size may be written, since
# the sign of a number stays even where a reader rounds it to infinity.
_NOT_NEGATIVE = alt(
    whole_language(r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"),
    whole_language(r"(?:0|[1-9][0-9]{0,20})(?:\.[0-9]{1,20})?[eE][+-]?[0-9]{1,2}"),
)
_POSITIVE = alt(
    whole_language(r"[1-9][0-9]*(?:\.[0-9]+)?"),
    whole_language(r"[1-9][0-9]{0,20}(?:\.[0-9]{1,20})?[eE][+-]?[0-9]{1,2}"),
    whole_language(r"0\.[0-9]{0,19}[1-9][0-9]{0,19}(?:[eE][+-]?[0-9]{1,2})?"),
)
MAX_SUFFIXES = 1_000


def number_tree(case: Numbers) -> Tree | None:
    """The spellings of the members; None where only the engine's own number front can tell multiples (see
    ``engine_schema``)."""
    step = case.step()
    if case == Numbers(origin=case.origin):
        return ANY_NUMBER
    listed = case.listed(200)
    if listed is not None:
        return alt(*(literal(spelled(value)) for value in listed))
    if step is None and not case.non_multiples and not case.excluded and (signed := _signed(case)) is not None:
        return signed
    parts = [_range(case, whole=step == 1)]
    if step not in (None, Fraction(1)):
        multiple = multiple_tree(step or Fraction(1), all_spellings=False)
        if multiple is None:
            return None
        parts.append(multiple)
    parts += _read_in_binary(case, whole=step is not None and step.denominator == 1)
    banned = [literal_spellings(value) for value in sorted(case.excluded)]
    for other in sorted(case.non_multiples - {1}):
        tree = multiple_tree(other, all_spellings=True)
        if tree is None:
            return None
        banned.append(tree)
    return both(*parts, *(negate(tree) for tree in banned))


def engine_schema(case: Numbers) -> str | None:
    """A JSON schema of the engine's own for steps without a small regular form; None where it cannot say the rest."""
    step = case.step()
    if step is None or case.non_multiples or case.excluded or step.numerator >= 2**31 or step.denominator not in _POWERS:
        return None
    schema: dict[str, object] = {"type": "integer" if step.denominator == 1 else "number", "multipleOf": _json(step)}
    for bound, is_open, closed_name, open_name in (
        (case.low, case.low_open, "minimum", "exclusiveMinimum"),
        (case.high, case.high_open, "maximum", "exclusiveMaximum"),
    ):
        if bound is not None:
            if abs(bound) >= 2**53 or bound.denominator not in _POWERS:
                return None
            schema[open_name if is_open else closed_name] = _json(bound)
    return json.dumps(schema)


_POWERS = frozenset(10**power for power in range(10)) | frozenset((2, 4, 5, 8, 16, 20, 25, 40, 50, 125, 200, 250, 500))


def _json(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def spelled(value: Fraction) -> str:
    """The shortest decimal spelling; the denominator has only the factors 2 and 5 (it was written in decimal)."""
    if value.denominator == 1:
        return str(value.numerator)
    digits = 0
    while (value * 10**digits).denominator != 1:
        digits += 1
    whole, rest = divmod(int(abs(value) * 10**digits), 10**digits)
    return f"{'-' if value < 0 else ''}{whole}.{rest:0{digits}d}"


def literal_spellings(value: Fraction) -> Tree:
    """Every spelling of one number without exponent."""
    whole, _, rest = spelled(abs(value)).partition(".")
    fraction = cat(literal("." + rest), ZEROS) if rest else alt(literal(""), cat(literal("."), rep(literal("0"), 1, None)))
    body = cat(literal(whole), fraction)
    return alt(body, cat(MINUS, body)) if value == 0 else cat(MINUS, body) if value < 0 else body


def _signed(case: Numbers) -> Tree | None:
    """Bounds that only fix the sign: exponents are no danger."""
    if case.high is None and case.low == 0:
        return _POSITIVE if case.low_open else _NOT_NEGATIVE
    if case.low is None and case.high == 0:
        negative = cat(MINUS, _POSITIVE)
        return negative if case.high_open else alt(literal("0"), negative)
    return None


def _read_in_binary(case: Numbers, whole: bool) -> list[Tree]:
    """What keeps a binary reader's rounding from moving a member out of the set: off integers, open bounds and single values."""
    if whole:
        return []
    values = set(case.excluded)
    values |= {
        bound for bound, is_open in ((case.low, case.low_open), (case.high, case.high_open)) if bound is not None and is_open
    }
    apart = {tree for value in values if (tree := off_value(value)) is not None}
    steps = {off_integers() if step == 1 else off_multiples(_places(step)) for step in case.non_multiples}
    return [*steps, *apart]


def _places(step: Fraction) -> int:
    """Decimals of a step; more than 12 are refused elsewhere."""
    return next((places for places in range(13) if (step * 10**places).denominator == 1), 12)


def _range(case: Numbers, whole: bool) -> Tree:
    low, high = case.low, case.high
    if low is None and high is None:
        return ANY_INTEGER if whole else PLAIN_NUMBER
    positive = _magnitudes(max(low, Fraction(0)) if low is not None else Fraction(0),
                           case.low_open and low is not None and low >= 0, high, case.high_open, whole)  # fmt: skip
    top = Fraction(0) if high is None else max(-high, Fraction(0))
    negative = _magnitudes(top, (case.high_open and high is not None and high <= 0) or top == 0,
                           None if low is None else -low, case.low_open, whole)  # fmt: skip
    return alt(positive, cat(MINUS, negative))


def _magnitudes(low: Fraction, low_open: bool, high: Fraction | None, high_open: bool, whole: bool) -> Tree:
    """Numbers x without sign with low <= x <= high, low not negative."""
    if high is not None and (high < low or high < 0 or (high == low and (low_open or high_open))):
        return NEVER
    if whole:
        first = int(low) + 1 if low.denominator == 1 and low_open else -((-low.numerator) // low.denominator)
        last = None if high is None else int(high) - 1 if high.denominator == 1 and high_open else int(high)
        return natural_range(first, last)
    above = _from(low, low_open)
    return above if high is None else both(above, _up_to(high, high_open))


def _from(low: Fraction, is_open: bool) -> Tree:
    whole, digits = _parts(low)
    some = rep(DIGIT, 0, None)
    here = [cat(literal("." + digits[:at]), chars((ord(digit) + 1, 0x39)), some)
            for at, digit in enumerate(digits) if digit < "9"]  # fmt: skip
    if digits:
        here.append(cat(literal("." + digits), cat(ZEROS, NONZERO, some) if is_open else some))
    elif is_open:
        here.append(cat(literal("."), ZEROS, NONZERO, some))
    else:
        here.append(rep(FRACTION, 0, 1))
    return alt(cat(natural_range(whole + 1, None), rep(FRACTION, 0, 1)), *(cat(literal(str(whole)), tail) for tail in here))


def _up_to(high: Fraction, is_open: bool) -> Tree:
    whole, digits = _parts(high)
    some = rep(DIGIT, 0, None)
    here: list[Tree] = [cat(literal("." + digits[:at]), chars((0x30, ord(digit) - 1)), some)
                        for at, digit in enumerate(digits) if digit > "0"]  # fmt: skip
    if digits:
        here += [literal("." + digits[:at]) if at else literal("") for at in range(len(digits))]
    if not is_open:
        zeros = alt(literal(""), cat(literal("."), rep(literal("0"), 1, None)))
        here.append(cat(literal("." + digits), ZEROS) if digits else zeros)
    below = cat(natural_range(0, whole - 1), rep(FRACTION, 0, 1)) if whole > 0 else NEVER
    return alt(below, *(cat(literal(str(whole)), tail) for tail in here))


def _parts(value: Fraction) -> tuple[int, str]:
    whole, _, digits = spelled(value).partition(".")
    return int(whole), digits


@lru_cache(maxsize=4096)
def natural_range(low: int, high: int | None) -> Tree:
    """Naturals from ``low`` to ``high`` without leading zeros, of any size."""
    low = max(low, 0)
    if high is None:
        width = len(str(low))
        longer = cat(NONZERO, rep(DIGIT, width, None))
        return NATURAL if low == 0 else alt(_same_width(str(low), "9" * width), longer)
    if high < low:
        return NEVER
    options: list[Tree] = []
    for width in range(len(str(low)), len(str(high)) + 1):
        first = str(max(low, 10 ** (width - 1) if width > 1 else 0))
        options.append(_same_width(first, str(min(high, 10**width - 1))))
    return alt(*options)


def _same_width(low: str, high: str) -> Tree:
    """Digit strings between two of the same width."""
    if not low:
        return literal("")
    rest = len(low) - 1
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        return cat(chars((ord(low[0]), ord(high[0]))), rep(DIGIT, rest, rest) if rest else literal(""))
    if low[0] == high[0]:
        return cat(literal(low[0]), _same_width(low[1:], high[1:]))
    middle = chars((ord(low[0]) + 1, ord(high[0]) - 1)) if ord(high[0]) - ord(low[0]) > 1 else NEVER
    return alt(
        cat(literal(low[0]), _same_width(low[1:], "9" * rest)),
        cat(middle, rep(DIGIT, rest, rest) if rest else literal("")),
        cat(literal(high[0]), _same_width("0" * rest, high[1:])),
    )


@lru_cache(maxsize=512)
def multiple_tree(step: Fraction, *, all_spellings: bool) -> Tree | None:
    """Spellings of the multiples of ``step``, sign included, no exponent; None where there is no small regular form.

    ``step`` is p / 10^k in lowest terms for the smallest k. A number is a multiple when its digits up to k places form a
    natural divisible by p and no other digit but 0 follows. For p dividing 10^j the last j digits decide.
    """
    places = 0
    while (step * 10**places).denominator != 1:
        places += 1
        if places > 12:
            return None
    numerator = int(step * 10**places)
    width = 0
    while 10**width % numerator != 0:
        width += 1
        if width > 3:
            return None
    suffixes = [f"{index * numerator:0{width}d}" for index in range(10**width // numerator)] if width else [""]
    found = alt(*(_with_suffix(suffix, places, all_spellings) for suffix in suffixes))
    return cat(rep(MINUS, 0, 1), found)


def _with_suffix(suffix: str, places: int, all_spellings: bool) -> Tree:
    """Numbers whose digits up to ``places`` decimals end in ``suffix``; missing decimals are zeros."""
    extra = rep(literal("0"), 0, None) if all_spellings else literal("")
    options: list[Tree] = []
    for cut in range(places + 1):  # decimals written before trailing zeros
        missing = places - cut
        if suffix[len(suffix) - missing :].strip("0") and missing:
            continue
        kept = suffix[: len(suffix) - missing] if missing else suffix
        options.append(_digits_ending(kept, cut, extra if cut == places else literal("")))
    if places == 0 and all_spellings:
        options.append(cat(_digits_ending(suffix, 0, literal("")), literal("."), rep(literal("0"), 1, None)))
    return alt(*options)


def _digits_ending(suffix: str, decimals: int, extra: Tree) -> Tree:
    """A number with ``decimals`` written decimals whose digits end in ``suffix``."""
    inside = suffix[len(suffix) - decimals :] if decimals else ""
    free = rep(DIGIT, decimals - len(inside), decimals - len(inside)) if decimals > len(inside) else literal("")
    before = suffix[: max(len(suffix) - decimals, 0)]
    padded = before.lstrip("0") or "0"
    whole = NATURAL if not before else alt(cat(NONZERO, rep(DIGIT, 0, None), literal(before)), literal(padded))
    return cat(whole, literal("."), free, literal(inside), extra) if decimals else cat(whole, extra)
