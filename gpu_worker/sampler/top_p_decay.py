"""Top-p that changes from token to token (spec 106)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class TopPDecay:
    """After each token: p = initial where the token is ``reset_id``, else max(p * decay, minimum), each operation in fp32."""

    initial: float
    decay: float
    minimum: float
    reset_id: int
    value: np.float32 = field(init=False)

    def __post_init__(self) -> None:
        self.value = np.float32(self.initial)

    def push(self, token_id: int) -> None:
        if token_id == self.reset_id:
            self.value = np.float32(self.initial)
        else:
            self.value = np.maximum(self.value * np.float32(self.decay), np.float32(self.minimum))
