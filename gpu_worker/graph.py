"""Capture of one whole step: forward, wait for the flag, begin, sample, commit. No Python runs under a replay.

The wait is a pair of memory operations (wait until the flag is 1, write 0), captured from the stream: the reset is what keeps the
next replay from passing on a stale value. Needs a CUDA device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gpu_worker.models.base import ModelRunner
from kernels.build import check
from kernels.reference import SampleRows
from kernels.sample import SampleOutput, sample_into
from kernels.step import PinnedDescriptor, PinnedResult, SlotState, step_begin, step_commit


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """What the steps of a pipeline share on the device: state, parameters, row status and mask rows, the sampler's output."""

    state: SlotState
    rows: SampleRows
    status: torch.Tensor
    bitmask: torch.Tensor
    output: SampleOutput

    @classmethod
    def empty(cls, slots: int, width: int, words: int, device: torch.device) -> StepBuffers:
        kinds = (torch.float32, torch.int32, torch.float32, torch.float32, torch.int64, torch.int64, torch.int32)
        return cls(
            state=SlotState.empty(slots, width, device),
            rows=SampleRows(*(torch.zeros(slots, dtype=kind, device=device) for kind in kinds)),
            status=torch.zeros(slots, dtype=torch.int32, device=device),
            bitmask=torch.zeros((slots, words), dtype=torch.int32, device=device),
            output=SampleOutput.empty(slots, device),
        )


@dataclass(frozen=True, slots=True)
class LaunchBuffers:
    """What belongs to one place of the ring: pinned descriptor and result, and the device address of its flag."""

    descriptor: PinnedDescriptor
    result: PinnedResult
    flag_address: int


def run_step(runner: ModelRunner, buffers: StepBuffers, launch: LaunchBuffers, stream: torch.cuda.Stream) -> None:
    """Enqueues one step on the current stream, in the order in which it happens; captured or not, the same calls."""
    state = buffers.state
    logits = runner.decode(state.tokens, state.positions, state.lengths)[:, 0]
    wait_for_flag(launch.flag_address, stream)
    step_begin(launch.descriptor, state, buffers.rows, buffers.status, buffers.bitmask, stream.cuda_stream)
    sample_into(
        buffers.output, logits, buffers.rows, vocab_size=runner.vocab_size, bitmask=buffers.bitmask, row_status=buffers.status
    )
    step_commit(state, buffers.output.token, buffers.output.status, launch.result, stream.cuda_stream)


def capture(runner: ModelRunner, buffers: StepBuffers, launch: LaunchBuffers, stream: torch.cuda.Stream, pool: Any) -> Any:
    """A graph of ``run_step``. The runner and every kernel must have run before: nothing may be loaded under capture."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        run_step(runner, buffers, launch, stream)
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
