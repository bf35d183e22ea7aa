"""Seeds: what key and counter the random bits of a sequence come from (spec 88-90, R18)."""

from __future__ import annotations

import secrets

from shared.sampling_params import SamplingParams

GLOBAL_SEED = 42
FIRST_SHARED_OFFSET = 1 << 62
"""The shared stream of deterministic requests starts here, so that a user's own seed 42 cannot collide with it (spec 89)."""


class SeedSource:
    """Gives each sequence its (seed, first offset). A seeded one counts its own output positions from 0, whatever the batch."""

    def __init__(self) -> None:
        self._shared_offset = FIRST_SHARED_OFFSET

    def assign(self, params: SamplingParams, child: int, max_tokens: int) -> tuple[int, int]:
        """Signed 64-bit seed and the offset of output position 0. ``child`` is the index among n."""
        seed = params.signed_seed(child)
        if seed is not None:
            return seed, 0
        if not params.deterministic:
            return secrets.randbits(64) - (1 << 63), 0
        start = self._shared_offset
        self._shared_offset += max_tokens
        return GLOBAL_SEED, start
