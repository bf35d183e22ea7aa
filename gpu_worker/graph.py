"""One whole step and its capture: drafts, forward, wait for the flag, begin, sample, verify, tell, commit. No Python runs under a
replay.

The wait is a pair of memory operations (wait until the flag is 1, write 0), captured from the stream: the reset is what keeps the
next replay from passing on a stale value. Needs a CUDA device.
"""

from __future__ import annotations

from typing import Any

import torch

from gpu_worker.models.base import ModelRunner
from gpu_worker.step_buffers import LaunchBuffers, StepShape, StepTensors
from kernels.build import check
from kernels.inputs import GpuInputs
from kernels.logprobs import logprobs_into
from kernels.penalties import update_counts
from kernels.sample import sample_into
from kernels.step import StepSizes, step_ask, step_begin, step_commit, step_feed, step_ready, step_tell
from kernels.verify import match


def run_forward(runner: ModelRunner, step: StepTensors, launch: LaunchBuffers, shape: StepShape, stream: int) -> torch.Tensor:
    """Enqueues the forward of a shape behind its drafts; logits float32 [active * width, V]."""
    state, active, width = step.state, shape.active, shape.width
    if width > 1:
        step_feed(launch.drafts, state, active, stream)
    logits = runner.decode(state.tokens[:active, :width], state.positions[:active], state.lengths[:active])
    step_ready(state, stream)
    return logits.reshape(active * width, logits.shape[-1])


def run_rest(
    runner: ModelRunner, step: StepTensors, launch: LaunchBuffers, shape: StepShape, sizes: StepSizes, logits: torch.Tensor,
    stream: int,
) -> None:  # fmt: skip
    """Enqueues what comes behind the flag, in the order in which it happens."""
    state, rows, out, more, width = step.state, step.rows, step.output, step.more, shape.width
    step_begin(launch.descriptor, step.head, state, rows, more, sizes, width, stream)
    inputs = GpuInputs(
        logits, rows.rows, runner.vocab_size, rows.bitmask, rows.index, rows.status, overlay=None if more is None else more.overlay
    )
    sample_into(
        out, logits, rows.rows, vocab_size=runner.vocab_size, bitmask=rows.bitmask, row_index=rows.index, row_status=rows.status,
        overlay=inputs.overlay,
    )  # fmt: skip
    emitted = None
    if step.drafts is not None and step.verified is not None:
        match(step.verified, step.drafts, out.token, out.status)
        emitted = step.verified.emitted
    if more is not None and step.told is not None and step.columns is not None:
        raw, processed = step.columns
        step_ask(more.asks, out.column, raw, processed, stream)
        logprobs_into(step.told[0], inputs, raw, "raw", None)
        logprobs_into(step.told[1], inputs, processed, "processed", out.descriptor)
        step_tell(
            step.told,
            launch.result,
            launch.descriptor,
            step.head,
            more,
            state,
            out.token,
            logits,
            launch.kept,
            sizes,
            width,
            stream,
        )
    step_commit(state, out.token, out.status, emitted, launch.result, sizes, width, stream)
    if more is not None:
        tokens = out.token.view(shape.active, width)
        update_counts(more.penalties.counts, tokens, state.emitted[: shape.active], more.counted_slot, more.penalties.counted)


def run_step(
    runner: ModelRunner, step: StepTensors, launch: LaunchBuffers, shape: StepShape, sizes: StepSizes, stream: torch.cuda.Stream
) -> None:
    """A whole step on the current stream; captured or not, the same calls."""
    logits = run_forward(runner, step, launch, shape, stream.cuda_stream)
    wait_for_flag(launch.flag_address, stream)
    run_rest(runner, step, launch, shape, sizes, logits, stream.cuda_stream)


def capture(
    runner: ModelRunner, step: StepTensors, launch: LaunchBuffers, shape: StepShape, sizes: StepSizes, stream: torch.cuda.Stream,
    pool: Any,
) -> Any:  # fmt: skip
    """A graph of ``run_step``. The runner and every kernel must have run before: nothing may be loaded under capture."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        run_step(runner, step, launch, shape, sizes, stream)
    return graph


def wait_for_flag(address: int, stream: torch.cuda.Stream) -> None:
    """Enqueues: wait until the 32-bit word at ``address`` is 1, then write 0."""
    from cuda.bindings import driver

    kinds = driver.CUstreamBatchMemOpType
    wait, reset = driver.CUstreamBatchMemOpParams(), driver.CUstreamBatchMemOpParams()
    wait.waitValue.operation = kinds.CU_STREAM_MEM_OP_WAIT_VALUE_32
    wait.waitValue.address = driver.CUdeviceptr(address)
    wait.waitValue.value = driver.cuuint32_t(1)
    wait.waitValue.flags = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
    reset.writeValue.operation = kinds.CU_STREAM_MEM_OP_WRITE_VALUE_32
    reset.writeValue.address = driver.CUdeviceptr(address)
    reset.writeValue.value = driver.cuuint32_t(0)
    reset.writeValue.flags = 0
    check(driver.cuStreamBatchMemOp(driver.CUstream(stream.cuda_stream), 2, [wait, reset], 0))


def register_page(address: int, num_bytes: int) -> int:
    """Makes a host page readable by the device and returns its device address."""
    from cuda.bindings import driver

    check(driver.cuMemHostRegister(address, num_bytes, driver.CU_MEMHOSTREGISTER_DEVICEMAP))
    result = driver.cuMemHostGetDevicePointer(address, 0)
    check(result)
    return int(result[1])


def unregister_page(address: int) -> None:
    from cuda.bindings import driver

    check(driver.cuMemHostUnregister(address))
