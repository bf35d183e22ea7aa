"""What a launch needs to know of the positions behind the first one, where slots carry drafts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.reference import Overlay, SampleRows


@dataclass(frozen=True, slots=True)
class AheadRows:
    """Parameters of one position, a row a slot, as they are if the drafts before it stand: ``rows`` with the offset of that output
    position, ``overlay`` with penalties and bans that have seen those drafts (spec R19)."""

    rows: SampleRows
    overlay: Overlay | None


@dataclass(frozen=True, slots=True)
class Ahead:
    """``depth`` int32 [slots]: positions of each slot that may be sampled, the first included: as many as have a row (spec R6).
    ``positions[j - 1]`` is position j."""

    depth: NDArray[np.int32]
    positions: tuple[AheadRows, ...]
