"""One sampling launch over all slots, through the reference kernels.

Rows are independent of each other, so a batch that wants both kinds of log-probability is sampled in two calls with the same tokens.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.descriptor import Descriptor, LaunchResult, SlotAction
from kernels import reference
from kernels.reference import SampleResult, SampleStatus

LogprobMode = Literal["raw", "processed"]


def sample_launch(logits: torch.Tensor | None, descriptor: Descriptor, action: NDArray[np.int32], vocab_size: int) -> LaunchResult:
    """Samples the slots whose action is UNGUIDED or GUIDED; the others get token -1.

    ``logits`` [slots, T, V] (or None where nothing ran) are read at T = 0. Raises what the kernel raises.
    """
    slots = len(action)
    result = LaunchResult.nothing(descriptor.launch, slots)
    result.epoch, result.action = descriptor.epoch.copy(), action
    result.status[action > SlotAction.GUIDED] = SampleStatus.HELD
    live = np.flatnonzero(action <= SlotAction.GUIDED)
    if logits is None or not live.size or descriptor.rows is None:
        return result
    processed = np.zeros(slots, np.bool_) if descriptor.processed is None else descriptor.processed
    wanted: list[tuple[LogprobMode, NDArray[np.int64]]] = [("raw", live[~processed[live]]), ("processed", live[processed[live]])]
    for mode, chosen in wanted:
        if chosen.size:
            status = np.full(slots, SlotAction.HOLD, np.int32)
            status[chosen] = action[chosen]
            sampled = _sample(logits[:, 0], descriptor, status, mode if descriptor.num_logprobs is not None else None, vocab_size)
            _fill(result, sampled, chosen)
    return result


def _sample(
    logits: torch.Tensor, descriptor: Descriptor, status: NDArray[np.int32], mode: LogprobMode | None, vocab_size: int
) -> SampleResult:
    if descriptor.rows is None:
        raise ValueError("a descriptor without parameters has no row to sample")
    return reference.sample(
        logits,
        descriptor.rows,
        vocab_size=vocab_size,
        bitmask=descriptor.bitmask,
        row_index=torch.arange(len(status), dtype=torch.int32),
        row_status=torch.from_numpy(status),
        overlay=descriptor.overlay,
        logprobs=mode,
        num_logprobs=descriptor.num_logprobs or 0,
    )


def _fill(result: LaunchResult, sampled: SampleResult, slots: NDArray[np.int64]) -> None:
    """Takes the sampled slots' values over; the others keep what they have."""
    for name in ("token", "status", "logprob", "rank", "top_ids", "top_logprobs"):
        value = getattr(sampled, name)
        if value is not None:
            if getattr(result, name) is None:
                setattr(result, name, np.zeros_like(value.numpy()))
            getattr(result, name)[slots] = value.numpy()[slots]
