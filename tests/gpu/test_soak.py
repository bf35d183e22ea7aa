"""Many steps with everything that can go wrong: late seals, holds, changes of owner, cancelled requests, killed and stopped
services. ``MASKSTREAM_SOAK_STEPS`` and ``MASKSTREAM_SOAK_S`` say how many and how long."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_worker.config import WorkerSettings
from gpu_worker.cuda_pipeline import CudaPipeline
from gpu_worker.descriptor import Descriptor, SlotAction
from gpu_worker.engine import Engine
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.outcomes import Outcomes
from gpu_worker.request import Model, admit
from gpu_worker.requests import Requests
from gpu_worker.scheduler import Scheduler
from shared.bitmask import num_words
from shared.clock import MonotonicClock
from shared.protocol import Done, Failed, Generate
from tests.real_services import RealLink
from tests.step_bench import SIZE, SLOTS, WIDTH, make_runner, parameters

pytestmark = pytest.mark.gpu
STEPS, SECONDS = int(os.environ.get("MASKSTREAM_SOAK_STEPS", "20000")), float(os.environ.get("MASKSTREAM_SOAK_S", "20"))


def test_many_steps_of_the_pipeline() -> None:
    """Two launches in flight all along; now and then a launch is sealed late, or by the last resort, or its owners have changed."""
    pipeline, dice = CudaPipeline(make_runner(device="cuda"), last_resort_s=0.2), random.Random(3)
    epochs, bits = [0] * SLOTS, torch.zeros((SLOTS * WIDTH, num_words(SIZE)), dtype=torch.int32)
    left = [0] * SLOTS

    def renew(slot: int) -> None:
        if epochs[slot]:
            pipeline.release(slot)
        epochs[slot], left[slot] = max(epochs) + 1, dice.randrange(10, 90)
        pipeline.prefill(slot, [10 + slot, 20], 0)
        pipeline.admit(slot, epochs[slot], 40, 2, plain=dice.random() < 0.7)

    counts: Counter[str] = Counter()
    try:
        for slot in range(SLOTS):
            renew(slot)
        launch = pipeline.launch()
        for _ in range(STEPS):
            following = pipeline.launch()
            chance = dice.random()
            if chance < 0.003:
                time.sleep(dice.random() * 0.005)
            if chance > 0.9999:
                counts["last resort"] += 1  # nobody seals
            else:
                action = np.array([SlotAction.HOLD if dice.random() < 0.1 else SlotAction.UNGUIDED for _ in range(SLOTS)], np.int32)
                rows = parameters(np.zeros(SLOTS, np.int64))
                assert pipeline.seal(Descriptor(launch, action, bits, np.array(epochs), rows))
            result = pipeline.collect(10.0)
            assert result is not None, f"hangs after {counts['steps']} steps"
            assert result.launch == launch
            counts["steps"] += 1
            counts["tokens"] += int((result.token >= 0).sum())
            for slot in range(SLOTS):
                left[slot] -= 1
                if left[slot] <= 0:
                    renew(slot)
            launch = following
        pipeline.seal(Descriptor.holding(launch, SLOTS, num_words(SIZE)))
        assert pipeline.collect(10.0) is not None
    finally:
        pipeline.close()
    print(dict(counts))
    assert counts["tokens"] > 2 * STEPS


class Encoder:
    def encode(self, text, *, add_special_tokens=True):
        return list(text.encode())


GUIDES = [
    None,
    {"json": {"type": "object", "properties": {"yes": {"type": "boolean"}, "n": {"enum": [1, 22, 333]}}, "required": ["yes", "n"]}},
    {"regex": "(ab|cd){1,6}e?"},
    {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 9}},
]
SAMPLINGS = [
    {"temperature": 1.0}, {"temperature": 0}, {"temperature": 1.2, "frequency_penalty": 0.5, "logit_bias": {"97": 1.0}},
    {"temperature": 1.0, "logprobs": 2},
]  # fmt: skip


class Worker:
    """The step loop over the captured step, with three grammar services as processes."""

    def __init__(self, folder: Path, *, hold_after_s: float = 0.05) -> None:
        self.real = RealLink(folder, services=3)
        self.clock, vocabulary = MonotonicClock(), self.real.vocabulary
        shape = RunnerShape(max_slots=16, max_length=256, max_width=4, prefill_chunk=32)
        runner = SyntheticRunner(vocabulary, shape, SyntheticOptions(seed=5, mean_length=40), "cuda")
        runner.warm_up()
        self.pipeline, self.replies = CudaPipeline(runner), queue.SimpleQueue()
        self.outcomes = Outcomes(lambda sent: [self.replies.put(m) for _, m in sent], self.clock, vocabulary.size)
        settings = WorkerSettings(max_slots=16, max_draft_tokens=3, replay_after_s=0.5, hold_after_s=hold_after_s)
        requests, scheduler = Requests(vocabulary), Scheduler(16, 32)
        self.engine = Engine(settings, self.pipeline, self.real.link, scheduler, requests, self.outcomes, self.clock)
        self.model = Model("soak", vocabulary, Encoder(), 256)
        self.engine.start()

    def submit(self, number: int, guide: object, **params: object) -> None:
        message = Generate(
            request_id=str(number), prompt_token_ids=[70, 71], structured_outputs=guide, stream=False,
            verify=guide is not None, sampling_params={"seed": number, "max_tokens": 60, **params},
        )  # fmt: skip
        request = admit(message, b"c", self.model, now_s=self.clock.now_s(), deadline_s=60.0, max_deadline_s=60.0)
        self.engine.submit(request)

    def close(self) -> None:
        self.engine.close()
        self.outcomes.close()
        self.pipeline.close()
        self.real.close()


def test_a_service_dies_while_the_graph_waits(tmp_path) -> None:
    """Three texts on three services, of which one is stopped and then killed with a launch on its flag: the texts are those that
    nobody disturbed, and a text without a guide went on meanwhile."""
    worker = Worker(tmp_path, hold_after_s=0.02)
    try:
        texts: list[dict[str, list[int]]] = []
        for disturbed in (False, True):
            for number in range(1, 13):
                worker.submit(number, GUIDES[number % len(GUIDES)], temperature=1.0)
            if disturbed:
                name = sorted(worker.real.services)[0]
                worker.real.signal(name, signal.SIGSTOP)
                time.sleep(0.1)
                worker.real.kill(name)
            endings = [worker.replies.get(timeout=60) for _ in range(12)]
            assert all(isinstance(ending, Done) for ending in endings), endings
            texts.append({ending.request_id: ending.choices[0].token_ids for ending in endings})
        assert texts[0] == texts[1]
    finally:
        worker.close()


def test_the_worker_under_disturbance(tmp_path) -> None:
    """Every request ends once, in time; a guided text that ends by itself is what its guide says."""
    worker = Worker(tmp_path)
    dice, open_requests, counts = random.Random(9), {}, Counter()
    try:
        until_s, next_kill_s, number = time.monotonic() + SECONDS, time.monotonic() + 2.0, 0
        while time.monotonic() < until_s or open_requests:
            while time.monotonic() < until_s and len(open_requests) < 24:
                number += 1
                open_requests[str(number)] = GUIDES[number % len(GUIDES)]
                worker.submit(number, open_requests[str(number)], **dice.choice(SAMPLINGS))
                if dice.random() < 0.05:
                    worker.engine.cancel(b"c", str(number - dice.randrange(3)))
            ending = worker.replies.get(timeout=70)
            assert isinstance(ending, Done | Failed)
            guide = open_requests.pop(ending.request_id)  # a second ending would be a KeyError
            _count(counts, ending, guide)
            if next_kill_s < time.monotonic() < until_s - 3:
                _disturb(worker.real, dice, counts)
                next_kill_s = time.monotonic() + 2.0
        counts["steps"] = worker.pipeline._launched
    finally:
        worker.close()
    print(json.dumps(counts))
    assert counts["failed"] == counts["invalid"] == 0
    assert counts["stop"] > 20


def _count(counts: Counter[str], ending: Done | Failed, guide: object) -> None:
    if isinstance(ending, Failed):
        counts["failed"] += 1
        print(ending.error)
        return
    choice = ending.choices[0]
    counts[choice.finish_reason] += 1
    counts["tokens"] += len(choice.token_ids)
    counts["drafts accepted"] += ending.usage.drafts_accepted
    counts["replays"] += ending.usage.replays
    counts["invalid"] += bool(guide) and choice.stop_reason == "grammar" and choice.valid is False


def _disturb(real: RealLink, dice: random.Random, counts: Counter[str]) -> None:
    """Kills a service and starts another, or stops one for a while."""
    name = dice.choice(sorted(real.services))
    if dice.random() < 0.6:
        counts["killed"] += 1
        real.kill(name)
        real.start_service()
    else:
        counts["stopped"] += 1
        real.signal(name, signal.SIGSTOP)
        time.sleep(0.3)
        real.signal(name, signal.SIGCONT)
