"""The sealed descriptor of a launch: what each slot does in this step."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.beam.scores import BeamRow, BeamScores
from gpu_worker.sampler.logits_processors import ProcessedRow
from gpu_worker.speculation.ahead import Ahead
from kernels.reference import Overlay, SampleRows


class SlotAction(enum.IntEnum):
    """What a launch does with a slot. Values 0 to 2 are the sampler's row status."""

    UNGUIDED = 0
    GUIDED = 1
    HOLD = 2
    IDLE = 3


@dataclass(slots=True)
class Descriptor:
    """One launch: written by the host, sealed once, read by the device behind the flag.

    ``launch`` is compared with the device's own counter; a mismatch turns every guided row into HOLD. ``action`` int32 [slots]
    (SlotAction); ``bitmask`` int32 [slots * T, W], rows s * T and following are the positions of slot s where its action is GUIDED;
    ``rows`` the parameters, a row a slot, of its first position; ``ahead``: those of the drafted positions; ``num_logprobs``
    alternatives are told beside the sampled token, None: no log-probabilities; ``processed`` bool [slots]: the slots that want
    those of the filtered distribution; ``asking`` bool [slots]: the slots that want any (None: all may be told); ``processing``:
    rows for logits processors, on the host; ``beams``: slots that are scored, not sampled; ``return_logits``: slots whose logits
    are told as the model gave them; ``epoch`` int64 [slots] is the owner's epoch: a launch never acts for an owner that has gone;
    ``position`` int64 [slots]: output positions;
    ``origins``: what each row of ``bitmask`` came from, where another launch may have the same (None: nothing that is known).
    """

    launch: int
    action: NDArray[np.int32]
    bitmask: torch.Tensor
    epoch: NDArray[np.int64]
    rows: SampleRows | None = None
    overlay: Overlay | None = None
    num_logprobs: int | None = None
    processed: NDArray[np.bool_] | None = None
    asking: NDArray[np.bool_] | None = None
    processing: list[ProcessedRow] = field(default_factory=list)
    beams: dict[int, BeamRow] = field(default_factory=dict)
    return_logits: list[int] = field(default_factory=list)
    ahead: Ahead | None = None
    position: NDArray[np.int64] | None = None
    origins: Sequence[Hashable | None] | None = None

    @classmethod
    def holding(cls, launch: int, slots: int, words: int) -> Descriptor:
        """A descriptor in which nothing advances: what the last resort seals."""
        return cls(
            launch=launch,
            action=np.full(slots, SlotAction.HOLD, np.int32),
            bitmask=torch.zeros((slots, words), dtype=torch.int32),
            epoch=np.zeros(slots, np.int64),
        )


@dataclass(slots=True)
class LaunchResult:
    """What a launch did. ``token`` int32 [slots], -1 where the slot did not advance; ``status`` the sampler's status bits;
    ``epoch`` int64 [slots] the owner that each token belongs to; ``node`` int64 [slots] the draft (from 1; 0: the golden token)
    whose row it was (empty: a chain's); ``ahead`` the drafted positions, each as if it were a launch of its own; the rest only
    where asked for."""

    launch: int
    token: NDArray[np.int32]
    status: NDArray[np.int32]
    epoch: NDArray[np.int64]
    action: NDArray[np.int32]
    node: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    logprob: NDArray[np.float32] | None = None
    rank: NDArray[np.int32] | None = None
    top_ids: NDArray[np.int32] | None = None
    top_logprobs: NDArray[np.float32] | None = None
    ahead: list[LaunchResult] = field(default_factory=list)
    forward_s: float = 0.0
    wait_s: float = 0.0
    error: Exception | None = None
    slot_errors: dict[int, Exception] = field(default_factory=dict)
    logits: dict[int, bytes] = field(default_factory=dict)
    scores: dict[int, BeamScores] = field(default_factory=dict)
    _lists: tuple[list[int], ...] | None = None

    def lists(self) -> tuple[list[int], ...]:
        """token, status, epoch and action as Python numbers, made once: a step reads them one by one."""
        if self._lists is None:
            self._lists = self.token.tolist(), self.status.tolist(), self.epoch.tolist(), self.action.tolist()
        return self._lists

    @classmethod
    def nothing(cls, launch: int, slots: int) -> LaunchResult:
        """A launch in which no slot advanced."""
        idle = np.full(slots, SlotAction.IDLE, np.int32)
        zeros = np.zeros(slots, np.int64)
        return cls(launch, np.full(slots, -1, np.int32), np.zeros(slots, np.int32), zeros, idle, zeros.copy())

    def take(self, other: LaunchResult, slots: NDArray[np.int64]) -> None:
        """The values of some slots, from another result of the same launch."""
        for name in ("token", "status", "epoch", "action", "node", "logprob", "rank", "top_ids", "top_logprobs"):
            value = getattr(other, name)
            if value is not None:
                if getattr(self, name) is None:
                    setattr(self, name, np.zeros_like(value))
                getattr(self, name)[slots] = value[slots]
        for told, found in ((self.slot_errors, other.slot_errors), (self.logits, other.logits)):
            told.update({slot: found[slot] for slot in slots.tolist() if slot in found})
