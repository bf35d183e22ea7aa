"""SlotPenalties: occurrence counts and penalty parameters by slot (spec 93-98, R24)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.reference import Penalties, reparent_counts, reset_counts
from shared.bitmask import num_words
from shared.sampling_params import SamplingParams

MOST = np.iinfo(np.uint16).max


def has_penalties(params: SamplingParams) -> bool:
    """Whether any of the three penalties is not neutral."""
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


class SlotPenalties:
    """Counts uint16 [slots, V] and prompt bits int32 [slots, W], made at the first request with a penalty; a page of them is
    touched only for a slot that needs it. Bound: slots * (2 * V + V / 8) bytes. A token counts up to 65,535 times.

    ``set`` gives a slot to a prompt, ``catch_up`` adds committed tokens that were not counted yet.
    """

    def __init__(self, slots: int, vocab_size: int) -> None:
        self._slots, self._vocab_size = slots, vocab_size
        self._parameters = np.array([[1.0], [0.0], [0.0]], np.float32).repeat(slots, axis=1)
        self._state_row = np.full(slots, -1, np.int32)
        self._num_counted = [0] * slots
        self._counted_in: list[NDArray[np.uint16] | None] = [None] * slots
        self._counts: torch.Tensor | None = None
        self._seen: torch.Tensor | None = None

    def set(self, slot: int, params: SamplingParams, prompt: Sequence[int]) -> None:
        """Ids of the prompt outside the vocabulary are dropped (spec 97)."""
        self._state_row[slot], self._num_counted[slot], self._counted_in[slot] = -1, 0, None
        if not has_penalties(params):
            return
        counts, seen = self._state()
        reset_counts(counts, seen, slot, _i32(prompt), min(params.prompt_ignore_length, len(prompt)))
        self._state_row[slot], self._counted_in[slot] = slot, counts[slot].numpy()
        self._parameters[:, slot] = params.repetition_penalty, params.presence_penalty, params.frequency_penalty

    def catch_up(self, slot: int, tokens: Sequence[int]) -> None:
        """``tokens``: all committed output tokens of the slot's owner. Costs what is new."""
        row = self._counted_in[slot]
        if row is not None:
            for token_id in tokens[self._num_counted[slot] :]:  # one, but for a sequence that had tokens before it had the slot
                row[token_id] += row[token_id] < MOST
            self._num_counted[slot] = len(tokens)

    def branch(self, parent: int, child: int) -> None:
        """The child's slot takes over the parent's counts; both have the same prompt and parameters."""
        if self._counts is not None and self._counted_in[parent] is not None:
            reparent_counts(self._counts, _i32([child]), _i32([parent]))
        self._num_counted[child] = self._num_counted[parent]

    def rows(self) -> Penalties | None:
        """Parameters of a launch, one row a slot; counts and bits are the state itself, to be read before the next ``catch_up``."""
        if self._counts is None or self._seen is None or (self._state_row < 0).all():
            return None
        repetition, presence, frequency = (torch.from_numpy(row.copy()) for row in self._parameters)
        slot = torch.from_numpy(self._state_row.copy())
        return Penalties(repetition, presence, frequency, slot, self._counts, self._seen)

    def _state(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._counts is None or self._seen is None:
            # Zero pages of the system: nothing is used before it is written.
            self._counts = torch.from_numpy(np.zeros((self._slots, self._vocab_size), np.uint16))
            self._seen = torch.from_numpy(np.zeros((self._slots, num_words(self._vocab_size)), np.int32))
        return self._counts, self._seen


def _i32(ids: Sequence[int]) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int32)
