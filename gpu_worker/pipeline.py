"""Pipeline: the device as the step loop sees it. HostPipeline's device is a thread; CUDA comes behind the same face.

The order on the device is the order of the calls. A launch reads the golden tokens that the launch before it wrote, runs the
forward, waits for its sealed descriptor, samples, commits. Two launches may be in flight, so a forward runs while the host and the
grammar services work on the rows that it will need. A launch whose descriptor is not sealed in time holds every row (last resort).
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.descriptor import Descriptor, LaunchResult, SlotAction
from gpu_worker.models.base import ModelRunner
from gpu_worker.sampler.context_logits import ContextLogits
from gpu_worker.sampler.logprobs import PromptScores
from gpu_worker.speculation.verification import Verifier, accepted_nodes, accepted_tokens
from shared.bitmask import num_words
from shared.errors import ConfigError, MaskstreamError
from shared.sampling_params import SamplingParams

MAX_IN_FLIGHT = 2


class Pipeline(ABC):
    """Calls return at once (``collect`` excepted); the device does them in order."""

    def unsupported(self, params: SamplingParams) -> dict[str, str]:
        """Parameters that this pipeline cannot honour, and why: such a request is refused."""
        return {}

    @abstractmethod
    def attach(self) -> None:
        """Called once by the thread that will make the other calls."""

    @abstractmethod
    def row_buffers(self) -> list[NDArray[np.int32]]:
        """MAX_IN_FLIGHT buffers int32 [slots * T, W]; launch n reads number n % MAX_IN_FLIGHT, from its seal until it is
        collected."""

    @abstractmethod
    def prefill(self, slot: int, token_ids: Sequence[int], start_position: int) -> None:
        """Writes prompt tokens of a slot."""

    def prefill_scored(self, slot: int, token_ids: Sequence[int], start_position: int, scores: PromptScores) -> None:
        """``prefill`` that also tells ``scores`` the logits of every token."""
        raise MaskstreamError("prompt log-probabilities are not on this device's pipeline", field="prompt_logprobs")

    def prefill_told(self, slot: int, token_ids: Sequence[int], start_position: int, logits: ContextLogits) -> None:
        """``prefill`` that keeps the logits of every token."""
        raise MaskstreamError("returned prompt logits are not on this device's pipeline", field="return_context_logits")

    @abstractmethod
    def admit(self, slot: int, epoch: int, golden_token: int, position: int, *, plain: bool = False) -> None:
        """Gives a slot to an owner: the next launch feeds ``golden_token`` at ``position``. ``plain``: it will want neither overlay
        nor log-probabilities nor logits."""

    @abstractmethod
    def release(self, slot: int) -> None:
        """Takes the slot from its owner; launches after this leave it alone."""

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Gives a slot the first ``num_tokens`` positions of another; ``admit`` comes after. Raises ConfigError where the device
        does not copy slots."""
        raise ConfigError("this device's pipeline copies no slots", field="use_beam_search")

    def draft(self, slot: int, token_ids: Sequence[int], parents: Sequence[int] = ()) -> None:
        """The next launch also feeds these behind the slot's golden token, which must be known: nothing may be in flight.
        ``parents``: the node each follows, 0 the golden token, j the draft j - 1 (empty: a chain). Raises ConfigError where the
        device takes no drafts, or no trees."""
        raise ConfigError("this device's pipeline takes no drafts", field="max_draft_tokens")

    @abstractmethod
    def launch(self) -> int:
        """Enqueues forward, wait, sample, commit. Returns the launch number. At most MAX_IN_FLIGHT may be uncollected."""

    @abstractmethod
    def seal(self, descriptor: Descriptor) -> bool:
        """Hands a launch its descriptor, once. False where the last resort was quicker."""

    @abstractmethod
    def collect(self, timeout_s: float) -> LaunchResult | None:
        """The oldest uncollected result, or None after ``timeout_s``."""

    @abstractmethod
    def close(self) -> None:
        """Ends the device's work."""


class Flag:
    """Where a descriptor is handed over: sealed exactly once, by the host or by the last resort."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sealed = threading.Event()
        self._descriptor: Descriptor | None = None

    def seal(self, descriptor: Descriptor) -> bool:
        with self._lock:
            if self._descriptor is not None:
                return False
            self._descriptor = descriptor
        self._sealed.set()
        return True

    def wait(self, timeout_s: float, last_resort: Descriptor) -> Descriptor:
        if not self._sealed.wait(timeout_s):
            self.seal(last_resort)
        if self._descriptor is None:
            raise RuntimeError("a flag was released without a descriptor")
        return self._descriptor


class HostPipeline(Pipeline):
    """The device is one thread with its own copies of token, position and owner of each slot."""

    def __init__(self, runner: ModelRunner, last_resort_s: float = 5.0) -> None:
        slots = runner.max_slots
        self._runner, self._last_resort_s = runner, last_resort_s
        self._words = num_words(runner.vocab_size)
        self._verifier = Verifier(runner.max_width, runner.vocab_size)
        self._tokens = torch.zeros((slots, runner.max_width), dtype=torch.int64)
        self._positions = torch.zeros(slots, dtype=torch.int64)
        self._lengths = torch.zeros(slots, dtype=torch.int64)
        self._chain = torch.arange(-1, runner.max_width - 1)
        self._parents = self._chain.repeat(slots, 1)
        self._has_trees = False
        self._epoch = np.zeros(slots, np.int64)
        self._slot_errors: dict[int, Exception] = {}
        self._launched = self._collected = 0
        self._flags: dict[int, Flag] = {}
        self._work: queue.SimpleQueue[tuple[object, ...] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[LaunchResult] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="host-device", daemon=True)
        self._thread.start()

    def attach(self) -> None:
        return  # the device is a thread of its own: any thread may call

    def row_buffers(self) -> list[NDArray[np.int32]]:
        return [np.zeros((self._tokens.numel(), self._words), np.int32) for _ in range(MAX_IN_FLIGHT)]

    def prefill(self, slot: int, token_ids: Sequence[int], start_position: int) -> None:
        self._work.put((self._do_prefill, slot, list(token_ids), start_position))

    def prefill_scored(self, slot: int, token_ids: Sequence[int], start_position: int, scores: PromptScores) -> None:
        self._work.put((self._do_prefill, slot, list(token_ids), start_position, scores))

    def prefill_told(self, slot: int, token_ids: Sequence[int], start_position: int, logits: ContextLogits) -> None:
        self._work.put((self._do_prefill, slot, list(token_ids), start_position, logits))

    def admit(self, slot: int, epoch: int, golden_token: int, position: int, *, plain: bool = False) -> None:
        self._work.put((self._do_admit, slot, epoch, golden_token, position))

    def release(self, slot: int) -> None:
        self._work.put((self._do_release, slot))

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        self._work.put((self._do_copy, source, target, num_tokens))

    def draft(self, slot: int, token_ids: Sequence[int], parents: Sequence[int] = ()) -> None:
        if len(token_ids) >= self._runner.max_width:
            raise ConfigError(f"{len(token_ids)} drafts, but a forward is {self._runner.max_width} wide", field="max_draft_tokens")
        self._work.put((self._do_draft, slot, list(token_ids), list(parents)))

    def launch(self) -> int:
        if self._launched - self._collected >= MAX_IN_FLIGHT:
            raise RuntimeError(f"more than {MAX_IN_FLIGHT} launches in flight")
        self._launched += 1
        self._flags[self._launched] = Flag()
        self._work.put((self._do_launch, self._launched))
        return self._launched

    def seal(self, descriptor: Descriptor) -> bool:
        flag = self._flags.get(descriptor.launch)
        return flag.seal(descriptor) if flag is not None else False

    def collect(self, timeout_s: float) -> LaunchResult | None:
        try:
            result = self._results.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._collected += 1
        return result

    def close(self) -> None:
        for number, flag in list(self._flags.items()):
            flag.seal(self._holding(number))
        self._work.put(None)
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            call, *arguments = work
            call(*arguments)  # type: ignore[operator]

    def _do_prefill(
        self, slot: int, token_ids: list[int], start_position: int, scores: PromptScores | ContextLogits | None = None
    ) -> None:
        try:
            if scores is None:
                self._runner.prefill(slot, token_ids, start_position)
            else:
                scores.add(start_position, self._runner.prefill_logits(slot, token_ids, start_position))
        except Exception as error:  # the slot's owner fails by name when it is its turn, nobody else
            self._slot_errors[slot] = error

    def _do_copy(self, source: int, target: int, num_tokens: int) -> None:
        try:
            self._runner.copy_slot(source, target, num_tokens)
        except Exception as error:  # as for a prefill
            self._slot_errors[target] = error

    def _do_admit(self, slot: int, epoch: int, golden_token: int, position: int) -> None:
        self._tokens[slot, 0], self._positions[slot], self._lengths[slot] = golden_token, position, 1
        self._epoch[slot] = epoch

    def _do_draft(self, slot: int, token_ids: list[int], parents: list[int]) -> None:
        if parents:
            self._parents[slot, 1 : 1 + len(parents)] = torch.tensor(parents, dtype=torch.int64)
            self._has_trees = True
        self._tokens[slot, 1 : 1 + len(token_ids)] = torch.tensor(token_ids, dtype=torch.int64)
        self._lengths[slot] = 1 + len(token_ids)

    def _do_release(self, slot: int) -> None:
        self._lengths[slot], self._epoch[slot] = 0, 0
        self._slot_errors.pop(slot, None)
        self._runner.reset(slot)

    def _do_launch(self, number: int) -> None:
        try:
            result = self._execute(number)
        except Exception as error:  # the step loop fails the sequences of this launch by name
            result = LaunchResult.nothing(number, len(self._epoch))
            result.error = error
        self._lengths.clamp_(max=1)
        if self._has_trees:
            self._parents[:], self._has_trees = self._chain, False
        self._flags.pop(number, None)
        self._results.put(result)

    def _execute(self, number: int) -> LaunchResult:
        started = time.perf_counter()
        parents = self._parents if self._has_trees else None
        logits = self._runner.decode(self._tokens, self._positions, self._lengths, parents) if self._lengths.any() else None
        ready = time.perf_counter()
        descriptor = self._flags[number].wait(self._last_resort_s, self._holding(number))
        sealed = time.perf_counter()
        action = self._checked_action(descriptor, number)
        result, *ahead = results = self._verifier.verify(
            logits, self._tokens, self._lengths, descriptor, action, descriptor.ahead, parents
        )
        self._commit(results)
        result.ahead = ahead
        result.slot_errors.update(self._slot_errors)
        result.forward_s, result.wait_s = ready - started, sealed - ready
        return result

    def _checked_action(self, descriptor: Descriptor, number: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """The actions that may be done: guided rows of another launch hold, slots whose owner has changed are idle."""
        action = descriptor.action.copy()
        if descriptor.launch != number:
            action[action == SlotAction.GUIDED] = SlotAction.HOLD
        action[(self._epoch != descriptor.epoch) | (self._lengths.numpy() == 0)] = SlotAction.IDLE
        action[list(self._slot_errors)] = SlotAction.IDLE
        return action

    def _commit(self, results: list[LaunchResult]) -> None:
        """Moves what the device owns, for the slots that got tokens and for no others: what was written behind the last of them
        is written again, and what a tree's path has behind siblings moves up."""
        for slot in np.flatnonzero(results[0].token >= 0):
            tokens, nodes = accepted_tokens(results, int(slot)), accepted_nodes(results, int(slot))
            if nodes[-1] >= len(nodes):
                self._runner.keep(int(slot), int(self._positions[slot]), nodes)
            self._tokens[slot, 0] = tokens[-1]
            self._positions[slot] += len(tokens)

    def _holding(self, number: int) -> Descriptor:
        return Descriptor.holding(number, len(self._epoch), self._words)
