"""What a grammar of numbers writes is a member of the set for a reader in 64-bit binary, too. # spec R1"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from grammar_service.regex_language import matches
from grammar_service.schema.number_syntax import number_tree
from grammar_service.schema.numbers import Numbers

INTEGER = frozenset({Fraction(1)})
bounds = st.sampled_from([Fraction(n, 100) for n in (-300, -50, 1, 50, 100, 250, 9000, 18000, 99999)] + [Fraction(12345678)])
runs = st.builds(
    lambda digit, length, tail: digit * length + tail,
    st.sampled_from("0959"),
    st.integers(0, 25),
    st.from_regex("[0-9]{0,4}", fullmatch=True),
)


@st.composite
def near(draw: Any, value: Fraction) -> str:
    """A spelling that begins like ``value``, or like a number a little below it, and goes on in long runs."""
    text = f"{abs(value.numerator) / value.denominator:.2f}" if draw(st.booleans()) else str(max(int(abs(value)) - 1, 0)) + "."
    text = text + ("." if "." not in text else "") + draw(runs)
    return ("-" if value < 0 else "") + (text + "0" if text.endswith(".") else text)


@given(bounds, st.sampled_from(["low", "high", "excluded"]), st.data())
def test_no_rounding_onto_an_open_bound_or_a_single_value(bound: Fraction, side: str, data: Any) -> None:  # spec R1
    case = {
        "low": Numbers(bound, True),
        "high": Numbers(None, False, bound, True),
        "excluded": Numbers(excluded=frozenset({bound})),
    }[side]
    tree = number_tree(case)
    assert tree is not None
    text = data.draw(near(bound))
    if matches(tree, text):
        assert case.holds(Fraction(text)) and case.holds(Fraction(float(text))), (text, case)


@given(st.integers(0, 10**18), runs)
@example(1200000000000000, "1")
@example(0, "99999999999999999999")
def test_no_rounding_onto_an_integer(whole: int, fraction: str) -> None:  # spec R1
    case = Numbers(non_multiples=INTEGER)
    tree = number_tree(case)
    text = f"{whole}.{fraction or '0'}"
    assert tree is not None
    if matches(tree, text):
        assert case.holds(Fraction(text)) and case.holds(Fraction(float(text))), text


@given(st.integers(-9_999_999, 9_999_999), st.integers(0, 5), st.sampled_from([Fraction(-3), Fraction(1), Fraction(90)]))
def test_numbers_of_seven_digits_are_written_as_ever(digits: int, places: int, bound: Fraction) -> None:
    value = Fraction(digits, 10**places)
    text = f"{digits / 10**places:.{places}f}"
    for case in (Numbers(bound, True), Numbers(None, False, bound, True), Numbers(non_multiples=INTEGER)):
        tree = number_tree(case)
        assert tree is not None
        plain = places > 0 or case.non_multiples != INTEGER
        if not text.startswith("-0") or "." in text:
            assert matches(tree, text) == (case.holds(value) and plain), (text, case)
