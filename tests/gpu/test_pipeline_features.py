"""The captured step with everything in it, on the device: overlays, log-probabilities, logits, drafts, few slots, no page-locked
memory. The host pipeline, which runs the references, says what is right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from gpu_worker import ranges
from gpu_worker.cuda_pipeline import CudaPipeline
from gpu_worker.descriptor import Descriptor, SlotAction
from gpu_worker.models.base import ModelRunner
from gpu_worker.pipeline import HostPipeline, Pipeline
from shared.bitmask import num_words
from tests.step_bench import FEATURES, SIZE, SLOTS, WIDTH, every_feature, make_runner, parameters, speculate

pytestmark = pytest.mark.gpu
MAKERS: dict[str, Callable[[ModelRunner], Pipeline]] = {
    "graph": CudaPipeline,
    "eager": lambda runner: CudaPipeline(runner, eager=True),
    "unpinned": lambda runner: CudaPipeline(runner, pinned=False),
}


@pytest.fixture(scope="module", params=["free", "guided"])
def features(request):
    guide = None if request.param == "free" else lambda tokens: {1, 2, 3, 5, 7, 9, 12}
    return guide, every_feature(HostPipeline, guide)


# spec R11 93 100 101 102 103 105 106 111 112 127 138
@pytest.mark.parametrize("kind", list(MAKERS))
def test_every_feature_as_on_the_host(features, kind):
    guide, on_host = features
    captured = every_feature(MAKERS[kind], guide, device="cuda")
    assert captured.keys() == on_host.keys()
    for name in FEATURES:
        tokens, logprobs, scores = captured[name]
        assert tokens == on_host[name][0], name
        for found, expected in zip([*logprobs, *(scores or [])], [*on_host[name][1], *(on_host[name][2] or [])], strict=True):
            assert (found.token_id, found.rank) == (expected.token_id, expected.rank), name
            assert [token for token, _ in found.top] == [token for token, _ in expected.top], name
            assert found.logprob == pytest.approx(expected.logprob, abs=1e-5)
            assert [value for _, value in found.top] == pytest.approx([value for _, value in expected.top], abs=1e-5)
    assert captured["logits of tokens"] == on_host["logits of tokens"]
    for error in [name for name in on_host if name.startswith("error")]:
        assert captured[error] == on_host[error]


@pytest.fixture(scope="module", params=[True, False], ids=["plain", "overlays"])
def truth(request):
    return request.param, speculate(HostPipeline, 0, steps=70, plain=request.param)[0]


# spec 45 53 119 138 R12 R18 R19
@pytest.mark.parametrize("num_drafts", [0, 1, WIDTH - 1])
@pytest.mark.parametrize("kind", list(MAKERS))
def test_tokens_do_not_depend_on_drafts(truth, kind, num_drafts):
    plain, expected = truth
    texts, accepted = speculate(MAKERS[kind], num_drafts, plain=plain, truth=expected, device="cuda")
    assert [text == known[: len(text)] for text, known in zip(texts, expected, strict=True)] == [True] * SLOTS
    assert (accepted > 10) == (num_drafts > 0)


def _descriptor(number: int) -> Descriptor:
    action = np.zeros(SLOTS, np.int32)
    bits = torch.zeros((SLOTS * WIDTH, num_words(SIZE)), dtype=torch.int32)
    return Descriptor(number, action, bits, np.arange(1, SLOTS + 1), parameters(np.zeros(SLOTS, np.int64)))


@pytest.fixture
def pipeline():
    made = CudaPipeline(make_runner(device="cuda"), last_resort_s=20.0)
    for slot in range(SLOTS):
        made.prefill(slot, [10 + slot, 20], 0)
        made.admit(slot, slot + 1, 40 + slot, 2, plain=slot % 2 == 0)
    yield made
    made.close()


def test_no_call_of_the_step_waits_for_the_device(pipeline):  # spec 131 R12
    """Two launches hang on their flags while everything that the step loop may call is called: nothing waits, nothing synchronises,
    and the launches are sealed, not let go."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        first, second = pipeline.launch(), pipeline.launch()
        pipeline.prefill(3, [9, 8, 7], 0)
        pipeline.admit(3, 99, 40, 3)
        pipeline.release(2)
        assert pipeline.collect(0.0) is None
        for number in (first, second):
            assert pipeline.seal(_descriptor(number))
            result = pipeline.collect(20.0)
            assert result is not None
            assert (result.token[:2] >= 0).all()
            assert (result.action[:2] == SlotAction.UNGUIDED).all()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_nothing_is_allocated_in_a_step(pipeline):  # spec 131
    def step() -> None:
        number = pipeline.launch()
        assert pipeline.seal(_descriptor(number))
        assert pipeline.collect(20.0) is not None

    for _ in range(5):
        step()
    before = _allocations()
    for _ in range(100):
        step()
    assert _allocations() == before


def _allocations() -> tuple[int, int, int]:
    stats, host = torch.cuda.memory_stats(), torch.cuda.memory.host_memory_stats()
    return stats["allocation.all.allocated"], stats["segment.all.allocated"], host.get("num_host_alloc", 0)


def test_ranges_reach_the_profiler(pipeline):  # spec 139
    ranges.turn_on()
    try:
        number = pipeline.launch()
        assert pipeline.seal(_descriptor(number))
        assert pipeline.collect(20.0) is not None
    finally:
        ranges.turn_off()


def test_a_launch_is_sealed_once_by_anybody(pipeline):
    """A double release: the second seal is refused, and the launch behind it is not let go by it."""
    first, second = pipeline.launch(), pipeline.launch()
    assert pipeline.seal(_descriptor(first))
    assert not pipeline.seal(_descriptor(first))
    assert pipeline.collect(20.0) is not None
    assert not pipeline.seal(_descriptor(first))
    assert pipeline.collect(0.05) is None  # nobody has sealed it
    assert pipeline.seal(_descriptor(second))
    assert pipeline.collect(20.0) is not None


def test_a_seal_out_of_order_waits_for_its_turn(pipeline):
    first, second = pipeline.launch(), pipeline.launch()
    assert pipeline.seal(_descriptor(second))
    assert pipeline.collect(0.05) is None
    assert pipeline.seal(_descriptor(first))
    results = [pipeline.collect(20.0) for _ in range(2)]
    assert [result.launch for result in results if result is not None] == [first, second]
