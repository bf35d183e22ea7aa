"""The captured step on the device: same tokens as the host pipeline and as eager calls, races, a held interpreter lock."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from gpu_worker.cuda_pipeline import CudaPipeline
from gpu_worker.descriptor import Descriptor, LaunchResult, SlotAction
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.models.vocabulary import invented_vocabulary
from gpu_worker.pipeline import HostPipeline, Pipeline
from kernels.reference import SampleRows
from shared.bitmask import Words, num_words, pack

pytestmark = pytest.mark.gpu
VOCAB, SLOTS = 32_003, 8
Maker = Callable[..., CudaPipeline]


def make_runner(device: str, slots: int = SLOTS, forward_ms: float = 0.0) -> SyntheticRunner:
    shape = RunnerShape(max_slots=slots, max_length=4096, prefill_chunk=16)
    runner = SyntheticRunner(invented_vocabulary(VOCAB), shape, SyntheticOptions(seed=3, forward_ms=forward_ms), device)
    runner.warm_up()
    return runner


@pytest.fixture
def make() -> Iterator[Maker]:
    made: list[CudaPipeline] = []

    def build(last_resort_s: float = 5.0, *, eager: bool = False, forward_ms: float = 0.0) -> CudaPipeline:
        made.append(CudaPipeline(make_runner("cuda", forward_ms=forward_ms), last_resort_s, eager=eager))
        return made[-1]

    yield build
    for pipeline in made:
        pipeline.close()


def start(pipeline: Pipeline, slots: range = range(SLOTS)) -> None:
    for slot in slots:
        pipeline.prefill(slot, [10 + slot, 20, 30], 0)
        pipeline.admit(slot, slot + 1, 40 + slot, 3)


def row_of(slot: int, position: int) -> Words:
    dice = random.Random(slot * 1000 + position)
    return pack(dice.sample(range(VOCAB), 1 + (slot * 97 + position) % 300), VOCAB)


def descriptor(pipeline: Pipeline, launch: int, position: int, hold: frozenset[int] = frozenset()) -> Descriptor:
    """Even slots are guided by a row of their own, odd ones are not; temperature, top_k, top_p and min_p vary by slot."""
    bits = pipeline.row_buffers()[launch % 2]
    action = np.array([SlotAction.GUIDED if slot % 2 == 0 else SlotAction.UNGUIDED for slot in range(SLOTS)], np.int32)
    for slot in range(0, SLOTS, 2):
        bits[slot] = row_of(slot, position)
    action[list(hold)] = SlotAction.HOLD
    rows = SampleRows(
        temperature=torch.tensor([0.0, 1.0, 0.7, 1.3, 1.0, 1.0, 0.0, 2.0]),
        top_k=torch.tensor([0, 50, 0, 5, 0, 0, 3, 0], dtype=torch.int32),
        top_p=torch.tensor([1.0, 0.9, 0.5, 1.0, 1.0, 0.95, 1.0, 1.0]),
        min_p=torch.tensor([0.0, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.02]),
        seed=torch.arange(SLOTS), offset=torch.full((SLOTS,), position),
    )  # fmt: skip
    return Descriptor(launch, action, torch.from_numpy(bits), np.arange(1, SLOTS + 1), rows)


def collect(pipeline: Pipeline) -> LaunchResult:
    result = pipeline.collect(20.0)
    assert result is not None, "the device does not answer"
    assert result.error is None
    return result


def tokens(pipeline: Pipeline, steps: int) -> list[list[int]]:
    """Tokens of ``steps`` steps, two launches in flight all along."""
    start(pipeline)
    taken, launch = [], pipeline.launch()
    for step in range(steps):
        following = pipeline.launch()
        assert pipeline.seal(descriptor(pipeline, launch, step))
        taken.append(collect(pipeline).token.tolist())
        launch = following
    pipeline.seal(Descriptor.holding(launch, SLOTS, num_words(VOCAB)))
    collect(pipeline)
    return taken


# spec R12 56 57 131 134
def test_graph_eager_and_host_give_the_same_tokens(make: Maker) -> None:
    graph, eager = tokens(make(), 60), tokens(make(eager=True), 60)
    assert graph == eager
    assert all(token >= 0 for row in graph for token in row)
    host = HostPipeline(make_runner("cpu"))
    try:
        on_host = tokens(host, 60)
    finally:
        host.close()
    different = sum(a != b for mine, theirs in zip(graph, on_host, strict=True) for a, b in zip(mine, theirs, strict=True))
    assert different == 0, f"{different} of {60 * SLOTS} tokens differ from the host's"


# spec R5 R7
def test_a_held_slot_repeats_its_step_exactly(make: Maker) -> None:
    straight = tokens(make(), 12)
    pipeline = make()
    start(pipeline)
    lengths, taken = [0] * SLOTS, [[] for _ in range(SLOTS)]
    dice = random.Random(5)
    while min(lengths) < 12:
        hold = frozenset(slot for slot in range(SLOTS) if lengths[slot] >= 12 or dice.random() < 0.4)
        launch = pipeline.launch()
        sealed = descriptor(pipeline, launch, 0, hold)
        for slot in range(0, SLOTS, 2):
            sealed.bitmask[slot] = torch.from_numpy(row_of(slot, lengths[slot]))
        assert sealed.rows is not None
        sealed.rows.offset = torch.tensor(lengths)
        pipeline.seal(sealed)
        result = collect(pipeline)
        for slot in range(SLOTS):
            assert (result.token[slot] == -1) == (slot in hold)
            if slot not in hold:
                taken[slot].append(int(result.token[slot]))
                lengths[slot] += 1
    assert taken == [[row[slot] for row in straight] for slot in range(SLOTS)]


def test_the_last_resort_holds_and_a_late_seal_cannot_hurt(make: Maker) -> None:
    straight = tokens(make(), 3)
    pipeline = make(last_resort_s=0.15)
    start(pipeline)
    late = pipeline.launch()
    result = collect(pipeline)  # nobody seals: the watchdog lets it go
    assert (result.token == -1).all()
    assert not pipeline.seal(descriptor(pipeline, late, 0))  # a double release is refused
    got = []
    for step in range(3):
        launch = pipeline.launch()
        if step == 1:
            time.sleep(0.5)  # the seal comes long after the release
            assert (collect(pipeline).token == -1).all()
            pipeline.seal(descriptor(pipeline, launch, step))
            launch = pipeline.launch()
        pipeline.seal(descriptor(pipeline, launch, step))
        got.append(collect(pipeline).token.tolist())
    assert got == straight


def test_a_descriptor_of_another_launch_holds(make: Maker) -> None:
    pipeline = make(last_resort_s=0.3)
    start(pipeline)
    launch = pipeline.launch()
    wrong = descriptor(pipeline, launch, 0)
    wrong.launch = launch + 1
    assert not pipeline.seal(wrong)
    assert (collect(pipeline).token == -1).all()


def test_a_slot_that_changed_its_owner_is_idle(make: Maker) -> None:
    pipeline = make()
    start(pipeline)
    launch = pipeline.launch()
    sealed = descriptor(pipeline, launch, 0)
    sealed.epoch[3] = 99
    pipeline.seal(sealed)
    result = collect(pipeline)
    assert result.action[3] == SlotAction.IDLE and result.token[3] == -1
    assert (np.delete(result.token, 3) >= 0).all()
    pipeline.release(4)
    launch = pipeline.launch()
    pipeline.seal(descriptor(pipeline, launch, 1))
    assert collect(pipeline).action[4] == SlotAction.IDLE


# spec 51 54 58
def test_the_watchdog_needs_no_interpreter_lock(make: Maker) -> None:
    """The lock is held for 2 s inside a pending wait; the device was let go after 0.3 s all the same."""
    pipeline = make(last_resort_s=0.3)
    start(pipeline)
    pipeline.launch()
    finished = torch.cuda.Event(enable_timing=False)
    with torch.cuda.stream(pipeline._device.stream):
        finished.record()
    ctypes.PyDLL(None).usleep(2_000_000)  # PyDLL keeps the lock
    assert finished.query()
    assert (collect(pipeline).token == -1).all()


def test_many_steps_with_random_delays(make: Maker) -> None:
    pipeline = make(last_resort_s=10.0)
    dice = random.Random(1)
    start(pipeline)
    launch = pipeline.launch()
    for _ in range(3000):
        following = pipeline.launch()
        if dice.random() < 0.05:
            time.sleep(dice.random() * 0.004)
        pipeline.seal(descriptor(pipeline, launch, 0))
        assert (collect(pipeline).token >= 0).all()
        launch = following
    pipeline.seal(Descriptor.holding(launch, SLOTS, num_words(VOCAB)))
    collect(pipeline)
