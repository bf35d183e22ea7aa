"""Every variant of every kernel: what the compile check builds, and what is loaded before a graph is captured."""

from __future__ import annotations

from kernels import beam, bitmask, finish, logprobs, penalties, probability, sample, step, verify, weights
from kernels.build import Variant, load


def all_variants() -> list[Variant]:
    """Each variant once, in a fixed order."""
    groups = (bitmask, sample, logprobs, verify, probability, penalties, finish, beam, weights, step)
    return [variant for group in groups for variant in group.variants()]


def load_all(variants: list[Variant] | None = None) -> None:
    """Build (or take from the cache) and load variants, so that nothing is loaded while a graph is captured or waits."""
    for variant in all_variants() if variants is None else variants:
        load(variant)
