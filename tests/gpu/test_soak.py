"""Many steps with everything that can go wrong: late seals, holds, changes of owner, cancelled requests, killed and stopped
services. ``MASKSTREAM_SOAK_STEPS`` and ``MASKSTREAM_SOAK_S`` say how many and how long."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter

import numpy as np
import pytest
import torch

from gpu_worker.cuda_pipeline import CudaPipeline
from gpu_worker.descriptor import Descriptor, SlotAction
from shared.bitmask import num_words
from shared.protocol import Done, Failed
from tests.captured_worker import GUIDES, SAMPLINGS, Worker, check_a_death
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


def test_services_die_while_the_graph_waits(tmp_path) -> None:
    check_a_death(Worker(tmp_path, CudaPipeline, "cuda", hold_after_s=0.02))


def test_the_worker_under_disturbance(tmp_path) -> None:
    """Every request ends once, in time; a guided text that ends by itself is what its guide says."""
    worker = Worker(tmp_path, CudaPipeline, "cuda")
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
