"""StepDevice: where the steps of a CudaPipeline run. Here a CUDA device, by captured graphs, by eager calls, or without page-locked
memory; every call returns at once but ``finished``."""

from __future__ import annotations

import gc
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpu_worker.graph import capture, register_page, run_forward, run_rest, run_step, unregister_page
from gpu_worker.models.base import ModelRunner
from gpu_worker.step_buffers import LaunchBuffers, StepBuffers, StepShape
from gpu_worker.watchdog import FLAG, LINE, PAGE_BYTES, Watchdog
from kernels.build import check
from kernels.step import StepSizes, step_set

EARLY = 0.7
"""Share of a step's usual time that ``finished`` sleeps through before it asks the device, which costs a core."""


class StepDevice(ABC):
    """Owns the ring's buffers and the order of what it is given; ``shapes`` are those that it can run."""

    sizes: StepSizes
    shapes: tuple[StepShape, ...]
    ring: list[LaunchBuffers]

    @abstractmethod
    def attach(self) -> None:
        """Once in each thread that calls."""

    @abstractmethod
    def run(self, work: Callable[[], object]) -> None:
        """Other work of the runner, in the order of the steps."""

    @abstractmethod
    def enqueue(self, place: int, shape: StepShape) -> None:
        """The next step, with the buffers of a place of the ring."""

    @abstractmethod
    def release(self, place: int) -> None:
        """The descriptor of the place's step is written (or never will be): it may go on."""

    @abstractmethod
    def finished(self, place: int, timeout_s: float) -> None:
        """Waits, without the interpreter lock, for the end of a step that was released, or a shorter time."""

    def turn(self, place: int) -> None:
        """Called now and then while a step is waited for that nobody has released."""
        return

    @abstractmethod
    def set_slot(self, slot: int, *, token: int, position: int, length: int, epoch: int) -> None:
        """Gives a slot to an owner or takes it away (length 0)."""

    @abstractmethod
    def kept_logits(self, place: int, rows: int) -> list[bytes]:
        """The first ``rows`` rows of logits that a step has kept, float32; waits for their copy alone."""

    @abstractmethod
    def close(self) -> None:
        """Waits for what is under way and gives everything back."""


class CudaStepDevice(StepDevice):
    """The runner must be on a CUDA device and warm. ``eager``: the same calls without graphs. Nothing here allocates or
    synchronises after construction: it would wait for a flag that only the caller can raise."""

    def __init__(
        self, runner: ModelRunner, sizes: StepSizes, shapes: Sequence[StepShape], watchdog: Watchdog, places: int, *, eager: bool =
        False
    ) -> None:  # fmt: skip
        self.sizes, self.shapes, self._runner, self._watchdog = sizes, tuple(shapes), runner, watchdog
        self.stream = torch.cuda.Stream(runner.device)
        self._side = torch.cuda.Stream(runner.device)
        self._page = register_page(watchdog.page.address, PAGE_BYTES)
        self._buffers = StepBuffers(sizes, runner.device)
        self.ring = [
            LaunchBuffers.empty(sizes, runner.device, pinned=True, flag_address=self._page + place * LINE)
            for place in range(places)
        ]
        self._ended = [torch.cuda.Event() for _ in range(places)]
        self._begun_s, self._usual_s, self._last_end_s = [0.0] * places, 0.0, 0.0
        self._logits = torch.empty((sizes.kept, sizes.vocab_size), pin_memory=True)
        self._context, self._home = _current_context(), 0
        self._steps = {shape: self._buffers.of(shape) for shape in self.shapes}
        self._graphs: dict[tuple[int, StepShape], Any] = {}
        self._prepare(eager)

    def _prepare(self, eager: bool) -> None:
        """Runs every shape once eagerly (kernels loaded, memory in the pool), then captures it for every place. Nothing is live."""
        with torch.cuda.stream(self.stream):
            for shape in self.shapes:
                self.release(0)
                run_step(self._runner, self._steps[shape], self.ring[0], shape, self.sizes, self.stream)
                self.stream.synchronize()
        if not eager:
            self._capture()
        self._begin_count()

    def _capture(self) -> None:
        """Garbage of other devices' graphs must not be collected meanwhile: to give one back is forbidden during a capture."""
        gc.collect()
        gc.disable()
        try:
            pool = torch.cuda.graph_pool_handle()
            for shape in self.shapes:
                for place, launch in enumerate(self.ring):
                    step = self._steps[shape]
                    self._graphs[place, shape] = capture(self._runner, step, launch, shape, self.sizes, self.stream, pool)
        finally:
            gc.enable()

    def _begin_count(self) -> None:
        """Launches are counted from 1, those before were for warmth."""
        self._buffers.state.counter.zero_()
        for launch in self.ring:
            launch.result["launch"][:] = 0
        torch.cuda.synchronize()

    def attach(self) -> None:
        _make_current(self._context)
        torch.cuda.set_stream(self.stream)
        self._home = threading.get_ident()

    def run(self, work: Callable[[], object]) -> None:
        with torch.cuda.stream(self.stream):
            work()

    def enqueue(self, place: int, shape: StepShape) -> None:
        self._begun_s[place] = time.perf_counter()
        if threading.get_ident() == self._home:
            self._replay(place, shape)
        else:
            with torch.cuda.stream(self.stream):
                self._replay(place, shape)

    def _replay(self, place: int, shape: StepShape) -> None:
        if (graph := self._graphs.get((place, shape))) is not None:
            graph.replay()
        else:
            run_step(self._runner, self._steps[shape], self.ring[place], shape, self.sizes, self.stream)
        self._ended[place].record(self.stream)

    def release(self, place: int) -> None:
        self._watchdog.release(place)

    def finished(self, place: int, timeout_s: float) -> None:
        begun_s = max(self._begun_s[place], self._last_end_s)
        early_s = min(EARLY * self._usual_s - (time.perf_counter() - begun_s), timeout_s)
        if early_s > 1e-4:
            time.sleep(early_s)
        self._ended[place].synchronize()
        self._last_end_s = time.perf_counter()
        self._usual_s += 0.1 * (min(self._last_end_s - begun_s, 0.1) - self._usual_s)

    def set_slot(self, slot: int, *, token: int, position: int, length: int, epoch: int) -> None:
        stream = self.stream.cuda_stream
        step_set(self._buffers.state, slot, token=token, position=position, length=length, epoch=epoch, stream=stream)

    def kept_logits(self, place: int, rows: int) -> list[bytes]:
        with torch.cuda.stream(self._side):
            self._logits[:rows].copy_(self.ring[place].kept[:rows], non_blocking=True)
        self._side.synchronize()
        return [row.tobytes() for row in self._logits[:rows].numpy().astype("<f4", copy=False)]

    def close(self) -> None:
        self.stream.synchronize()
        self._graphs.clear()
        unregister_page(self._watchdog.page.address)


class UnpinnedStepDevice(CudaStepDevice):
    """Without page-locked memory the device cannot wait for the host: what comes behind the flag is enqueued when it is raised, and
    copies go through memory that the system may move. Slower; the tokens are the same."""

    def __init__(self, runner: ModelRunner, sizes: StepSizes, shapes: Sequence[StepShape], watchdog: Watchdog, places: int) -> None:
        self.sizes, self.shapes, self._runner, self._watchdog = sizes, tuple(shapes), runner, watchdog
        self.stream = torch.cuda.Stream(runner.device)
        self._buffers = StepBuffers(sizes, runner.device)
        self.ring = [LaunchBuffers.empty(sizes, runner.device, pinned=False) for _ in range(places)]
        self._context, self._home = _current_context(), 0
        self._steps = {shape: self._buffers.of(shape) for shape in self.shapes}
        self._waiting: deque[tuple[int, StepShape]] = deque()
        self._released: set[int] = set()
        self._logits_of = torch.empty(0)
        for shape in self.shapes:
            self.enqueue(0, shape)
            self.release(0)
        self._begin_count()

    def enqueue(self, place: int, shape: StepShape) -> None:
        self._waiting.append((place, shape))
        if len(self._waiting) == 1:
            self._forward()

    def _forward(self) -> None:
        place, shape = self._waiting[0]
        with torch.cuda.stream(self.stream):
            self.ring[place].drafts.upload()
            self._logits_of = run_forward(self._runner, self._steps[shape], self.ring[place], shape, self.stream.cuda_stream)

    def release(self, place: int) -> None:
        self._released.add(place)
        while self._waiting and self._waiting[0][0] in self._released:
            self._rest(*self._waiting.popleft())
            if self._waiting:
                self._forward()

    def _rest(self, place: int, shape: StepShape) -> None:
        self._released.discard(place)
        launch, step, stream = self.ring[place], self._steps[shape], self.stream
        with torch.cuda.stream(stream):
            launch.descriptor.upload()
            run_rest(self._runner, step, launch, shape, self.sizes, self._logits_of, stream.cuda_stream)
            launch.result.download()

    def finished(self, place: int, timeout_s: float) -> None:
        return  # ``release`` has waited

    def turn(self, place: int) -> None:
        if self._watchdog.page.lines[place, FLAG]:  # the last resort
            self.release(place)

    def kept_logits(self, place: int, rows: int) -> list[bytes]:
        return [row.tobytes() for row in self.ring[place].kept[:rows].cpu().numpy().astype("<f4", copy=False)]

    def close(self) -> None:
        self.stream.synchronize()


def _current_context() -> Any:
    from cuda.bindings import driver

    torch.zeros(1, device="cuda")  # makes the primary context if there is none yet
    result = driver.cuCtxGetCurrent()
    check(result)
    return result[1]


def _make_current(context: Any) -> None:
    from cuda.bindings import driver

    check(driver.cuCtxSetCurrent(context))
