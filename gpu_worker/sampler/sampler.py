"""One sampling launch over all slots, through the reference kernels."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.descriptor import Descriptor, LaunchResult, SlotAction
from kernels import reference
from kernels.reference import SampleResult


def sample_launch(logits: torch.Tensor | None, descriptor: Descriptor, action: NDArray[np.int32], vocab_size: int) -> LaunchResult:
    """Samples the slots whose action is UNGUIDED or GUIDED; the others get token -1.

    ``logits`` [slots, T, V] (or None where nothing ran) are read at T = 0. Raises what the kernel raises.
    """
    slots = len(action)
    result = LaunchResult.nothing(descriptor.launch, slots)
    result.epoch, result.action = descriptor.epoch.copy(), action
    live = np.flatnonzero(action <= SlotAction.GUIDED)
    if logits is None or not live.size or descriptor.rows is None:
        return result
    status = np.where(action <= SlotAction.GUIDED, action, SlotAction.HOLD).astype(np.int32)
    sampled = reference.sample(
        logits[:, 0],
        descriptor.rows,
        vocab_size=vocab_size,
        bitmask=descriptor.bitmask,
        row_index=torch.arange(slots, dtype=torch.int32),
        row_status=torch.from_numpy(status),
        overlay=descriptor.overlay,
        logprobs="processed" if descriptor.logprobs_mode == "processed" else "raw" if descriptor.num_logprobs is not None else None,
        num_logprobs=descriptor.num_logprobs or 0,
    )
    _fill(result, sampled)
    return result


def _fill(result: LaunchResult, sampled: SampleResult) -> None:
    result.token, result.status = sampled.token.numpy(), sampled.status.numpy()
    if sampled.logprob is not None and sampled.rank is not None:
        result.logprob, result.rank = sampled.logprob.numpy(), sampled.rank.numpy()
    if sampled.top_ids is not None and sampled.top_logprobs is not None:
        result.top_ids, result.top_logprobs = sampled.top_ids.numpy(), sampled.top_logprobs.numpy()
