"""Numbers that a reader in 64-bit binary takes for what they are: its rounding moves none onto a bound or a multiple.

A reader rounds a decimal number to 53 bits: what lies within half a unit of the last bit of a value becomes that value, and
``1200000000000000.1`` becomes an integer. Each language here leaves such spellings out, and as few others as a short regular form
can.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from grammar_service.regex_resolve import whole_language
from grammar_service.regex_tree import Tree, alt, cat, chars, negate, rep

DIGITS = 15
"""A binary double tells decimals of this many significant digits apart (DBL_DIG of C)."""
SHORTEST_RUN = 2
_DIGIT = chars((0x30, 0x39))


@lru_cache(maxsize=1)
def off_integers() -> Tree:
    """Spellings without exponent of numbers that are no integers, read in decimal or in binary.

    With L digits before the point and a distance of at least 10^-k to the next integer, L + k <= 15 keeps the number off that
    integer: half a unit of the last bit is below 10^L * 2^-53 < 10^(L - 15). A fraction is 10^-k off where its first k digits are
    neither all 0 nor all 9. Next to 0 any fraction is off it.
    """
    options = [
        whole_language(
            rf"-?0\.0{{0,{4 * DIGITS}}}[1-8][0-9]*|-?0\.0{{1,{4 * DIGITS}}}9[0-9]*|-?0\.9{{1,{DIGITS - 2}}}(?:[0-8][0-9]*)?"
        )
    ]
    for length in range(1, DIGITS):
        places = DIGITS - length
        tails = [r"[1-8][0-9]*"]
        if places > 1:
            tails.append(rf"0{{1,{places - 1}}}[1-9][0-9]*")
        tails.append(rf"9{{1,{places - 1}}}(?:[0-8][0-9]*)?" if places > 1 else "9")
        options.append(whole_language(rf"-?[1-9][0-9]{{{length - 1}}}\.(?:{'|'.join(tails)})"))
    return alt(*options)


@lru_cache(maxsize=DIGITS)
def off_multiples(places: int) -> Tree:
    """Spellings without exponent that a binary reader takes for a multiple of a step with ``places`` decimals only if they are one.

    Whole numbers are read as they are. A number of L digits before the point and f behind it with L + max(f, places) <= 15 is told
    from every multiple near it, since those have as few digits. A longer one has to be off the multiples of 10^-places, as
    ``off_integers`` has it, ``places`` digits further on.
    """
    options = [whole_language(r"-?(?:0|[1-9][0-9]*)")]
    for length in range(1, DIGITS - places):
        whole = rf"-?[1-9][0-9]{{{length - 1}}}" if length > 1 else "-?[0-9]"
        options.append(whole_language(rf"{whole}\.[0-9]{{1,{DIGITS - length}}}"))
        left = DIGITS - length - places
        tails = [r"[1-8][0-9]*"]
        if left > 1:
            tails += [rf"0{{1,{left - 1}}}[1-9][0-9]*", rf"9{{1,{left - 1}}}[0-8][0-9]*"]
        options.append(whole_language(rf"{whole}\.[0-9]{{{places}}}(?:{'|'.join(tails)})"))
    return alt(*options)


def off_value(value: Fraction) -> Tree | None:
    """Spellings without exponent, less those that differ from ``value`` only behind a run of 0s or 9s so long that a binary reader
    takes them for it. None where nothing is to be left out: 0 is told from every other number.

    A number that agrees with ``value`` (L digits before the point, f behind it) for n more digits is more than 10^-(f + n + 1) off;
    n = 14 - L - f keeps that above 10^(L - 15) where L counts one digit more than ``value`` has (9.99 beside 10).
    """
    if value == 0:
        return None
    whole, places = str(abs(int(value))), 0
    while (value * 10**places).denominator != 1:
        places += 1
    return _without_runs(max(DIGITS - 2 - len(whole) - places, SHORTEST_RUN))


@lru_cache(maxsize=DIGITS)
def _without_runs(length: int) -> Tree:
    """No ``length`` nines in a row behind the point, nor as many zeros before another digit."""
    some = rep(_DIGIT, 0, None)
    run = whole_language(rf"0{{{length},}}[1-9]|9{{{length}}}")
    return negate(cat(whole_language(r"-?[0-9]*\."), some, run, some))
