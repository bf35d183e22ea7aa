"""CudaPipeline: the step as one captured graph a place of the ring; the device waits for its rows by itself.

One stream keeps the order. ``launch`` replays the graph of its place; the forward runs at once, the memory-wait node holds the rest
until ``seal`` has written the descriptor and raised the flag, or the watchdog's child process has (then every row holds).
Nothing here allocates, copies from pageable memory or synchronises after construction: any of these would wait for a flag that only
this thread can raise.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.descriptor import Descriptor, LaunchResult
from gpu_worker.graph import LaunchBuffers, StepBuffers, capture, register_page, run_step, unregister_page
from gpu_worker.models.base import ModelRunner
from gpu_worker.pipeline import MAX_IN_FLIGHT, Pipeline
from gpu_worker.watchdog import LINE, PAGE_BYTES, Watchdog
from kernels.build import check
from kernels.step import PinnedDescriptor, PinnedResult, step_set
from shared.bitmask import num_words
from shared.errors import ConfigError
from shared.sampling_params import SamplingParams

POLL_S = 20e-6
NEUTRAL = SamplingParams()
ON_DEVICE = frozenset((
    "n", "best_of", "temperature", "top_k", "top_p", "min_p", "seed", "deterministic", "max_tokens", "stop",
    "stop_token_ids", "end_id", "ignore_eos", "include_stop", "detokenize", "skip_special_tokens",
    "add_special_tokens", "exclude_input_from_output", "truncate_prompt_tokens",
))  # fmt: skip
"""Parameters whose work is in the captured step, or needs none there. The others are refused by name until theirs is."""


class CudaPipeline(Pipeline):
    """The runner must be on a CUDA device and warm. ``eager`` runs the same calls without graphs (a comparison for tests)."""

    def __init__(self, runner: ModelRunner, last_resort_s: float = 5.0, *, eager: bool = False) -> None:
        if runner.device.type != "cuda":
            raise ConfigError(f"the runner is on {runner.device}, not on a CUDA device", field="device")
        self._runner, self._eager = runner, eager
        slots, words = runner.max_slots, num_words(runner.vocab_size)
        self._stream = torch.cuda.Stream(runner.device)
        self._watchdog = Watchdog(MAX_IN_FLIGHT, last_resort_s)
        self._page = register_page(self._watchdog.page.address, PAGE_BYTES)
        self._buffers = StepBuffers.empty(slots, runner.max_width, words, runner.device)
        self._ring = [
            LaunchBuffers(PinnedDescriptor.empty(slots, words), PinnedResult.empty(slots), self._page + place * LINE)
            for place in range(MAX_IN_FLIGHT)
        ]
        self._launched = self._collected = 0
        self._context = _current_context()
        self._started_s: dict[int, float] = {}
        self._graphs = self._prepare()

    def _prepare(self) -> list[torch.cuda.CUDAGraph]:
        """Runs every place once eagerly (kernels loaded, memory in the pool), then captures it. All rows hold: nothing is live."""
        with torch.cuda.stream(self._stream):
            for place, launch in enumerate(self._ring):
                self._watchdog.arm(place, place + 1)
                self._watchdog.release(place)
                run_step(self._runner, self._buffers, launch, self._stream)
                self._stream.synchronize()
                self._watchdog.done(place, place + 1)
        self._launched = self._collected = len(self._ring)
        if self._eager:
            return []
        pool = torch.cuda.graph_pool_handle()
        return [capture(self._runner, self._buffers, launch, self._stream, pool) for launch in self._ring]

    def unsupported(self, params: SamplingParams) -> list[str]:
        changed = [name for name in params.__struct_fields__ if getattr(params, name) != getattr(NEUTRAL, name)]
        # Texts are ranked by log-probabilities.
        unranked = ["best_of"] if params.is_ranked and "logprobs" not in ON_DEVICE else []
        return [name for name in changed if name not in ON_DEVICE] + unranked

    def row_buffers(self) -> list[NDArray[np.int32]]:
        return [launch.descriptor.rows.numpy() for launch in self._ring]

    def prefill(self, slot: int, token_ids: Sequence[int], start_position: int) -> None:
        with torch.cuda.stream(self._stream):
            self._runner.prefill(slot, token_ids, start_position)

    def attach(self) -> None:
        """Makes the device current in the calling thread; each thread that calls does so once."""
        _make_current(self._context)

    def admit(self, slot: int, epoch: int, golden_token: int, position: int) -> None:
        step_set(
            self._buffers.state, slot, token=golden_token, position=position, length=1, epoch=epoch, stream=self._stream.cuda_stream
        )

    def release(self, slot: int) -> None:
        step_set(self._buffers.state, slot, token=0, position=0, length=0, epoch=0, stream=self._stream.cuda_stream)
        with torch.cuda.stream(self._stream):
            self._runner.reset(slot)

    def launch(self) -> int:
        if self._launched - self._collected >= MAX_IN_FLIGHT:
            raise RuntimeError(f"more than {MAX_IN_FLIGHT} launches in flight")
        self._launched += 1
        place = self._launched % MAX_IN_FLIGHT
        self._ring[place].descriptor.sealed[0] = 0
        self._watchdog.arm(place, self._launched)
        self._started_s[self._launched] = time.perf_counter()
        with torch.cuda.stream(self._stream):
            if self._eager:
                run_step(self._runner, self._buffers, self._ring[place], self._stream)
            else:
                self._graphs[place].replay()
        return self._launched

    def seal(self, descriptor: Descriptor) -> bool:
        """Writes the pinned descriptor, its launch number last, and raises the flag."""
        if not self._collected < descriptor.launch <= self._launched:
            return False
        place = descriptor.launch % MAX_IN_FLIGHT
        pinned = self._ring[place].descriptor
        pinned.action.numpy()[:], pinned.epoch.numpy()[:] = descriptor.action, descriptor.epoch
        if descriptor.rows is not None:
            for name in ("temperature", "top_k", "top_p", "min_p", "seed", "offset"):
                getattr(pinned, name).copy_(getattr(descriptor.rows, name))
        if descriptor.bitmask.data_ptr() != pinned.rows.data_ptr():
            pinned.rows.copy_(descriptor.bitmask)
        pinned.sealed[0] = descriptor.launch
        self._watchdog.release(place)
        return True

    def collect(self, timeout_s: float) -> LaunchResult | None:
        if self._collected == self._launched:
            return None
        number = self._collected + 1
        place = number % MAX_IN_FLIGHT
        result, end_s = self._ring[place].result, time.perf_counter() + timeout_s
        arrived = result.launch.numpy()
        while arrived[0] != number:
            if time.perf_counter() > end_s:
                return None
            time.sleep(POLL_S)
        self._collected = number
        self._watchdog.done(place, number)
        return self._result(number, result)

    def _result(self, number: int, pinned: PinnedResult) -> LaunchResult:
        return LaunchResult(
            number, pinned.token.numpy().copy(), pinned.status.numpy().copy(), pinned.epoch.numpy().copy(),
            pinned.action.numpy().copy(), forward_s=time.perf_counter() - self._started_s.pop(number),
        )  # fmt: skip

    def close(self) -> None:
        """Lets what is in flight hold, waits for it, and gives everything back."""
        for number in range(self._collected + 1, self._launched + 1):
            self._watchdog.release(number % MAX_IN_FLIGHT)
        self._stream.synchronize()
        self._watchdog.close()
        unregister_page(self._watchdog.page.address)


def _current_context() -> Any:
    from cuda.bindings import driver

    torch.zeros(1, device="cuda")  # makes the primary context if there is none yet
    result = driver.cuCtxGetCurrent()
    check(result)
    return result[1]


def _make_current(context: Any) -> None:
    from cuda.bindings import driver

    check(driver.cuCtxSetCurrent(context))
