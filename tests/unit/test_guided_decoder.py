"""Row layout, counters and roll-back of guided decoding, against a matcher that is a list of tokens."""

from __future__ import annotations

import random

import pytest

from gpu_worker.grammar_link import Outcome, WalkStatus
from gpu_worker.guided_decoder import GuidedDecoder, GuidedRequest, Layout, Stage, layout
from shared.errors import AccountingError, BadRequest


def context(slot: int, stage: Stage = Stage.LAST_CONTEXT) -> GuidedRequest:
    return GuidedRequest(f"r{slot}", slot, slot + 100, stage)


def generation(slot: int, tokens: tuple[int, ...] = (7, 8, 9), committed: tuple[int, ...] = ()) -> GuidedRequest:
    return GuidedRequest(f"r{slot}", slot, slot + 100, Stage.GENERATION, tokens, committed=committed)


def ok(advanced: int, guided: int | None = None) -> Outcome:
    return Outcome(WalkStatus.OK, advanced, advanced if guided is None else guided)


def one_walk(decoder: GuidedDecoder, request: GuidedRequest, num_drafts: int = 2):
    return decoder.walks([request], layout([request], num_drafts), num_drafts)


@pytest.mark.parametrize("num_drafts", [0, 1, 3])
def test_contexts_one_row_generations_one_more_a_draft(num_drafts: int) -> None:  # spec 22, 24
    rows = layout([context(4), context(2), generation(0), generation(9)], num_drafts)
    assert rows.first_row == {4: 0, 2: 1, 0: 2, 9: 3 + num_drafts}
    assert rows.total == 2 + 2 * (num_drafts + 1)


def test_draft_batch_has_one_row_a_request() -> None:  # spec 24
    assert layout([generation(3), generation(1)], 5, draft_batch=True) == Layout({3: 0, 1: 1}, {3: 1, 1: 1}, 2)


@pytest.mark.parametrize("requests", [[generation(0), context(1)], [context(1), context(1)]])
def test_other_orders_are_refused(requests: list[GuidedRequest]) -> None:  # spec 24, 41
    with pytest.raises(BadRequest):
        layout(requests, 1)


def test_who_walks_what() -> None:  # spec 25, 28, 29, 30, 31
    decoder = GuidedDecoder()
    for slot in range(4):
        decoder.begin(slot)
    unguided = GuidedRequest("u", 8, None, Stage.GENERATION, (1,))
    batch = [context(0, Stage.CONTEXT), context(1), generation(2, (7, 8, 9)), unguided]
    walks = decoder.walks(batch, layout(batch, 1), 1)
    assert [(walk.session, walk.row, tuple(walk.path)) for walk in walks] == [(101, 1, ()), (102, 2, (7, 8))]


def test_first_row_counts_one_and_rolls_nothing_back() -> None:  # spec 30
    decoder = GuidedDecoder()
    decoder.begin(0)
    one_walk(decoder, context(0))
    assert decoder.answered(0, ok(0, 1)) == 1
    assert decoder.counters(0).num_advanced == 1
    assert decoder.accept(0, 1) == 0
    decoder.validate({0: 0})


@pytest.mark.parametrize(("verified", "back", "committed"), [(1, 2, 1), (2, 1, 2), (3, 0, 3), (4, 0, 3)])
def test_rejected_drafts_are_rolled_back(verified: int, back: int, committed: int) -> None:  # spec 43, 45
    decoder = GuidedDecoder()
    decoder.begin(0)
    one_walk(decoder, generation(0))
    decoder.answered(0, ok(3))
    decoder.validate()
    assert decoder.accept(0, verified) == back
    assert decoder.counters(0).committed == committed
    (walk,) = one_walk(decoder, generation(0, (5,), committed=(7, 8, 9)[:committed]))
    assert walk.accepted == committed


def test_terminal_draft_caps_what_is_accepted() -> None:  # spec 37, 45
    decoder = GuidedDecoder()
    decoder.begin(0)
    one_walk(decoder, generation(0))
    decoder.answered(0, Outcome(WalkStatus.TERMINATED, 2, 1))
    assert decoder.accept(0, 3) == 0
    assert decoder.counters(0).committed == 2


@pytest.mark.parametrize("status", [WalkStatus.DEAD_END, WalkStatus.REFUSED, WalkStatus.FAILED])
def test_failed_golden_row_leaves_nothing_to_roll_back(status: WalkStatus) -> None:  # spec 32, 33
    decoder = GuidedDecoder()
    decoder.begin(0)
    one_walk(decoder, generation(0))
    assert decoder.answered(0, Outcome(status)) == 0
    assert decoder.accept(0, 1) == 0


def test_hold_changes_nothing() -> None:
    decoder = GuidedDecoder()
    decoder.begin(0)
    one_walk(decoder, generation(0))
    assert decoder.answered(0, Outcome(WalkStatus.HOLD)) == 0
    decoder.answered(0, ok(2))
    assert decoder.accept(0, 1) == 1


def test_disagreement_is_an_error_of_one_sequence() -> None:  # spec R8, 43
    decoder = GuidedDecoder()
    decoder.begin(0)
    one_walk(decoder, generation(0))
    with pytest.raises(AccountingError):
        decoder.answered(0, ok(4))
    decoder.answered(0, ok(3))
    with pytest.raises(AccountingError):
        decoder.accept(0, 0)
    decoder.accept(0, 2)
    with pytest.raises(AccountingError):
        one_walk(decoder, generation(0, (5,), committed=(7,)))
    with pytest.raises(AccountingError):
        decoder.counters(1)


def test_drafting_gives_everything_back() -> None:  # spec 34, 36, 42, 44, 47
    decoder = GuidedDecoder()
    decoder.begin(0, committed=5)
    decoder.drafted(0, ok(1), 1)
    decoder.drafted(0, ok(2), 2)
    decoder.drafted(0, ok(2), 3)
    assert decoder.counters(0).is_draft_terminated
    decoder.drafted(0, ok(4), 4)
    decoder.validate()
    assert decoder.rollback_drafts(0) == 2
    assert decoder.counters(0).length == 5


def test_flag_is_cleared_also_where_nothing_was_advanced() -> None:  # spec 44
    decoder = GuidedDecoder()
    decoder.begin(0)
    decoder.drafted(0, Outcome(WalkStatus.REFUSED), 1)
    assert decoder.counters(0).is_draft_terminated
    assert decoder.rollback_drafts(0) == 0
    assert not decoder.counters(0).is_draft_terminated


@pytest.mark.parametrize("seed", range(20))
def test_counts_follow_a_matcher(seed: int) -> None:  # spec 42, 43, 45
    dice = random.Random(seed)
    decoder = GuidedDecoder()
    decoder.begin(0)
    matcher: list[int] = []
    one_walk(decoder, context(0))
    decoder.answered(0, ok(0, 1))
    decoder.accept(0, 1)
    for _ in range(50):
        drafts = dice.randint(0, 4)
        path = tuple(dice.randrange(100) for _ in range(drafts + 1))
        committed = tuple(matcher[len(matcher) - max(decoder.counters(0).kept, 0) :]) if decoder.counters(0).kept > 0 else ()
        one_walk(decoder, generation(0, path, committed), drafts)
        advanced = dice.randint(1, len(path))
        matcher += path[:advanced]
        decoder.answered(0, ok(advanced))
        decoder.validate()
        assert decoder.counters(0).length == len(matcher)
        back = decoder.accept(0, dice.randint(1, drafts + 1))
        del matcher[len(matcher) - back :]
        decoder.validate({0: len(matcher)})
