"""SlotSamplingParams: the parameters of each slot in stacked arrays, with an owner check."""

from __future__ import annotations

import numpy as np
import torch

from kernels.reference import SampleRows
from shared.sampling_params import RowParams


class SlotSamplingParams:
    """Per-slot state (persistent), read as per-row data of a launch. Reading a slot for another owner raises."""

    def __init__(self, slots: int) -> None:
        self._owner = np.zeros(slots, np.int64)
        self._temperature = np.ones(slots, np.float32)
        self._top_k = np.zeros(slots, np.int32)
        self._top_p = np.ones(slots, np.float32)
        self._min_p = np.zeros(slots, np.float32)
        self._seed = np.zeros(slots, np.int64)
        self._first_offset = np.zeros(slots, np.int64)

    def set(self, slot: int, owner: int, params: RowParams, seed: int, first_offset: int) -> None:
        """Gives the slot to ``owner`` (an epoch, not 0)."""
        self._owner[slot] = owner
        self._temperature[slot], self._top_k[slot] = params.temperature, min(params.top_k, 2**31 - 1)
        self._top_p[slot], self._min_p[slot] = params.top_p, params.min_p
        self._seed[slot], self._first_offset[slot] = seed, first_offset

    def set_top_p(self, slot: int, value: float) -> None:
        """The top-p of the next launches, where it decays from token to token."""
        self._top_p[slot] = value

    def check_owners(self, owners: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """``owners`` int64 [slots], 0 where nobody asks. Raises ValueError where one does not own its slot."""
        wrong = np.flatnonzero((owners != 0) & (owners != self._owner))
        if wrong.size:
            slot = int(wrong[0])
            raise ValueError(f"slot {slot} belongs to {self._owner[slot]}, not to {owners[slot]}")

    def rows(self, output_positions: np.ndarray[tuple[int], np.dtype[np.int64]]) -> SampleRows:
        """Rows of a launch, one a slot; ``output_positions`` int64 [slots] are absolute output positions."""
        return SampleRows(
            temperature=torch.from_numpy(self._temperature.copy()),
            top_k=torch.from_numpy(self._top_k.copy()),
            top_p=torch.from_numpy(self._top_p.copy()),
            min_p=torch.from_numpy(self._min_p.copy()),
            seed=torch.from_numpy(self._seed.copy()),
            offset=torch.from_numpy(self._first_offset + output_positions),
        )
