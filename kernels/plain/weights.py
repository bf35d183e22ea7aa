"""Exact weights: the exponential in fp32, its value in 2^-44 fixed point, sums and shares in integers.

    c = min(fl32(log2e / T), FLT_MAX);  b = -fl32(xmax * c)
    exponent(x) = fma(x, c, b)                      if |b| < 2^20
                  fl32(fl32(x - xmax) * c)          otherwise (the rounding of b would no longer be small)
    mass(x) = round_half_even(fl32(2^exponent(x)) * 2^44)

fl32 is one rounding to fp32. 2^e is the float64 power rounded to fp32: correctly rounded but for one case in 2^28. A
GPU's ex2.approx may differ in the last bit; everything after it is integer and must be identical.
"""

import math

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Masses = NDArray[np.uint64]

UNIT_BITS = 44
UNIT = 1 << UNIT_BITS
LOG2E = np.float32(1.4426950408889634)
_FLT_MAX = float(np.finfo(np.float32).max)
_NEAR = 2.0**20
_TAIL = np.int64(0x1FFFFFFF)  # bits of a float64 mantissa that fp32 does not keep
_HALF = np.int64(0x10000000)


def fma32(a: F32 | np.float32, b: F32 | np.float32, c: F32 | np.float32) -> F32:
    """a * b + c with one rounding to fp32, whatever the hardware."""
    product = np.asarray(a, dtype=np.float64) * np.asarray(b, dtype=np.float64)
    addend = np.asarray(c, dtype=np.float64)
    total = np.atleast_1d(product + addend)
    halfway = np.flatnonzero((total.view(np.int64) & _TAIL) == _HALF)
    if halfway.size:  # the float64 sum may itself have been rounded to that half: the lost part decides
        product, addend = (np.broadcast_to(v, total.shape)[halfway] for v in (product, addend))
        total[halfway] = _nudge(total[halfway], product, addend)
    with np.errstate(over="ignore"):
        return total.astype(np.float32)


def _nudge(total: F64, product: F64, addend: F64) -> F64:
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    return np.where(lost > 0, np.nextafter(total, np.inf), np.where(lost < 0, np.nextafter(total, -np.inf), total))


def exponents(x: F32, xmax: np.float32, temperature: np.float32) -> F32:
    """Base-2 logarithm of the weights, about (x - xmax) / T * log2(e); about 0 at xmax, which must be finite."""
    with np.errstate(over="ignore", divide="ignore"):
        scale = np.float32(min(float(np.float32(LOG2E / temperature)), _FLT_MAX))
        shift = -np.float32(xmax * scale)
        if abs(shift) < _NEAR:
            return fma32(x, scale, shift)
        return (x - xmax).astype(np.float32) * scale


def masses(x: F32, xmax: np.float32, temperature: np.float32) -> Masses:
    """Weights in units of 2^-44; 0 below 2^-45 of the maximum."""
    with np.errstate(under="ignore"):
        weight = np.exp2(exponents(x, xmax, temperature).astype(np.float64)).astype(np.float32)
    return np.rint(weight.astype(np.float64) * UNIT).astype(np.uint64)


def total_mass(values: Masses) -> int:
    """Exact for up to 2^18 weights."""
    return int(values.sum(dtype=np.uint64))


def share(top_p: float, mass: int) -> int:
    """ceil(p * mass) for the exact value of the fp32 p."""
    numerator, denominator = float(np.float32(top_p)).as_integer_ratio()
    return -(-numerator * mass // denominator)


def high64(bits: int, mass: int) -> int:
    """floor(bits / 2^64 * mass): the 64 random bits as a fraction of the mass."""
    return bits * mass >> 64


def high64_many(bits: Masses, mass: int) -> Masses:
    """`high64` of many bits with one mass below 2^64, in 32-bit limbs."""
    low_mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    mass_low, mass_high = np.uint64(mass & 0xFFFFFFFF), np.uint64(mass >> 32)
    low, high = bits & low_mask, bits >> shift
    middle = high * mass_low + (low * mass_low >> shift)
    result: Masses = high * mass_high + (middle >> shift) + (low * mass_high + (middle & low_mask) >> shift)
    return result


def min_p_threshold(xmax: np.float32, temperature: np.float32, min_p: np.float32) -> np.float32:
    """fma(T, ln(min_p), xmax), never above xmax; the logarithm is the float64 one rounded to fp32."""
    log_min_p = np.float32(math.log(float(min_p)))
    threshold: np.float32 = np.minimum(fma32(temperature, log_min_p, xmax)[0], xmax)
    return threshold
