"""The arithmetic under every kept set: one rounding, fixed point, exact shares."""

from fractions import Fraction

import numpy as np
import pytest

from kernels.plain import weights

F = np.float32


def round32(value: Fraction) -> np.float32:
    """Nearest fp32 of an exact value, ties to even, by comparing with both neighbours."""
    near = F(float(value))
    around = [np.nextafter(near, F(-np.inf)), near, np.nextafter(near, F(np.inf))]
    return min(around, key=lambda c: (abs(Fraction(float(c)) - value), int(c.view(np.int32)) & 1))


def test_fma_rounds_once():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(3000).astype(F), rng.standard_normal(3000).astype(F)
    c = np.where(np.arange(3000) % 2 == 0, -(a * b), rng.standard_normal(3000)).astype(F)  # half of them cancel
    exact = [round32(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))) for x, y, z in zip(a, b, c, strict=True)]
    assert (weights.fma32(a, b, c) == np.array(exact)).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_fma_is_not_rounded_twice(sign):
    a, b, c = F(1 + 2.0**-23), F(1.5), F(2.0**-100)  # a * b lies between two fp32 values; the tiny addend decides
    got = weights.fma32(a, b, F(sign) * c)[0]
    assert got == round32(Fraction(float(a)) * Fraction(float(b)) + sign * Fraction(float(c)))


@pytest.mark.parametrize("temperature", [1e-4, 0.1, 0.6, 1.0, 3.0, 100.0])
def test_masses_follow_the_exponential(temperature):
    x = (np.random.default_rng(1).standard_normal(20000) * 4).astype(F)
    x = x[x > x.max() - 20 * temperature]
    mass = weights.masses(x, x.max(), F(temperature)).astype(np.float64)
    wanted = np.exp2((x.astype(np.float64) - float(x.max())) / temperature * np.log2(np.e))
    best = mass.max() / weights.UNIT  # the rounding of xmax * c, common to all
    bound = 4e-6 if temperature > 0.01 else 5e-3  # |x - xmax| / T of fp32 logits themselves
    assert abs(best - 1) < 0.05
    assert (np.abs(mass / weights.UNIT / best - wanted) <= bound * wanted + 2.0**-44).all()


def test_two_word_fixed_point_equals_one_rounding():
    w = np.exp2(-np.random.default_rng(2).uniform(0, 46, 200000)).astype(F)
    a = w + F(2)
    high = (a - F(2)) * F(2.0**22)
    low = (w - (a - F(2))) * F(2.0**44)
    low = (low * F(2.0**-22) + F(3) - F(3)) * F(2.0**22)
    both = high.astype(np.int64) * (1 << 22) + low.astype(np.int64)
    assert (both == np.rint(w.astype(np.float64) * 2.0**44).astype(np.int64)).all()


def test_weights_below_two_to_the_minus_45_are_zero():
    x = np.array([0, -45 * np.log(2) - 0.01, -44.9 * np.log(2)], F)
    assert weights.masses(x, F(0), F(1)).tolist() == [weights.UNIT, 0, 1]


@pytest.mark.parametrize("level", [0.0, 1e3, 3e6, 1e20, 3e38, -3e38])
@pytest.mark.parametrize("temperature", [1e-45, 1e-4, 1.0, 1e30])
def test_equal_logits_have_equal_masses_near_one_at_any_height(level, temperature):
    mass = weights.masses(np.full(5, level, F), F(level), F(temperature))
    assert len(set(mass.tolist())) == 1
    assert abs(int(mass[0]) / weights.UNIT - 1) < 0.05


def test_share_is_exact():
    mass = (1 << 61) + 12345
    p = F(0.9)
    assert weights.share(float(p), mass) == -(-(Fraction(float(p)) * mass) // 1)
    assert weights.share(float(F(1 - 2.0**-24)), mass) == mass - mass // (1 << 24)
    assert weights.share(1e-45, 10) == 1


def test_high64_of_many_equals_python_integers():
    bits = np.random.default_rng(3).integers(0, 1 << 64, 500, dtype=np.uint64)
    bits[:2] = 0, (1 << 64) - 1
    for mass in (1, 3, 1 << 44, (1 << 62) - 1, (1 << 63) + 12345678901):
        assert weights.high64_many(bits, mass).tolist() == [weights.high64(int(b), mass) for b in bits]


def test_min_p_threshold_never_passes_the_maximum():  # spec 70
    assert weights.min_p_threshold(F(2.5), F(1), F(1)) == F(2.5)
    assert weights.min_p_threshold(F(2.5), F(1), F(1.5)) == F(2.5)
    assert weights.min_p_threshold(F(2.5), F(2), F(0.5)) == pytest.approx(2.5 - 2 * np.log(2), abs=1e-6)
