"""What a launch needs to know of the positions behind the first one, where slots carry drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kernels.reference import Distribution, Overlay, SampleRows


@dataclass(frozen=True, slots=True)
class AheadRows:
    """Parameters of one node, a row a slot, as they are if the drafts above it stand: ``rows`` with the offset of its output
    position, ``overlay`` with penalties and bans that have seen those drafts (spec R19)."""

    rows: SampleRows
    overlay: Overlay | None


@dataclass(frozen=True, slots=True)
class Ahead:
    """``depth`` int32 [slots]: nodes of each slot that may be sampled, the first included: as many as have a row (spec R6).
    ``positions[j - 1]`` is node j: in a chain, position j. ``drafted`` by slot: what each draft was drawn from; a slot that is
    there is verified by rejection, all others by match (spec 122)."""

    depth: NDArray[np.int32]
    positions: tuple[AheadRows, ...]
    drafted: Mapping[int, Sequence[Distribution]] = field(default_factory=dict)
