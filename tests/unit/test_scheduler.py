"""Slots and prompt chunks: first come, first served, and nobody waits for one who cannot run."""

import pytest

from gpu_worker.scheduler import Scheduler
from gpu_worker.sequence import Phase
from tests.requests_of import sequence_of


def waiting(*lengths):
    return [sequence_of(prompt_token_ids=[7] * length, epoch=at + 1) for at, length in enumerate(lengths)]


def placed(scheduler, sequences, can_run=lambda _: True):
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.validate()
    return scheduler.place(can_run)


def test_first_come_first_served():
    scheduler = Scheduler(2, 4)
    sequences = waiting(3, 3, 3)
    assert placed(scheduler, sequences) == sequences[:2]
    assert [sequence.slot for sequence in sequences] == [0, 1, -1]
    assert scheduler.place(lambda _: True) == []
    scheduler.remove(sequences[0])
    assert sequences[0].phase is Phase.ENDED
    assert scheduler.place(lambda _: True) == [sequences[2]]
    assert sequences[2].slot == 0
    scheduler.validate()


def test_one_that_cannot_run_is_passed_over_and_keeps_its_turn():
    scheduler = Scheduler(1, 4)
    first, second, third = waiting(3, 3, 3)
    assert placed(scheduler, [first, second, third], lambda s: s is third) == [third]
    assert list(scheduler.waiting) == [first, second]
    scheduler.remove(third)
    assert scheduler.place(lambda _: True) == [first]
    scheduler.validate()


def test_chunks_of_a_prompt():
    scheduler = Scheduler(2, 4)
    (sequence,) = waiting(10)  # nine to write, the tenth is fed
    placed(scheduler, [sequence])
    chunks = [(len(ids), start) for _, ids, start in scheduler.chunks(99)]
    assert chunks == [(4, 0), (4, 4), (1, 8)]
    assert sequence.phase is Phase.READY


def test_chunks_are_rationed():
    scheduler = Scheduler(2, 4)
    sequences = waiting(9, 9)
    placed(scheduler, sequences)
    given = []
    for _ in range(4):
        given += [(sequence.slot, start) for sequence, _, start in scheduler.chunks(1)]
    assert given == [(0, 0), (0, 4), (1, 0), (1, 4)]


def test_a_prompt_of_one_token_needs_no_chunk():
    scheduler = Scheduler(1, 4)
    (sequence,) = waiting(1)
    placed(scheduler, [sequence])
    assert list(scheduler.chunks(99)) == []
    assert sequence.phase is Phase.READY


def test_a_suspended_one_lets_one_pass_and_is_written_again():
    scheduler = Scheduler(1, 8)
    first, second, third = waiting(3, 3, 3)
    placed(scheduler, [first, second, third])
    list(scheduler.chunks(99))
    first.phase = Phase.DECODING
    first.take(97, None, 1.0)
    first.row_ready = True
    scheduler.suspend(first)
    assert (first.slot, first.phase, first.row_ready) == (-1, Phase.WAITING, False)
    scheduler.validate()
    assert scheduler.place(lambda _: True) == [second]
    scheduler.remove(second)
    assert scheduler.place(lambda _: True) == [first]
    assert [(ids, start) for _, ids, start in scheduler.chunks(99)] == [([7, 7, 7], 0)]  # the token 97 is fed


def test_removing_one_that_waits():
    scheduler = Scheduler(1, 8)
    first, second = waiting(3, 3)
    placed(scheduler, [first, second])
    scheduler.remove(second)
    scheduler.remove(first)
    assert scheduler.is_idle
    scheduler.validate()


@pytest.mark.parametrize("spoil", [lambda a, b: setattr(a, "slot", 1), lambda a, b: setattr(a, "phase", Phase.ENDED),
                                   lambda a, b: setattr(b, "slot", 0), lambda a, b: setattr(b, "epoch", a.epoch)])  # fmt: skip
def test_a_state_that_disagrees_is_noticed(spoil):
    scheduler = Scheduler(1, 8)
    first, second = waiting(3, 3)
    placed(scheduler, [first, second])
    spoil(first, second)
    with pytest.raises(RuntimeError):
        scheduler.validate()
