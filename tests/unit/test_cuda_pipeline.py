"""The host's side of the captured step, with a thread in the device's place that does what the kernels do: every feature of the
FAST tier gives what the host pipeline gives, at any draft length, with holds, changes of owner and late seals."""

import numpy as np
import pytest
import torch

from gpu_worker import ranges
from gpu_worker.cuda_pipeline import CudaPipeline
from gpu_worker.descriptor import Descriptor, SlotAction
from gpu_worker.pipeline import HostPipeline
from gpu_worker.sampler.tiers import is_plain
from kernels.reference import Overlay, TokenList
from shared import metrics
from shared.bitmask import num_words, pack
from shared.errors import ConfigError
from shared.sampling_params import SamplingParams
from tests.step_bench import FEATURES, SIZE, SLOTS, WIDTH, every_feature, make_runner, parameters, speculate
from tests.step_emulation import Emulated


# spec R11 93 100 101 102 103 105 106 111 112 127
@pytest.mark.parametrize("guide", [None, lambda tokens: {1, 2, 3, 5, 7, 9, 12}], ids=["free", "guided"])
def test_every_feature_as_on_the_host(guide):
    on_host, captured = every_feature(HostPipeline, guide), every_feature(Emulated, guide)
    assert captured == on_host
    assert all(tokens for tokens, *_ in (on_host[name] for name in FEATURES))
    assert len(on_host["logits of tokens"]) == 10


def test_only_those_that_need_more_take_the_full_step():  # spec R11
    fields = {name: SamplingParams(**parameters) for name, parameters in FEATURES.items()}
    assert {name for name, each in fields.items() if is_plain(each)} == {"decay", "allowed", "raw", "scored"}
    assert is_plain(SamplingParams(temperature=0.3, top_k=4, stop=["x"], stop_token_ids=[3]))


def test_what_is_not_in_the_captured_step_is_named():  # spec 76 R11
    pipeline = Emulated(make_runner())
    try:
        assert pipeline.unsupported(SamplingParams(logit_bias={"1": 2.0}, logprobs=3, best_of=4, min_tokens=2)) == {}
        for params in ({"logits_processors": ["x"]}, {"use_beam_search": True}, {"return_context_logits": True}):
            refused = pipeline.unsupported(SamplingParams(**params))
            assert list(refused) == list(params)
            assert "captured step" in next(iter(refused.values()))
    finally:
        pipeline.close()
    with pytest.raises(ConfigError, match="not on a CUDA device"):
        CudaPipeline(make_runner())


# ---- drafts ----


# spec 45 53 119 R18 R19
@pytest.mark.parametrize("plain", [True, False])
def test_tokens_do_not_depend_on_drafts(plain):
    truth, _ = speculate(HostPipeline, 0, steps=70, plain=plain)
    for make in (HostPipeline, Emulated):
        for num_drafts in (0, 1, WIDTH - 1):
            texts, accepted = speculate(make, num_drafts, plain=plain, truth=truth)
            assert [text == known[: len(text)] for text, known in zip(texts, truth, strict=True)] == [True] * SLOTS
            assert (accepted > 10) == (num_drafts > 0)


def test_few_sequences_take_few_rows_and_no_drafts_one_position():
    pipeline = Emulated(make_runner())
    try:
        shapes = pipeline._device.shapes
        assert {(s.active, s.width) for s in shapes} == {(1, 1), (1, WIDTH), (4, 1), (4, WIDTH)}
        for slot, plain in ((0, True), (2, True), (1, False)):
            pipeline.prefill(slot, [10], 0)
            pipeline.admit(slot, slot + 1, 40, 1, plain=plain)
            pipeline.seal(Descriptor.holding(pipeline.launch(), SLOTS, num_words(SIZE)))
            assert pipeline.collect(20.0).action.tolist().count(SlotAction.IDLE) >= 1
        for slot in (1, 2):
            pipeline.release(slot)
        pipeline.draft(0, [1, 2])
        pipeline.seal(Descriptor.holding(pipeline.launch(), SLOTS, num_words(SIZE)))
        pipeline.collect(20.0)
        assert pipeline._device.taken == [(1, 1, False), (4, 1, False), (4, 1, True), (1, WIDTH, False)]
        with pytest.raises(ConfigError, match="3 drafts"):
            pipeline.draft(0, [1, 2, 3])
    finally:
        pipeline.close()


# ---- lists that are full, late seals, ranges ----


def test_a_list_that_is_full_fails_the_request_that_filled_it():
    pipeline = Emulated(make_runner(1), listed=8)
    try:
        for slot in range(2):
            pipeline.prefill(slot, [10], 0)
            pipeline.admit(slot, slot + 1, 40, 1)
        bans = TokenList.of([[1, 2], list(range(20)), [], []])
        bias = TokenList.of([[5], [], [], []], [[1.0], [], [], []])
        action = np.array([0, 0, 3, 3], np.int32)
        bits = torch.zeros((SLOTS, num_words(SIZE)), dtype=torch.int32)
        number = pipeline.launch()
        pipeline.seal(
            Descriptor(
                number, action, bits, np.arange(1, SLOTS + 1), parameters(np.zeros(SLOTS, np.int64)), Overlay(bias=bias, bans=bans)
            )
        )
        result = pipeline.collect(20.0)
        assert result.token[0] >= 0
        assert result.token[1] == -1
        assert list(result.slot_errors) == [1]
        assert "bad_words" in result.slot_errors[1].field
    finally:
        pipeline.close()


def test_an_overlay_in_a_plain_launch_is_a_defect():
    pipeline = Emulated(make_runner(1))
    try:
        pipeline.prefill(0, [10], 0)
        pipeline.admit(0, 1, 40, 1, plain=True)
        action = np.array([0, 3, 3, 3], np.int32)
        bits = torch.zeros((SLOTS, num_words(SIZE)), dtype=torch.int32)
        rows, owners = parameters(np.zeros(SLOTS, np.int64)), np.arange(1, SLOTS + 1)
        wrong = Descriptor(pipeline.launch(), action, bits, owners, rows, Overlay(bans=TokenList.of([[1], [], [], []])))
        with pytest.raises(RuntimeError, match="without overlays"):
            pipeline.seal(wrong)
        wrong.overlay = Overlay(bans=TokenList.of([[], [1], [], []]))  # of a slot that does not act
        assert pipeline.seal(wrong)
        assert pipeline.collect(20.0).token[0] >= 0
    finally:
        pipeline.close()


def test_more_logits_than_there_are_places_for_hold():  # spec 127
    pipeline = Emulated(make_runner(1), kept=2)
    try:
        for slot in range(3):
            pipeline.prefill(slot, [10 + slot], 0)
            pipeline.admit(slot, slot + 1, 40, 1)
        action = np.array([0, 0, 0, 3], np.int32)
        bits = torch.zeros((SLOTS, num_words(SIZE)), dtype=torch.int32)
        rows = parameters(np.zeros(SLOTS, np.int64))
        sealed = Descriptor(pipeline.launch(), action, bits, np.arange(1, SLOTS + 1), rows, return_logits=[0, 1, 2])
        assert pipeline.seal(sealed)
        result = pipeline.collect(20.0)
        assert sorted(result.logits) == [0, 1]
        assert result.action.tolist() == [0, 0, 2, 3]
        assert len(result.logits[1]) == 4 * SIZE
    finally:
        pipeline.close()


def test_the_last_resort_holds_and_a_late_seal_cannot_hurt():  # spec R12
    pipeline = Emulated(make_runner(1), last_resort_s=0.1)
    try:
        pipeline.prefill(0, [10], 0)
        pipeline.admit(0, 1, 40, 1, plain=True)
        number = pipeline.launch()
        assert pipeline.collect(0.0) is None
        assert pipeline.collect(20.0).action[0] == SlotAction.HOLD
        bits = torch.zeros((SLOTS, num_words(SIZE)), dtype=torch.int32)
        rows, action = parameters(np.zeros(SLOTS, np.int64)), np.array([0, 3, 3, 3], np.int32)
        late = Descriptor(number, action, bits, np.arange(1, SLOTS + 1), rows)
        assert not pipeline.seal(late)
        late.launch = pipeline.launch()
        assert pipeline.seal(late)
        assert not pipeline.seal(late)
        assert pipeline.collect(20.0).token[0] >= 0
    finally:
        pipeline.close()


def test_ranges_name_the_parts_of_a_step():  # spec 139
    seen = []

    class Range:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            seen.append(self.name)

        def __exit__(self, *_):
            seen.append(f"/{self.name}")

    ranges.turn_on(Range)
    pipeline = Emulated(make_runner(1))
    try:
        pipeline.seal(Descriptor.holding(pipeline.launch(), SLOTS, num_words(SIZE)))
        pipeline.collect(20.0)
    finally:
        ranges.turn_off()
        pipeline.close()
    assert seen == ["forward", "/forward", "copy", "/copy", "sample", "/sample"]
    assert {"forward", "copy", "sample"} < set(ranges.NAMES)


def test_a_row_that_is_on_the_device_is_not_copied_again():  # spec R13
    """The second launch has rubbish in its buffer; a row that was held before it could be copied is copied when it acts."""
    pipeline = Emulated(make_runner(1))
    before = metrics.gpu_copied_bytes_total._value.get()
    try:
        rows = parameters(np.zeros(SLOTS, np.int64))
        for slot in range(2):
            pipeline.prefill(slot, [10], 0)
            pipeline.admit(slot, slot + 1, 40, 1, plain=True)
        for held, words, expected in (([0, 1], 70, [-1, -1]), ([1], 70, [70, -1]), ([], 71, [70, 70])):
            number = pipeline.launch()
            bits = torch.from_numpy(pipeline.row_buffers()[number % 2])
            bits[:] = torch.from_numpy(pack([words], SIZE))
            action = np.array([1, 1, 3, 3], np.int32)
            action[held] = SlotAction.HOLD
            sealed = Descriptor(number, action, bits, np.arange(1, SLOTS + 1), rows, origins=["row"] * SLOTS)
            assert pipeline.seal(sealed)
            assert pipeline.collect(20.0).token[:2].tolist() == expected
    finally:
        pipeline.close()
    assert metrics.gpu_copied_bytes_total._value.get() - before == 4 * num_words(SIZE)
