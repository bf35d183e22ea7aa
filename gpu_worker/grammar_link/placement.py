"""Where a guide's work goes: rendezvous hash of its key over the services, with bounded load."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence


def ranking(key: str, instances: Sequence[str]) -> list[str]:
    """Instances from most to least preferred for ``key``. One that comes or goes leaves the order of the others as it was."""
    return sorted(instances, key=lambda instance: (_score(key, instance), instance), reverse=True)


def choose(key: str, loads: Mapping[str, int], factor: float) -> str | None:
    """The first of the ranking with fewer than ``factor`` times the mean load (this session counted); None without instances."""
    if not loads:
        return None
    bound = math.ceil(factor * (sum(loads.values()) + 1) / len(loads))
    order = ranking(key, list(loads))
    return next((instance for instance in order if loads[instance] < bound), order[0])


def _score(key: str, instance: str) -> bytes:
    return hashlib.blake2b(f"{key}/{instance}".encode(), digest_size=8).digest()
