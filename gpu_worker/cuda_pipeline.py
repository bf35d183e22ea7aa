"""CudaPipeline: the step as captured graphs; the device waits for its rows by itself.

One stream keeps the order. ``launch`` replays the graph of its place and shape; the forward runs at once, the memory-wait node
holds the rest until ``seal`` has written the descriptor and raised the flag, or the watchdog's child process has (then every row
holds).

A graph is chosen before its descriptor is known, by what the owners of the slots asked for at their admission: the least number of
slots that holds them all, one position or all of them, and with overlays and log-probabilities only where an owner wants some.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpu_worker import ranges
from gpu_worker.descriptor import Descriptor, LaunchResult
from gpu_worker.models.base import ModelRunner
from gpu_worker.pipeline import MAX_IN_FLIGHT, Pipeline
from gpu_worker.prompt_scoring import PromptScoring
from gpu_worker.sampler.logprobs import PromptScores
from gpu_worker.sealing import Sealed, Sealer
from gpu_worker.step_buffers import StepShape
from gpu_worker.step_device import CudaStepDevice, StepDevice, UnpinnedStepDevice
from gpu_worker.watchdog import Watchdog
from kernels.step import StepSizes
from shared import log
from shared.bitmask import num_words
from shared.errors import ConfigError
from shared.sampling_params import SamplingParams

POLL_S = 50e-6
NOT_CAPTURED = {
    "logits_processors": "they are Python between the forward and the sampling, and no Python runs in a captured step",
    "use_beam_search": "beams choose among each other's rows on the host, and a captured step does not come back to it",
    "return_context_logits": "a whole prompt's logits would be copied past the captured step",
}


class CudaPipeline(Pipeline):
    """The runner must be on a CUDA device and warm. ``eager`` runs the same calls without graphs (a comparison for tests); without
    ``pinned`` no memory is page-locked. Nothing here allocates or synchronises after construction."""

    def __init__(
        self, runner: ModelRunner, last_resort_s: float = 5.0, *, eager: bool = False, pinned: bool = True,
        device: StepDevice | None = None,
    ) -> None:  # fmt: skip
        if device is None and runner.device.type != "cuda":
            raise ConfigError(f"the runner is on {runner.device}, not on a CUDA device", field="device")
        self._runner = runner
        self._watchdog = Watchdog(MAX_IN_FLIGHT, last_resort_s)
        self._device = device or _make_device(runner, self._watchdog, eager=eager, pinned=pinned)
        sizes = self._device.sizes
        self._ring, self._sealer = self._device.ring, Sealer(sizes)
        self._scoring = PromptScoring(runner, sizes.num_top) if runner.device.type == "cuda" else None
        self._occupied = np.zeros(sizes.slots, np.bool_)
        self._wanting = np.zeros(sizes.slots, np.bool_)
        self._launched = self._collected = 0
        self._shapes: dict[int, StepShape] = {}
        self._least: tuple[int, bool] | None = None  # slots that hold every owner, whether one wants more; None: to be made anew
        self._sealed: dict[int, Sealed] = {}
        self._started_s: dict[int, float] = {}

    def unsupported(self, params: SamplingParams) -> dict[str, str]:
        """What the FULL tier is for, and the prompt's logits."""
        wanted = {
            "logits_processors": bool(params.logits_processors), "use_beam_search": params.use_beam_search,
            "return_context_logits": params.return_context_logits,
        }  # fmt: skip
        return {name: NOT_CAPTURED[name] for name, asked in wanted.items() if asked}

    def row_buffers(self) -> list[NDArray[np.int32]]:
        return [launch.descriptor["rows"] for launch in self._ring]

    def attach(self) -> None:
        """Makes the device current in the calling thread; each thread that calls does so once."""
        self._device.attach()

    def prefill(self, slot: int, token_ids: Sequence[int], start_position: int) -> None:
        self._device.run(lambda: self._runner.prefill(slot, token_ids, start_position))

    def prefill_scored(self, slot: int, token_ids: Sequence[int], start_position: int, scores: PromptScores) -> None:
        if self._scoring is None:
            self._device.run(lambda: scores.add(start_position, self._runner.prefill_logits(slot, token_ids, start_position)))
        else:
            self._device.run(partial(self._scoring.prefill, slot, token_ids, start_position, scores))

    def admit(self, slot: int, epoch: int, golden_token: int, position: int, *, plain: bool = False) -> None:
        self._occupied[slot], self._wanting[slot], self._least = True, not plain, None
        self._device.set_slot(slot, token=golden_token, position=position, length=1, epoch=epoch)

    def release(self, slot: int) -> None:
        self._occupied[slot], self._wanting[slot], self._least = False, False, None
        self._sealer.forget(slot)
        self._device.set_slot(slot, token=0, position=0, length=0, epoch=0)
        self._device.run(lambda: self._runner.reset(slot))

    def draft(self, slot: int, token_ids: Sequence[int], parents: Sequence[int] = ()) -> None:
        if parents:
            raise ConfigError("this device's pipeline takes chains of drafts, no trees", field="draft_branches")
        if self._device.sizes.most <= len(token_ids):
            raise ConfigError(f"{len(token_ids)} drafts, but a forward is {self._device.sizes.most} wide", field="max_draft_tokens")
        drafts = self._ring[(self._launched + 1) % MAX_IN_FLIGHT].drafts
        drafts["drafts"][slot, : len(token_ids)] = token_ids
        drafts["num_drafts"][slot] = len(token_ids)

    def launch(self) -> int:
        if self._launched - self._collected >= MAX_IN_FLIGHT:
            raise RuntimeError(f"more than {MAX_IN_FLIGHT} launches in flight")
        self._launched += 1
        place, shape = self._launched % MAX_IN_FLIGHT, self._shape(self._launched)
        self._shapes[self._launched], self._started_s[self._launched] = shape, time.perf_counter()
        self._ring[place].descriptor["sealed"][0] = 0
        self._watchdog.arm(place, self._launched)
        with ranges.of("forward"):
            self._device.enqueue(place, shape)
        return self._launched

    def _shape(self, number: int) -> StepShape:
        """The least that takes every owner, every draft, and what any of them asks for."""
        if self._least is None:
            owners = np.flatnonzero(self._occupied)
            self._least = int(owners[-1]) + 1 if owners.size else 1, bool(self._wanting.any())
        least, full = self._least
        drafts = 0
        if self._device.sizes.most > 1:
            drafts = int(self._ring[number % MAX_IN_FLIGHT].drafts["num_drafts"].max(initial=0))
        return next(s for s in self._device.shapes if s.active >= least and s.width > drafts and s.full == full)

    def seal(self, descriptor: Descriptor) -> bool:
        """Writes the descriptor, its launch number last, and raises the flag."""
        number = descriptor.launch
        if not self._collected < number <= self._launched or number in self._sealed:
            return False
        block = self._ring[number % MAX_IN_FLIGHT].descriptor
        with ranges.of("copy"):
            self._sealed[number] = self._sealer.write(block, descriptor, self._shapes[number])
            block["sealed"][0] = number
            self._device.release(number % MAX_IN_FLIGHT)
        return True

    def collect(self, timeout_s: float) -> LaunchResult | None:
        if self._collected == self._launched:
            return None
        number = self._collected + 1
        place = number % MAX_IN_FLIGHT
        with ranges.of("sample"):
            if not self._arrived(number, place, timeout_s):
                return None
        self._collected = number
        self._watchdog.done(place, number)
        if self._scoring is not None:
            self._scoring.take()
        return self._result(number, place)

    def _arrived(self, number: int, place: int, timeout_s: float) -> bool:
        end_s, arrived = time.perf_counter() + timeout_s, self._ring[place].result["launch"]
        if number in self._sealed:
            self._device.finished(place, timeout_s)
        while arrived[0] != number:
            if time.perf_counter() > end_s:
                return False
            time.sleep(POLL_S)
            self._device.turn(place)
        return True

    def _result(self, number: int, place: int) -> LaunchResult:
        launch, shape = self._ring[place], self._shapes.pop(number)
        sealed = self._sealed.pop(number, None) or Sealed(shape)
        launch.drafts["num_drafts"][:] = 0
        result = self._sealer.read(number, launch.result, sealed)
        if sealed.kept:
            rows = self._device.kept_logits(place, len(sealed.kept))
            result.logits = {slot: rows[at] for slot, at in sealed.kept.items() if result.token[slot] >= 0}
        result.forward_s = time.perf_counter() - self._started_s.pop(number) - result.wait_s
        return result

    def close(self) -> None:
        """Lets what is in flight hold, waits for it, and gives everything back."""
        for number in range(self._collected + 1, self._launched + 1):
            self._device.release(number % MAX_IN_FLIGHT)
        self._device.close()
        self._watchdog.close()


def _make_device(runner: ModelRunner, watchdog: Watchdog, *, eager: bool, pinned: bool) -> StepDevice:
    sizes, shapes = step_sizes(runner), step_shapes(runner)
    if pinned:
        return CudaStepDevice(runner, sizes, shapes, watchdog, MAX_IN_FLIGHT, eager=eager)
    log.get("pipeline").warning("page-locked memory is off: steps are not captured, and every copy waits for the device")
    return UnpinnedStepDevice(runner, sizes, shapes, watchdog, MAX_IN_FLIGHT)


def step_sizes(runner: ModelRunner) -> StepSizes:
    """With a cache of rows of twice those of a launch at least, unless it were larger than half a gigabyte or so."""
    slots, most, words = runner.max_slots, runner.max_width, num_words(runner.vocab_size)
    cached = max(1024, 2 * slots * most)
    fits = cached * words * 4 <= 1 << 29
    return StepSizes(slots, most, runner.vocab_size, words, kept=min(slots, 16), cached=cached if fits else 0)


def step_shapes(runner: ModelRunner) -> tuple[StepShape, ...]:
    """Ascending in what they cost: slots first, then positions."""
    return tuple(StepShape(slots, width, full) for slots, width in sorted(runner.decode_shapes) for full in (False, True))
