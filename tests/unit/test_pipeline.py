"""The host pipeline: two launches in flight, one seal a launch, a last resort, and owners that are checked."""

import threading
import time

import numpy as np
import pytest
import torch

from gpu_worker.descriptor import SlotAction
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.pipeline import Flag, HostPipeline
from gpu_worker.speculation import Ahead, AheadRows
from shared.bitmask import pack
from shared.errors import ConfigError
from tests.device import MAX_LENGTH, SLOTS, WORDS, descriptor, greedy, make_runner
from tests.vocabularies import tiny

PATIENCE_S = 20.0


@pytest.fixture
def pipeline():
    made = HostPipeline(make_runner(), last_resort_s=PATIENCE_S)
    yield made
    made.close()


@pytest.fixture
def impatient():
    made = HostPipeline(make_runner(), last_resort_s=0.1)
    yield made
    made.close()


def admit(pipeline, slot, epoch, prompt):
    if prompt[:-1]:
        pipeline.prefill(slot, prompt[:-1], 0)
    pipeline.admit(slot, epoch, prompt[-1], len(prompt) - 1)


def collect(pipeline):
    result = pipeline.collect(PATIENCE_S)
    assert result is not None
    assert result.error is None
    return result


def test_a_launch_samples_what_the_model_says(pipeline):
    admit(pipeline, 1, 7, [65, 66, 67])
    launch = pipeline.launch()
    assert pipeline.seal(descriptor(launch, {1: 7}))
    result = collect(pipeline)
    assert result.launch == launch == 1
    assert result.token.tolist() == [-1, greedy([65, 66, 67]), -1, -1]
    assert result.epoch[1] == 7


def test_the_next_launch_feeds_the_token_of_the_last(pipeline):
    admit(pipeline, 0, 1, [65])
    tokens = [65]
    for _ in range(5):
        assert pipeline.seal(descriptor(pipeline.launch(), {0: 1}))
        tokens.append(int(collect(pipeline).token[0]))
    assert tokens[1:] == [greedy(tokens[: n + 1]) for n in range(5)]


def test_two_launches_in_flight(pipeline):  # spec 52
    admit(pipeline, 0, 1, [65])
    first, second = pipeline.launch(), pipeline.launch()
    with pytest.raises(RuntimeError, match="in flight"):
        pipeline.launch()
    assert pipeline.seal(descriptor(second, {0: 1}))  # sealed early: it still waits for the first
    assert pipeline.collect(0.1) is None
    assert pipeline.seal(descriptor(first, {0: 1}))
    one, two = collect(pipeline), collect(pipeline)
    assert (one.launch, two.launch) == (first, second)
    assert two.token[0] == greedy([65, int(one.token[0])])
    assert pipeline.launch() == 3


def test_a_guided_row_is_obeyed(pipeline):
    admit(pipeline, 0, 1, [65])
    allowed = {70, 200, 263}
    assert pipeline.seal(descriptor(pipeline.launch(), {0: 1}, guided={0: allowed}))
    assert collect(pipeline).token[0] == greedy([65], allowed)


def test_a_held_slot_repeats_its_step(pipeline):  # nothing of it moves
    admit(pipeline, 0, 1, [65])
    admit(pipeline, 1, 2, [65])
    pipeline.seal(descriptor(pipeline.launch(), {0: 1, 1: 2}, held=[0]))
    held = collect(pipeline)
    assert held.token[0] == -1
    assert held.token[1] == greedy([65])
    pipeline.seal(descriptor(pipeline.launch(), {0: 1, 1: 2}))
    after = collect(pipeline)
    assert after.token[0] == greedy([65])
    assert after.token[1] == greedy([65, greedy([65])])


def test_sealed_exactly_once(pipeline):
    admit(pipeline, 0, 1, [65])
    launch = pipeline.launch()
    other = descriptor(launch, {0: 1}, guided={0: {70}})
    assert pipeline.seal(descriptor(launch, {0: 1}, guided={0: {71}}))
    assert not pipeline.seal(other)
    assert collect(pipeline).token[0] == 71
    assert not pipeline.seal(other)  # and not after the launch
    assert not pipeline.seal(descriptor(99, {0: 1}))


def test_one_of_many_threads_seals():
    flag, won = Flag(), []
    gate = threading.Barrier(8)

    def race(number):
        gate.wait()
        if flag.seal(descriptor(number, {})):
            won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert flag.wait(0.0, descriptor(99, {})).launch == won[0]


def test_the_last_resort_holds_everything(impatient):  # fail closed
    admit(impatient, 0, 1, [65])
    launch = impatient.launch()
    result = collect(impatient)
    assert result.token.tolist() == [-1] * SLOTS
    assert not impatient.seal(descriptor(launch, {0: 1}))  # too late: told so
    impatient.seal(descriptor(impatient.launch(), {0: 1}))
    assert collect(impatient).token[0] == greedy([65])  # the step is repeated, nothing was lost


def test_a_descriptor_of_another_launch_never_guides(pipeline):  # spec 132: what describes the rows travels with them
    """The host wrote over a descriptor that the device had not read yet: its guided rows hold."""
    admit(pipeline, 0, 1, [65])
    admit(pipeline, 1, 2, [66])
    first, second = pipeline.launch(), pipeline.launch()
    late = descriptor(second, {0: 1, 1: 2}, guided={0: {70}})
    assert pipeline.seal(late)
    late.launch = second + 1
    assert pipeline.seal(descriptor(first, {0: 1, 1: 2}, held=[0, 1]))
    collect(pipeline)
    result = collect(pipeline)
    assert result.action[0] == SlotAction.HOLD
    assert result.token[0] == -1


def test_a_stale_owner_never_acts(pipeline):
    admit(pipeline, 0, 1, [65])
    first = pipeline.launch()
    pipeline.release(0)
    admit(pipeline, 0, 2, [66])
    second = pipeline.launch()
    pipeline.seal(descriptor(second, {0: 1}))  # made for the owner that has gone
    pipeline.seal(descriptor(first, {0: 1}))
    assert collect(pipeline).token[0] == greedy([65])  # the release came after this launch
    stale = collect(pipeline)
    assert stale.token[0] == -1
    assert stale.action[0] == SlotAction.IDLE
    pipeline.seal(descriptor(pipeline.launch(), {0: 2}))
    assert collect(pipeline).token[0] == greedy([66])  # and nothing of the new owner had moved


def test_a_released_slot_is_idle(pipeline):
    admit(pipeline, 0, 1, [65])
    pipeline.release(0)
    pipeline.seal(descriptor(pipeline.launch(), {0: 1}))
    assert collect(pipeline).token.tolist() == [-1] * SLOTS


def test_a_dead_row_fails_alone(pipeline):  # spec R7, R17
    admit(pipeline, 0, 1, [65])
    admit(pipeline, 1, 2, [66])
    pipeline.seal(descriptor(pipeline.launch(), {0: 1, 1: 2}, guided={0: set()}))
    result = collect(pipeline)
    assert result.token[0] == -1
    assert result.status[0] != 0
    assert result.token[1] == greedy([66])


def test_a_failing_launch_says_so_and_the_device_goes_on(pipeline):
    pipeline.admit(0, 1, 65, 5)  # position 5 of a slot in which nothing was written
    pipeline.seal(descriptor(pipeline.launch(), {0: 1}))
    result = pipeline.collect(PATIENCE_S)
    assert isinstance(result.error, ValueError)
    assert result.token.tolist() == [-1] * SLOTS
    pipeline.release(0)
    admit(pipeline, 1, 2, [66])
    pipeline.seal(descriptor(pipeline.launch(), {1: 2}))
    assert collect(pipeline).token[1] == greedy([66])


def test_a_failing_prefill_does_not_end_the_device(pipeline):
    pipeline.prefill(0, [65], MAX_LENGTH)
    admit(pipeline, 1, 2, [66])
    launch = pipeline.launch()
    pipeline.seal(descriptor(launch, {1: 2}))
    result = pipeline.collect(PATIENCE_S)
    assert result is not None
    assert result.token[1] == greedy([66])


def test_close_releases_what_waits():  # spec 54
    pipeline = HostPipeline(make_runner(), last_resort_s=600.0)
    admit(pipeline, 0, 1, [65])
    pipeline.launch()
    pipeline.launch()
    begun = time.monotonic()
    pipeline.close()
    assert time.monotonic() - begun < 30


def wide(width):
    shape = RunnerShape(max_slots=SLOTS, max_length=MAX_LENGTH, max_width=width, prefill_chunk=16)
    return HostPipeline(SyntheticRunner(tiny(), shape, SyntheticOptions(seed=3)), last_resort_s=PATIENCE_S)


def with_drafts(launch, epochs, depth, rows):
    """A greedy descriptor of three positions a slot; ``depth`` by slot: those to sample; ``rows`` (slot, position) -> ids."""
    made = descriptor(launch, epochs)
    made.bitmask = torch.zeros((SLOTS * 3, WORDS), dtype=torch.int32)
    for (slot, position), allowed in rows.items():
        made.action[slot] = SlotAction.GUIDED
        made.bitmask[slot * 3 + position] = torch.from_numpy(pack(sorted(allowed), tiny().size))
    by_slot = np.array([depth.get(slot, 1) for slot in range(SLOTS)], np.int32)
    made.ahead = Ahead(by_slot, (AheadRows(made.rows, None),) * 2)
    return made


def all_tokens(result, slot):
    return [int(part.token[slot]) for part in (result, *result.ahead) if part.token[slot] >= 0]


def test_drafts_that_the_model_would_have_sampled_stand():  # spec 119 R6
    pipeline = wide(3)
    try:
        text = [65]
        for _ in range(6):
            text.append(greedy(text))
        for slot, epoch in ((0, 1), (1, 2), (2, 3), (3, 4)):
            admit(pipeline, slot, epoch, [65])
        owners = {0: 1, 1: 2, 2: 3, 3: 4}
        pipeline.draft(0, text[1:3])
        pipeline.draft(1, [text[1], 7])
        pipeline.draft(2, text[1:3])
        anything = set(range(tiny().size))
        pipeline.seal(with_drafts(pipeline.launch(), owners, {0: 3, 1: 3, 2: 2}, {(2, 0): anything, (2, 1): anything}))
        result = collect(pipeline)
        assert [all_tokens(result, slot) for slot in range(SLOTS)] == [text[1:4], text[1:3], text[1:3], text[1:2]]
        # What was drafted is forgotten, and what was written behind the last token is written again.
        pipeline.seal(with_drafts(pipeline.launch(), owners, {0: 3, 1: 3}, {}))
        result = collect(pipeline)
        assert [all_tokens(result, slot) for slot in range(SLOTS)] == [[text[4]], [text[3]], [text[3]], [text[2]]]
    finally:
        pipeline.close()


def test_a_held_slot_keeps_its_place_and_loses_its_drafts():
    pipeline = wide(3)
    try:
        admit(pipeline, 0, 1, [65])
        pipeline.draft(0, [1, 2])
        pipeline.seal(descriptor(pipeline.launch(), {0: 1}, held=[0]))
        assert collect(pipeline).token[0] == -1
        pipeline.seal(with_drafts(pipeline.launch(), {0: 1}, {0: 3}, {}))
        assert all_tokens(collect(pipeline), 0) == [greedy([65])]
    finally:
        pipeline.close()


def test_more_drafts_than_a_forward_is_wide_are_refused(pipeline):
    with pytest.raises(ConfigError, match="1 wide"):
        pipeline.draft(0, [5])
