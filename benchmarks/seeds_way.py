"""A worker whose step is the seed system's: every row in full is copied to the GPU in every step, a kernel masks the logits in
place, and a sampler that knows no masks follows. ``python -m benchmarks.seeds_way`` takes the flags of ``python -m gpu_worker``."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from gpu_worker import __main__ as worker
from gpu_worker import graph
from gpu_worker.models.base import ModelRunner
from gpu_worker.step_buffers import LaunchBuffers, StepShape, StepTensors
from kernels.bitmask import apply_bitmask
from kernels.sample import sample_into
from kernels.step import StepSizes, step_begin, step_commit


def run_rest(
    runner: ModelRunner, step: StepTensors, launch: LaunchBuffers, shape: StepShape, sizes: StepSizes, logits: torch.Tensor,
    stream: int,
) -> None:  # fmt: skip
    """What comes behind the flag. One position a slot, no overlays."""
    state, rows, out = step.state, step.rows, step.output
    pinned = torch.from_numpy(launch.descriptor["rows"])
    rows.bitmask[: sizes.rows].copy_(pinned, non_blocking=True)
    step_begin(launch.descriptor, step.head, state, rows, step.more, replace(sizes, words=0), shape.width, stream)
    apply_bitmask(logits, rows.bitmask, None, rows.status, runner.vocab_size)
    unguided = rows.status.masked_fill(rows.status == 1, 0)
    sample_into(out, logits, rows.rows, vocab_size=runner.vocab_size, row_status=unguided)
    step_commit(state, out.token, out.status, None, launch.result, sizes, shape.width, stream)


def install() -> None:
    """From now on captured steps are of this kind."""
    graph.run_rest = run_rest


if __name__ == "__main__":
    install()
    sys.exit(worker.main())
