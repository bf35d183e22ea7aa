"""The set of numbers between bounds, multiples of some steps, no multiples of others, without single values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, floor, lcm

from grammar_service.keyed import keyed

NO_FRACTIONS: frozenset[Fraction] = frozenset()


@keyed
@dataclass(frozen=True)
class Numbers:
    """An integer is a multiple of 1. ``low`` and ``high`` may be None; ``*_open`` leaves the bound itself out."""

    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False
    multiples: frozenset[Fraction] = NO_FRACTIONS
    non_multiples: frozenset[Fraction] = NO_FRACTIONS
    excluded: frozenset[Fraction] = NO_FRACTIONS
    origin: str = field(default="", compare=False)

    def meet(self, other: Numbers) -> Numbers:
        low, low_open = _tighter(self.low, self.low_open, other.low, other.low_open, 1)
        high, high_open = _tighter(self.high, self.high_open, other.high, other.high_open, -1)
        return Numbers(
            low, low_open, high, high_open, self.multiples | other.multiples, self.non_multiples | other.non_multiples,
            self.excluded | other.excluded, self.origin or other.origin,
        )  # fmt: skip

    def complement(self) -> list[Numbers]:
        """Numbers outside: below, above, off a step, on a forbidden step, or one of the single values (De Morgan)."""
        out: list[Numbers] = []
        if self.low is not None:
            out.append(Numbers(high=self.low, high_open=not self.low_open))
        if self.high is not None:
            out.append(Numbers(low=self.high, low_open=not self.high_open))
        out.extend(Numbers(non_multiples=frozenset({step})) for step in self.multiples)
        out.extend(Numbers(multiples=frozenset({step})) for step in self.non_multiples)
        out.extend(Numbers(low=value, high=value) for value in self.excluded)
        return [replace(entry, origin=self.origin) for entry in out]

    def step(self) -> Fraction | None:
        """The one step that all multiples together mean: least common multiple of the reduced fractions."""
        if not self.multiples:
            return None
        steps = list(self.multiples)
        common = lcm(*(step.denominator for step in steps))
        return Fraction(lcm(*(int(step * common) for step in steps)), common)

    def holds(self, value: Fraction) -> bool:
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.high_open and value == self.high)):
            return False
        on_steps = all(value % step == 0 for step in self.multiples)
        return on_steps and not any(value % step == 0 for step in self.non_multiples) and value not in self.excluded

    def listed(self, limit: int) -> list[Fraction] | None:
        """All members in rising order where they are at most ``limit`` multiples of a step, else None."""
        step = self.step()
        if step is None or self.low is None or self.high is None:
            if self.low is not None and self.low == self.high:
                return [self.low] if self.holds(self.low) else []
            return None
        first, last = ceil(self.low / step), floor(self.high / step)
        if last - first > limit + len(self.excluded):
            return None
        found = [index * step for index in range(first, last + 1)]
        return [value for value in found if self.holds(value)]

    def is_empty(self) -> bool:
        if self.low is not None and self.high is not None:
            if self.low > self.high or (self.low == self.high and (self.low_open or self.high_open)):
                return True
            listed = self.listed(64)
            if listed is not None:
                return not listed
        step = self.step()
        return step is not None and any((step / other).denominator == 1 for other in self.non_multiples)


def _tighter(a: Fraction | None, a_open: bool, b: Fraction | None, b_open: bool, sign: int) -> tuple[Fraction | None, bool]:
    if a is None or b is None:
        return (b, b_open) if a is None else (a, a_open)
    if a == b:
        return a, a_open or b_open
    return (a, a_open) if (a - b) * sign > 0 else (b, b_open)
