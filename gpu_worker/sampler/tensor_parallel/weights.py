"""Masses in 2^-44 fixed point, bitwise those of the reference, over whole batches: fp32 exponents with one rounding, the float64
power rounded to fp32, then integers. Sums, shares and draws are exact."""

from __future__ import annotations

import torch
from torch import Tensor

UNIT_BITS = 44
_UNIT = float(1 << UNIT_BITS)
_NEAR = 2.0**20
_TAIL = 0x1FFFFFFF
_HALF = 0x10000000
_LOW = 0xFFFFFFFF


def fma32(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c of fp32 with one rounding; the product of two fp32 is exact in float64."""
    product = a.double() * b.double()
    addend = c.double().expand_as(product)
    total = product + addend
    halfway = (total.view(torch.int64) & _TAIL) == _HALF
    if product.is_cuda:  # no wait for the host, and few such values
        return torch.where(halfway, _nudged(total, product, addend), total).float()
    if bool(halfway.any()):
        total[halfway] = _nudged(total[halfway], product[halfway], addend[halfway])
    return total.float()


def _nudged(total: Tensor, product: Tensor, addend: Tensor) -> Tensor:
    """A sum that float64 may itself have rounded to halfway between two fp32: the lost part decides."""
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    return torch.where(lost == 0, total, torch.nextafter(total, torch.where(lost > 0, torch.inf, -torch.inf).double()))


def exponents(x: Tensor, xmax: Tensor, scale: Tensor) -> Tensor:
    """Base-2 logarithms of the weights of fp32 x; xmax (finite) and scale broadcast."""
    shift = -(xmax * scale)
    near = shift.abs() < _NEAR
    result = fma32(x, scale, shift)
    if not x.is_cuda and bool(near.all()):
        return result
    return torch.where(near, result, (x - xmax) * scale)


def masses(x: Tensor, xmax: Tensor, scale: Tensor) -> Tensor:
    """int64 weights in units of 2^-44; banned columns (-inf) have none."""
    weight = torch.exp2(exponents(x, xmax, scale).double()).float()
    return torch.round(weight.double() * _UNIT).long()


def share(mantissa: Tensor, exponent: Tensor, mass: Tensor) -> Tensor:
    """ceil(mantissa / 2^exponent * mass) for a mantissa below 2^24, an exponent from 24 and a mass below 2^62."""
    low = mantissa * (mass & 0x7FFFFFFF)
    high = mantissa * (mass >> 31) + (low >> 31)
    low = low & 0x7FFFFFFF
    far = (exponent - 31).clamp(0, 62)
    near = (31 - exponent).clamp(min=0)
    whole = torch.where(exponent >= 31, high >> far, (high << near) | (low >> (31 - near)))
    rest = torch.where(exponent >= 31, (high & ((1 << far) - 1)) | low, low & ((1 << (31 - near)) - 1))
    return whole + (rest != 0)


def high64(bits: Tensor, mass: Tensor) -> Tensor:
    """floor(bits / 2^64 * mass), bits a uint64 in an int64."""
    low, high = bits & _LOW, (bits >> 32) & _LOW
    mass_low, mass_high = mass & _LOW, mass >> 32
    middle = high * mass_low
    carry = ((low * mass_low) >> 32) & _LOW
    first = (middle & _LOW) + (low * mass_high & _LOW) + carry
    return high * mass_high + ((middle >> 32) & _LOW) + ((low * mass_high >> 32) & _LOW) + (first >> 32)


def min_p_threshold(xmax: Tensor, temperature: Tensor, log_min_p: Tensor) -> Tensor:
    """Lowest logit that min_p keeps; -inf where it is off (a NaN logarithm)."""
    limit = torch.minimum(fma32(temperature, log_min_p, xmax), xmax)
    return torch.where(log_min_p.isnan(), -torch.inf, limit)
