"""The rows of a step against a real link and a service with a toy language: what is asked, what arrives, what holds."""

import time
from contextlib import ExitStack

import numpy as np
import pytest

from gpu_worker.descriptor import SlotAction
from gpu_worker.grammar_link import GrammarLink, LinkSettings, WalkStatus
from gpu_worker.request import Model, admit
from gpu_worker.sampler.slot_params import SlotSamplingParams
from gpu_worker.sequence import make_sequence
from gpu_worker.speculation import ReplayDrafter
from gpu_worker.step_rows import RING, StepRows
from shared.bitmask import num_words, token_ids
from shared.protocol import Generate
from shared.sampling_params import SamplingParams
from tests.requests_of import ByteEncoder
from tests.toy_service import STOP, VOCAB_SIZE, ToyService, allowed_after, toy_plan, vocabulary

SLOTS = 3


class Bench:
    def __init__(self, stack):
        self.link = GrammarLink(settings=LinkSettings(ping_interval_s=0.1))
        self.link.start(vocabulary())
        stack.callback(self.link.close)
        self.service = ToyService(self.link.address)
        self.service.start()
        stack.callback(self.service.stop)
        end_s = time.monotonic() + 20
        while not self.link.service_names:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        self.params = SlotSamplingParams(SLOTS)
        self.rows = StepRows(self.link, SLOTS, VOCAB_SIZE, self.params)
        self.launch = 0

    def sequence(self, slot, *, guided=True, **params):
        outputs = {"regex": "toy"} if guided else None
        message = Generate(request_id=str(slot), prompt_token_ids=[5], structured_outputs=outputs, sampling_params=params)
        model = Model("toy", vocabulary(), ByteEncoder(), 64)
        request = admit(message, b"c", model, now_s=0.0, deadline_s=60.0, max_deadline_s=60.0)
        sequence = make_sequence(request, 0, slot + 1, 0, 0, vocabulary())
        sequence.slot = slot
        self.params.set(slot, sequence.epoch, request.params.resolve(), 7, 0)
        if guided:
            sequence.session = self.link.open("toy", toy_plan(), [STOP], [])
        return sequence

    def step(self, *sequences, wait_s=10.0):
        """One step; returns what broke."""
        self.launch += 1
        ticket = self.rows.submit(self.launch, sequences)
        if ticket is not None:
            ticket.wait(wait_s, for_held=wait_s > 0)
        return self.rows.take(self.launch, ticket, sequences)

    def seen(self, *sequences):
        """The descriptor of this launch and, by slot, the ids that its row allows."""
        descriptor = self.rows.descriptor(self.launch, sequences)
        return descriptor, {s.slot: token_ids(descriptor.bitmask[s.slot].numpy(), VOCAB_SIZE).tolist() for s in sequences}


@pytest.fixture
def bench():
    with ExitStack() as stack:
        yield Bench(stack)


def test_rows_follow_the_tokens(bench):  # spec 29 30: the first row needs no token, each later one takes the golden token
    sequence = bench.sequence(1)
    prefix = []
    for token in (1, 3, 4, 6):
        assert bench.step(sequence) == []
        descriptor, allowed = bench.seen(sequence)
        assert allowed[1] == allowed_after(prefix, [STOP])
        assert descriptor.action.tolist() == [SlotAction.IDLE, SlotAction.GUIDED, SlotAction.IDLE]
        assert descriptor.epoch.tolist() == [0, 2, 0]
        assert descriptor.rows.offset[1] == len(prefix)
        sequence.take(token, None, 1.0)
        prefix.append(token)
    assert sequence.services == ["toy"]
    assert sum(sequence.rows.values()) == 4
    assert set(sequence.rows) == {"DENSE", "SPARSE"}  # spec R13, R28


def test_no_row_no_token(bench):  # fail closed
    sequence, other = bench.sequence(0), bench.sequence(2, guided=False)
    bench.service.silence()
    assert bench.step(sequence, other, wait_s=0.0) == []
    descriptor, _ = bench.seen(sequence, other)
    assert descriptor.action.tolist() == [SlotAction.HOLD, SlotAction.IDLE, SlotAction.UNGUIDED]
    bench.service.speak()
    bench.step(sequence, other)
    descriptor, allowed = bench.seen(sequence, other)
    assert descriptor.action[0] == SlotAction.GUIDED
    assert allowed[0] == [0, 1]


def test_a_row_that_was_not_used_moves_to_the_next_launch(bench):
    """The launch held after its row had come: the same row serves the launches after it, in their own buffers."""
    sequence = bench.sequence(0)
    bench.step(sequence)
    asked = bench.service.num_steps
    for _ in range(2 * RING):
        bench.step(sequence)
        descriptor, allowed = bench.seen(sequence)
        assert allowed[0] == [0, 1]
        assert descriptor.action[0] == SlotAction.GUIDED
    assert bench.service.num_steps == asked  # and it was asked for once


def test_buffers_of_launches_in_flight_differ(bench):
    sequence = bench.sequence(0)
    pointers = []
    for token in (0, 1, 2):
        bench.step(sequence)
        pointers.append(bench.seen(sequence)[0].bitmask.data_ptr())
        sequence.take(token, None, 1.0)
    assert len(set(pointers)) == RING == 2


def test_a_refused_token_breaks_its_sequence_alone(bench):  # spec 32
    wrong, right = bench.sequence(0), bench.sequence(1)
    bench.step(wrong, right)
    wrong.take(50, None, 1.0)
    right.take(1, None, 1.0)
    broken = bench.step(wrong, right)
    assert [(sequence, outcome.status) for sequence, outcome in broken] == [(wrong, WalkStatus.REFUSED)]
    descriptor, allowed = bench.seen(wrong, right)
    assert descriptor.action.tolist() == [SlotAction.HOLD, SlotAction.GUIDED, SlotAction.IDLE]
    assert allowed[1] == allowed_after([1], [STOP])


def test_min_tokens_ban_what_ends_the_text(bench):  # spec 103
    sequence = bench.sequence(0, guided=False, min_tokens=1, stop_token_ids=[7])
    bench.step(sequence)
    overlay = bench.seen(sequence)[0].overlay
    assert sorted(overlay.bans.ids.tolist()) == [7, STOP]
    sequence.take(3, None, 1.0)
    bench.step(sequence)
    assert bench.seen(sequence)[0].overlay is None


def test_log_probabilities_where_one_asks(bench):
    plain, asks = bench.sequence(0, guided=False), bench.sequence(1, guided=False, logprobs=3)
    bench.step(plain, asks)
    assert bench.seen(plain)[0].num_logprobs is None
    assert bench.seen(plain, asks)[0].num_logprobs == 3


def test_another_owner_is_noticed(bench):  # spec 41
    sequence = bench.sequence(0, guided=False)
    bench.params.set(0, 99, sequence.request.params.resolve(), 0, 0)
    bench.step(sequence)
    with pytest.raises(ValueError, match="belongs to 99"):
        bench.seen(sequence)


def test_a_descriptor_is_a_snapshot(bench):  # spec 40
    """What happens to its sequence afterwards does not reach a launch that is sealed."""
    sequence = bench.sequence(0, temperature=0.5, top_k=7)
    bench.step(sequence)
    descriptor, _ = bench.seen(sequence)
    sequence.take(1, None, 1.0)
    sequence.epoch, sequence.slot = 9, 2
    bench.params.set(0, 99, SamplingParams(temperature=2.0).resolve(), 8, 1)
    rows = descriptor.rows
    assert [float(rows.temperature[0]), int(rows.top_k[0]), int(rows.seed[0]), int(rows.offset[0])] == [0.5, 7, 7, 0]
    assert (descriptor.epoch.tolist(), descriptor.action[0]) == ([1, 0, 0], SlotAction.GUIDED)


def test_unguided_batches_ask_nobody(bench):  # spec 55
    sequence = bench.sequence(0, guided=False)
    assert bench.rows.submit(1, [sequence]) is None
    assert bench.rows.take(1, None, [sequence]) == []
    assert not np.any(bench.seen(sequence)[0].bitmask.numpy())


class WideBench(Bench):
    """Four rows a slot, and drafts that are written down."""

    def __init__(self, stack):
        super().__init__(stack)
        buffers = [np.zeros((SLOTS * 4, num_words(VOCAB_SIZE)), np.int32) for _ in range(RING)]
        self.rows = StepRows(self.link, SLOTS, VOCAB_SIZE, self.params, buffers)

    def draft(self, sequence, *token_ids):
        sequence.progress.drafter = ReplayDrafter([*sequence.tokens, *token_ids], VOCAB_SIZE)
        sequence.progress._pushed = 0
        return sequence.progress.propose(sequence.tokens, 3)

    def allowed(self, descriptor, sequence, position):
        return token_ids(descriptor.bitmask[sequence.slot * 4 + position].numpy(), VOCAB_SIZE).tolist()


def test_rows_of_all_positions_come_in_one_answer():  # spec 22 24 25 43
    with ExitStack() as stack:
        bench = WideBench(stack)
        sequence = bench.sequence(1)
        sequence.take(1, None, 1.0)
        bench.draft(sequence, 3, 4, 6)
        asked = bench.service.num_steps
        assert bench.step(sequence) == []
        assert bench.service.num_steps == asked + 1
        descriptor = bench.rows.descriptor(bench.launch, [sequence])
        assert descriptor.ahead.depth.tolist() == [1, 4, 1]
        for position, prefix in enumerate(([1], [1, 3], [1, 3, 4], [1, 3, 4, 6])):
            assert bench.allowed(descriptor, sequence, position) == allowed_after(prefix, [STOP])
        offsets = [int(each.rows.offset[1]) for each in descriptor.ahead.positions]
        assert (int(descriptor.rows.offset[1]), offsets) == (1, [2, 3, 4])
        assert sum(sequence.rows.values()) == 4
        for token in (3, 5):  # the first draft stands, the second does not
            sequence.take(token, None, 1.0)
        sequence.progress.committed(2)
        bench.draft(sequence, 6)
        assert bench.step(sequence) == []  # the service agrees on what was taken back, or this would be a failure
        descriptor = bench.rows.descriptor(bench.launch, [sequence])
        assert bench.allowed(descriptor, sequence, 0) == allowed_after([1, 3, 5], [STOP])
        assert descriptor.ahead.depth[1] == 2


def test_drafts_without_a_row_are_not_sampled():  # spec 45 R6
    with ExitStack() as stack:
        bench = WideBench(stack)
        refused, ended = bench.sequence(0), bench.sequence(2)
        for sequence in (refused, ended):
            sequence.take(1, None, 1.0)
        bench.draft(refused, 3, 90, 91)  # 90 cannot follow 3
        bench.draft(ended, 3, STOP, 3)  # the text is over behind the stop token
        assert bench.step(refused, ended) == []
        descriptor = bench.rows.descriptor(bench.launch, [refused, ended])
        assert descriptor.ahead.depth.tolist() == [2, 1, 2]
        assert all(bench.allowed(descriptor, sequence, at) == [] for sequence in (refused, ended) for at in (2, 3))


def test_rows_of_all_positions_move_to_the_next_launch():  # spec 49: a step that is repeated repeats its drafts
    with ExitStack() as stack:
        bench = WideBench(stack)
        sequence = bench.sequence(1)
        sequence.take(1, None, 1.0)
        bench.draft(sequence, 3, 4)
        for _ in range(2 * RING):  # the launches held after the rows had come
            assert bench.step(sequence) == []
            descriptor = bench.rows.descriptor(bench.launch, [sequence])
            for position, prefix in enumerate(([1], [1, 3], [1, 3, 4])):
                assert bench.allowed(descriptor, sequence, position) == allowed_after(prefix, [STOP])
