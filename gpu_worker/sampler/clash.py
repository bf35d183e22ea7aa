"""Who is to blame where nothing is allowed: the fewest sources that leave no token together. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Allowed = NDArray[np.bool_]


def clash(sources: Mapping[str, Allowed]) -> list[str]:
    """Names of sources (bool [V], what each allows) without a common token, none of which can be left out; empty where they do
    have one. Later sources are left out first."""
    kept = list(sources)
    if not kept or _common(sources, kept):
        return []
    for name in reversed(list(sources)):
        rest = [other for other in kept if other != name]
        if rest and not _common(sources, rest):
            kept = rest
    return kept


def _common(sources: Mapping[str, Allowed], names: list[str]) -> bool:
    return bool(np.logical_and.reduce([sources[name] for name in names]).any())
