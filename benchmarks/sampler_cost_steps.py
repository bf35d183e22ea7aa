"""One step of the sampler with any set of features: the kernels on a GPU, their reference on the CPU, the same calls in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels import reference
from kernels.reference import BeamParams, BeamState, BeamStep, FinishResult, Overlay, Penalties, SampleRows, StopWords, TokenList

COLD_SETS = 3
"""Input sets in turn, so that logits and state are not in the cache of the launch before."""
NUM_BIASED, NUM_BANNED, NUM_SEEN, NUM_STOPS, NUM_TOP = 64, 32, 512, 8, 5
"""Of each row: ids with a bias, ids banned in this step, tokens of its text, stop sequences of three tokens, alternatives told."""
BEAM_WIDTH, LONGEST = 4, 64


@dataclass(slots=True)
class Step:
    """Inputs of one launch of R rows on one device. ``run`` does what a step with these features does."""

    logits: Tensor
    rows: SampleRows
    guide: Tensor
    overlay: Overlay
    decay: dict[str, Tensor]
    stops: StopWords
    ends: TokenList
    history: Tensor
    slots: Tensor
    ones: Tensor
    vocab_size: int
    backend: Any

    def run(self, parts: frozenset[str]) -> None:
        overlay = self._overlay(parts)
        mode = ("processed" if "processed" in parts else "raw") if "logprobs" in parts else None
        bitmask = self.guide if "guide" in parts else None
        token = self.backend.sample(self, bitmask, overlay, mode, NUM_TOP if "top" in parts else 0)
        tokens = token.view(-1, 1)
        if "penalties" in parts and self.overlay.penalties is not None:
            self.backend.update_counts(self.overlay.penalties.counts, tokens, self.ones, self.slots)
        if "decay" in parts:
            self.backend.update_top_p_decay(self.rows.top_p, tokens, self.ones, self.slots, **self.decay)
        if "finish" in parts:
            self.backend.finish(self, tokens)

    def _overlay(self, parts: frozenset[str]) -> Overlay | None:
        if not parts & {"bias", "penalties", "bans"}:
            return None
        whole = self.overlay
        return Overlay(
            whole.bias if "bias" in parts else None,
            whole.penalties if "penalties" in parts else None,
            whole.bans if "bans" in parts else None,
        )


def make_step(rows: int, vocab_size: int, device: str, seed: int) -> Step:
    """Logits bf16 of N(0, 3), temperature 0.8, k 50, p 0.9; a guide that allows half; everything on ``device``."""
    source = torch.Generator().manual_seed(seed)
    words = -(-vocab_size // 32)

    def ids(count: int) -> list[list[int]]:
        return [torch.randperm(vocab_size, generator=source)[:count].tolist() for _ in range(rows)]

    uniform = SampleRows.uniform(rows, temperature=0.8, top_k=50, top_p=0.9, seed=seed)
    biased = ids(min(NUM_BIASED, vocab_size))
    bias = TokenList.of(biased, [[0.5] * len(row) for row in biased])
    words_of = [[row[at : at + 3] for at in range(0, 3 * NUM_STOPS, 3)] for row in ids(3 * NUM_STOPS)]
    bans = TokenList.of(ids(NUM_BANNED))
    return Step(
        logits=(3 * torch.randn(rows, vocab_size, device=device)).to(torch.bfloat16),
        rows=_moved(uniform, device),
        guide=torch.randint(-(1 << 31), 1 << 31, (rows, words), generator=source).to(device, torch.int32),
        overlay=Overlay(_moved(bias, device), _penalties(rows, vocab_size, device, source), _moved(bans, device)),
        decay=_decay(rows, device),
        stops=_moved(StopWords.of(words_of), device),
        ends=_moved(TokenList.of([[0]] * rows), device),
        history=torch.zeros((rows, 4), dtype=torch.int32, device=device),
        slots=torch.arange(rows, dtype=torch.int32, device=device),
        ones=torch.ones(rows, dtype=torch.int32, device=device),
        vocab_size=vocab_size,
        backend=GpuCalls(rows, vocab_size) if device == "cuda" else HostCalls(),
    )  # fmt: skip


def _penalties(rows: int, vocab_size: int, device: str, source: torch.Generator) -> Penalties:
    counts = torch.zeros((rows, vocab_size), dtype=torch.int32)
    for row in range(rows):
        counts[row, torch.randperm(vocab_size, generator=source)[:NUM_SEEN]] = 1
    return Penalties(
        torch.full((rows,), 1.2).to(device), torch.full((rows,), 0.3).to(device), torch.full((rows,), 0.1).to(device),
        torch.arange(rows, dtype=torch.int32, device=device), counts.to(device, torch.uint16),
        torch.zeros((rows, -(-vocab_size // 32)), dtype=torch.int32, device=device),
    )  # fmt: skip


def _decay(rows: int, device: str) -> dict[str, Tensor]:
    values = {"initial": 0.9, "decay": 1.0, "minimum": 0.5}  # the work of a decay, with no drift from launch to launch
    floats = {name: torch.full((rows,), value, device=device) for name, value in values.items()}
    return {**floats, "reset_id": torch.full((rows,), -1, dtype=torch.int32, device=device)}


def _moved(group: Any, device: str) -> Any:
    """A group of tensors on another device, made once."""
    values = {name: getattr(group, name) for name in group.__slots__}
    return type(group)(**{name: value.to(device) if isinstance(value, Tensor) else value for name, value in values.items()})


class HostCalls:
    """The reference kernels."""

    update_counts = staticmethod(reference.update_counts)
    update_top_p_decay = staticmethod(reference.update_top_p_decay)

    def sample(self, step: Step, bitmask: Tensor | None, overlay: Overlay | None, mode: Any, num_top: int) -> Tensor:
        wanted = {"logprobs": mode, "num_logprobs": num_top}
        sampled = reference.sample(step.logits, step.rows, vocab_size=step.vocab_size, bitmask=bitmask, overlay=overlay, **wanted)
        return sampled.token

    def finish(self, step: Step, tokens: Tensor) -> None:
        lengths = (step.ones, 1000 * step.ones)
        reference.finish_reasons(tokens, step.ones, *lengths, end_ids=step.ends, stop_words=step.stops, history=step.history)
        reference.shift_history(step.history, tokens, step.ones)


class GpuCalls:
    """The launchers, with outputs made once."""

    def __init__(self, rows: int, vocab_size: int) -> None:
        from kernels.logprobs import LogprobTensors
        from kernels.penalties import update_counts, update_top_p_decay
        from kernels.sample import SampleOutput

        self.update_counts, self.update_top_p_decay = update_counts, update_top_p_decay
        self._out = SampleOutput.empty(rows, "cuda")
        self._described = SampleOutput.empty(rows, "cuda", descriptor=True)
        self._scores = {count: LogprobTensors.empty(rows, count, "cuda") for count in (0, NUM_TOP)}
        self._ended = FinishResult(*torch.empty((2, rows), dtype=torch.int32, device="cuda"))
        self._longest = torch.full((rows,), 1000, dtype=torch.int32, device="cuda")

    def sample(self, step: Step, bitmask: Tensor | None, overlay: Overlay | None, mode: Any, num_top: int) -> Tensor:
        from kernels.inputs import GpuInputs
        from kernels.logprobs import logprobs_into
        from kernels.sample import sample_into

        out = self._described if mode == "processed" else self._out
        sample_into(out, step.logits, step.rows, vocab_size=step.vocab_size, bitmask=bitmask, overlay=overlay)
        if mode is not None:
            inputs = GpuInputs(step.logits, step.rows, step.vocab_size, bitmask, overlay=overlay)
            logprobs_into(self._scores[num_top], inputs, out.column, mode, out.descriptor)
        return out.token

    def finish(self, step: Step, tokens: Tensor) -> None:
        from kernels.finish import finish_reasons, shift_history

        finish_reasons(
            self._ended, tokens, step.ones, step.ones, self._longest, end_ids=step.ends, stop_words=step.stops, history=step.history
        )
        shift_history(step.history, tokens, step.ones)


def beam_call(rows: int, vocab_size: int, device: str) -> Callable[[], object]:
    """A step of ``BEAM_WIDTH`` beams a request in all of ``rows`` rows, log-probabilities given; one beam where there is one row.
    The state is put back before each step, so that it never comes to an end."""
    width = min(BEAM_WIDTH, rows)
    requests = rows // width
    logprobs = torch.log_softmax(3 * torch.randn(requests, width, vocab_size), -1).to(device)
    state = _moved(BeamState.start(requests, width, LONGEST), device)
    params = _moved(_beam_params(requests, width), device)
    out = BeamStep(*torch.full((2, requests, width), -1, dtype=torch.int32, device=device))
    step = (
        _gpu_beam_step(out, logprobs, state, params) if device == "cuda" else partial(reference.beam_step, logprobs, state, params)
    )

    def call() -> None:
        state.length.fill_(LONGEST // 2)
        state.done.zero_()
        state.cum.zero_()
        step()

    return call


def _gpu_beam_step(out: BeamStep, logprobs: Tensor, state: BeamState, params: BeamParams) -> Callable[[], object]:
    from kernels.beam import BeamWorkspace, beam_step

    workspace = BeamWorkspace.of(state)
    return partial(beam_step, out, logprobs, state, params, workspace)


def _beam_params(requests: int, width: int) -> BeamParams:
    floats, whole = (torch.full((requests,), value) for value in (1.0, 0.0)), (width, 2, -1, LONGEST)
    length_penalty, diversity = floats
    width_of, early_stopping, end_id, longest = (torch.full((requests,), value, dtype=torch.int32) for value in whole)
    return BeamParams(width_of, length_penalty, diversity, early_stopping, end_id, longest)
