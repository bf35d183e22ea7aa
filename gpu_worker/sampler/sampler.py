"""One sampling launch over all slots, through the reference kernels.

Rows are independent of each other, so a batch that wants both kinds of log-probability is sampled in two calls.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.beam.scores import beam_scores
from gpu_worker.descriptor import Descriptor, LaunchResult, SlotAction
from gpu_worker.sampler.logits_processors import process
from gpu_worker.sampler.logprobs import score
from kernels import reference
from kernels.reference import SampleInputs, SampleResult, SampleRows, SampleStatus

LogprobMode = Literal["raw", "processed"]


def sample_launch(logits: torch.Tensor | None, descriptor: Descriptor, action: NDArray[np.int32], vocab_size: int) -> LaunchResult:
    """Samples the slots whose action is UNGUIDED or GUIDED; the others get token -1.

    ``logits`` [slots, T, V] (or None where nothing ran) are read at T = 0. Raises what the kernel raises.
    """
    result = LaunchResult.nothing(descriptor.launch, len(action))
    result.epoch, result.action = descriptor.epoch.copy(), action
    changed = [row for row in descriptor.processing if action[row.slot] <= SlotAction.GUIDED]
    if logits is not None and changed:
        processed, failed = process(logits[:, 0], changed)
        result.slot_errors.update(failed)
        action[list(failed)] = SlotAction.HOLD
        _sample_rows(result, processed, descriptor, vocab_size)
        _score_beams(result, processed, logits[:, 0], descriptor, vocab_size)
        _score_raw(result, logits[:, 0], descriptor, [row.slot for row in changed if row.slot not in failed], vocab_size)
    elif logits is not None:
        _sample_rows(result, logits[:, 0], descriptor, vocab_size)
        _score_beams(result, logits[:, 0], logits[:, 0], descriptor, vocab_size)
    if logits is not None:
        told = [slot for slot in descriptor.return_logits if result.token[slot] >= 0]
        result.logits = {slot: logits[slot, 0].to(torch.float32).numpy().astype("<f4").tobytes() for slot in told}
    return result


def _sample_rows(result: LaunchResult, logits: torch.Tensor, descriptor: Descriptor, vocab_size: int) -> None:
    action, wants = result.action, descriptor.processed
    result.status[action > SlotAction.GUIDED] = SampleStatus.HELD
    sampled_here = action <= SlotAction.GUIDED
    sampled_here[list(descriptor.beams)] = False
    live = np.flatnonzero(sampled_here) if descriptor.rows is not None else np.empty(0, np.int64)
    processed = np.zeros(len(action), np.bool_) if wants is None else wants
    wanted: list[tuple[LogprobMode, NDArray[np.int64]]] = [("raw", live[~processed[live]]), ("processed", live[processed[live]])]
    for mode, chosen in wanted:
        if chosen.size:
            status = np.full(len(action), SlotAction.HOLD, np.int32)
            status[chosen] = action[chosen]
            wanted_mode = mode if descriptor.num_logprobs is not None else None
            sampled = _sample(logits, descriptor, status, wanted_mode, descriptor.num_logprobs or 0, vocab_size)
            _fill(result, sampled, chosen)


def _score_beams(
    result: LaunchResult, logits: torch.Tensor, unchanged: torch.Tensor, descriptor: Descriptor, vocab_size: int
) -> None:
    """Beams' rows get no token: their best continuations are told. ``unchanged``: the logits before processors."""
    rows = {slot: row for slot, row in descriptor.beams.items() if result.action[slot] <= SlotAction.GUIDED}
    if not rows:
        return
    status = np.full(len(result.action), SlotAction.HOLD, np.int32)
    status[list(rows)] = result.action[list(rows)]
    most = min(max(row.num_candidates for row in rows.values()), vocab_size)
    sampled = _sample(logits, descriptor, status, "processed", most, vocab_size)
    result.scores = {slot: beam_scores(sampled, unchanged[slot], slot, row, vocab_size) for slot, row in rows.items()}


def _score_raw(result: LaunchResult, logits: torch.Tensor, descriptor: Descriptor, slots: list[int], vocab_size: int) -> None:
    """Raw log-probabilities of rows that a processor changed are those of the model's own logits (spec 111)."""
    chosen = np.array([s for s in slots if result.token[s] >= 0 and not _wants_processed(descriptor, s)], np.int64)
    if descriptor.num_logprobs is None or not chosen.size:
        return
    scored = score(logits[chosen], result.token[chosen].tolist(), descriptor.num_logprobs, vocab_size)
    for name in ("logprob", "rank", "top_ids", "top_logprobs"):
        getattr(result, name)[chosen] = getattr(scored, name).numpy()


def _wants_processed(descriptor: Descriptor, slot: int) -> bool:
    return descriptor.processed is not None and bool(descriptor.processed[slot])


def _sample(
    logits: torch.Tensor, descriptor: Descriptor, status: NDArray[np.int32], mode: LogprobMode | None, n: int, vocab_size: int
) -> SampleResult:
    return reference.sample(
        logits,
        _parameters(descriptor),
        vocab_size=vocab_size,
        bitmask=descriptor.bitmask,
        row_index=torch.arange(len(status), dtype=torch.int32),
        row_status=torch.from_numpy(status),
        overlay=descriptor.overlay,
        logprobs=mode,
        num_logprobs=n,
    )


def sample_inputs(logits: torch.Tensor, descriptor: Descriptor, action: NDArray[np.int32], vocab_size: int) -> SampleInputs:
    """The rows of a launch, a row a slot, as the sampler reads them: logits [slots, V] with parameters, masks and overlay."""
    index, status = torch.arange(len(action), dtype=torch.int32), torch.from_numpy(action)
    rows, overlay = _parameters(descriptor), descriptor.overlay
    return SampleInputs(logits, rows, vocab_size, descriptor.bitmask, index, status, overlay=overlay)


def _parameters(descriptor: Descriptor) -> SampleRows:
    if descriptor.rows is None:
        raise ValueError("a descriptor without parameters has no row to sample")
    return descriptor.rows


def _fill(result: LaunchResult, sampled: SampleResult, slots: NDArray[np.int64]) -> None:
    """Takes the sampled slots' values over; the others keep what they have."""
    for name in ("token", "status", "logprob", "rank", "top_ids", "top_logprobs"):
        value = getattr(sampled, name)
        if value is not None:
            if getattr(result, name) is None:
                setattr(result, name, np.zeros_like(value.numpy()))
            getattr(result, name)[slots] = value.numpy()[slots]
