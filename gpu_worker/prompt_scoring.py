"""Log-probabilities of prompt tokens on the device: asked for chunk by chunk as a prompt is written, read when a later launch has
ended, so that no step waits for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch

from gpu_worker.models.base import ModelRunner
from gpu_worker.models.staging import Staging
from gpu_worker.sampler.logprobs import PromptScores
from kernels.inputs import GpuInputs
from kernels.logprobs import LogprobTensors, logprobs_into
from kernels.reference import SampleRows

PLACES = 4


class _Asked(NamedTuple):
    scores: PromptScores
    targets: list[int]
    told: LogprobTensors  # page-locked
    ended: torch.cuda.Event


class PromptScoring:
    """``prefill`` writes a chunk and asks; ``take`` hands over what has ended. Buffers for ``PLACES`` chunks under way."""

    def __init__(self, runner: ModelRunner, num_top: int) -> None:
        self._runner, chunk = runner, runner.prefill_chunk
        self._on_device = LogprobTensors.empty(chunk, num_top, runner.device)
        self._free = [(_pinned(chunk, num_top), torch.cuda.Event()) for _ in range(PLACES)]
        self._asked: deque[_Asked] = deque()
        self._staging = Staging(chunk, runner.device)
        self._columns = torch.zeros(chunk, dtype=torch.int32, device=runner.device)
        self._rows = SampleRows(*(torch.zeros(chunk, dtype=kind, device=runner.device) for kind in (
            torch.float32, torch.int32, torch.float32, torch.float32, torch.int64, torch.int64, torch.int32)))  # fmt: skip

    def prefill(self, slot: int, token_ids: Sequence[int], start_position: int, scores: PromptScores) -> None:
        """On the current stream."""
        self._runner.check_prefill(slot, token_ids, start_position)
        done, targets = scores.targets(start_position, len(token_ids), self._under_way(scores))
        logits = self._runner.prefill_logits(slot, token_ids, start_position)
        if not targets:
            return
        if not self._free:
            self._hand_over()  # none is free while the device works on a prompt alone
        self._score(logits[done : done + len(targets)], targets, scores)

    def _under_way(self, scores: PromptScores) -> int:
        return sum(len(each.targets) for each in self._asked if each.scores is scores)

    def _score(self, logits: torch.Tensor, targets: list[int], scores: PromptScores) -> None:
        count = len(targets)
        columns = self._columns[:count]
        columns.copy_(self._staging.put(targets))
        on_device = _first(self._on_device, count)
        logprobs_into(on_device, GpuInputs(logits, self._rows, self._runner.vocab_size), columns, "raw", None)
        pinned, ended = self._free.pop()
        told = _first(pinned, count)
        for name in ("logprob", "rank", "top_ids", "top_logprobs"):
            getattr(told, name).copy_(getattr(on_device, name), non_blocking=True)
        ended.record()
        self._asked.append(_Asked(scores, targets, pinned, ended))

    def take(self) -> None:
        """Hands over, in order, what the device has done."""
        while self._asked and self._asked[0].ended.query():
            self._hand_over()

    def _hand_over(self) -> None:
        asked = self._asked.popleft()
        asked.ended.synchronize()
        told = _first(asked.told, len(asked.targets))
        asked.scores.add_scored(asked.targets, told.logprob, told.rank, told.top_ids, told.top_logprobs)
        self._free.append((asked.told, asked.ended))


def _first(told: LogprobTensors, count: int) -> LogprobTensors:
    return LogprobTensors(told.logprob[:count], told.rank[:count], told.top_ids[:count], told.top_logprobs[:count])


def _pinned(rows: int, n: int) -> LogprobTensors:
    def made(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    f32, i32 = torch.float32, torch.int32
    return LogprobTensors(made(rows, dtype=f32), made(rows, dtype=i32), made(rows, n, dtype=i32), made(rows, n, dtype=f32))
