"""Sessions and walks over written-down languages: what is accepted, counted, rolled back, repeated and refused."""

from __future__ import annotations

import pytest

from shared import digest
from shared.bitmask import RowKind
from shared.errors import AccountingError, BadRequest
from shared.protocol import Open, StepEntry, StepStatus
from tests.scripted import EOS, OTHER_STOP, PLAN, Bench, Language, drive, ids, matcher

ABC = Language([(1, 2, 3), (1, 2, 4), (1, 5)])


def test_the_first_row_is_filled_without_accepting_anything() -> None:  # spec 30, 28
    bench = Bench(ABC)
    answer = bench.step()
    assert answer.status is StepStatus.OK
    assert answer.num_advanced == 0
    assert [ids(row) for row in answer.rows] == [{1}]
    assert bench.session.tokens == []


def test_a_golden_token_advances_and_gives_one_row() -> None:  # spec 42
    bench = Bench(ABC)
    answer = bench.step(1)
    assert (answer.num_advanced, [ids(row) for row in answer.rows]) == (1, [{2, 5}])


def test_a_golden_token_alone_takes_the_short_way_and_has_the_same_answer() -> None:  # spec 42
    bench, rows = Bench(Language([(1, 2, 3), (1, 2, 4), (1, 5, 3, 3)])), []
    bench.step()
    for token in (1, 2, 3):
        answer = bench.step(token, accepted=min(bench.number - 1, 1))
        rows.append([ids(row) for row in answer.rows])
        bench.commit(token)
    assert bench.num_plain == 3
    assert rows == [[{2, 5}], [{3, 4}], [{EOS}]]
    assert bench.step(EOS).status is StepStatus.TERMINATED
    assert bench.num_plain == 3  # what may end the guide is walked


def test_after_the_short_way_the_rows_are_known_to_a_walk() -> None:  # spec R9, 47
    bench = Bench(ABC)
    bench.step()
    first = bench.step(1)
    assert bench.num_plain == 1
    fills = bench.session.matcher.native.fills
    again = bench.step(1, 2, accepted=0)  # nothing was committed
    assert again.rows[0] is first.rows[0]
    assert bench.session.matcher.native.fills == fills + 1


def test_what_only_a_draft_walk_advanced_cannot_have_been_accepted() -> None:  # spec 43, R8
    bench = Bench(ABC)
    bench.step()
    bench.step(1, draft_walk=True)
    bench.commit(1)  # no target walk has advanced it
    assert bench.step(2, accepted=1).status is StepStatus.FAILED
    assert bench.num_plain == 0


def test_bits_beyond_the_vocabulary_are_cleared() -> None:  # spec 26
    assert max(ids(Bench(ABC).step().rows[0])) < 70


def test_drafts_give_a_row_each() -> None:  # spec 24, 42
    answer = Bench(ABC).step(1, 2, 3)
    assert answer.num_advanced == 3
    assert [ids(row) for row in answer.rows] == [{2, 5}, {3, 4}, {EOS}]


def test_a_refused_golden_token_fails_nothing_else_and_leaves_the_state() -> None:  # spec 32, 16
    bench = Bench(ABC)
    answer = bench.step(9)
    assert (answer.status, answer.num_advanced, answer.rows) == (StepStatus.REFUSED, 0, ())
    assert bench.session.tokens == []
    assert bench.step(1).status is StepStatus.OK


def test_a_refused_draft_ends_the_rows_without_a_flag() -> None:  # spec 36
    answer = Bench(ABC).step(1, 9, 3)
    assert (answer.status, answer.num_advanced) == (StepStatus.OK, 1)
    assert [ids(row) for row in answer.rows] == [{2, 5}]


def test_a_token_whose_bit_is_0_is_refused_even_where_the_engine_takes_it() -> None:  # spec R1
    bench = Bench(Language([(1, 2)], consumed=[((), 9)]))
    assert bench.step(9).status is StepStatus.REFUSED


def test_a_dead_golden_row_of_a_target_walk_counts_nothing() -> None:  # spec 33, R7
    bench = Bench(Language([(1, 2)], dead=[(1, 9), (8,)]))
    answer = bench.step(8)
    assert (answer.status, answer.num_advanced, answer.rows) == (StepStatus.DEAD_END, 0, ())
    assert bench.session.tokens == []


def test_a_dead_golden_row_of_a_draft_walk_counts_the_advance() -> None:  # spec 34
    bench = Bench(Language([(1, 2)], dead=[(8,)]))
    answer = bench.step(8, draft_walk=True)
    assert (answer.status, answer.num_advanced, answer.rows) == (StepStatus.DEAD_END, 1, ())
    assert bench.session.tokens == [8]


def test_a_dead_draft_is_forbidden_where_another_token_is_allowed() -> None:  # spec R6, 35
    bench = Bench(Language([(1, 2)], dead=[(1, 9)]))
    answer = bench.step(1, 9)
    assert (answer.status, answer.num_advanced) == (StepStatus.OK, 1)
    assert [ids(row) for row in answer.rows] == [{2}]
    assert bench.session.tokens == [1]


def test_a_dead_draft_stays_where_nothing_else_is_allowed_and_ends_the_request_next() -> None:  # spec R6
    bench = Bench(Language([(5,)], dead=[(1, 9)]))
    answer = bench.step(1, 9)
    assert (answer.num_advanced, [ids(row) for row in answer.rows]) == (1, [{9}])
    bench.commit(1)
    assert bench.step(9).status is StepStatus.DEAD_END


def test_termination_inside_the_drafts_is_counted_and_has_no_row() -> None:  # spec 37
    answer = Bench(ABC).step(1, 5, EOS, 3)
    assert (answer.status, answer.num_advanced) == (StepStatus.TERMINATED, 3)
    assert [ids(row) for row in answer.rows] == [{2, 5}, {EOS}]


def test_the_stop_set_is_the_requests_own() -> None:  # spec R5, R3
    bench = Bench(ABC, committed=(1, 5), stop_ids=(OTHER_STOP, 3))
    assert ids(bench.step().rows[0]) == {OTHER_STOP, 3}
    assert bench.step(EOS).status is StepStatus.REFUSED
    assert bench.step(3).status is StepStatus.TERMINATED


def test_after_the_end_nothing_is_accepted() -> None:  # spec R5, 20
    bench = Bench(ABC, committed=(1, 5, EOS))
    assert bench.step().status is StepStatus.TERMINATED
    assert bench.step(1).status is StepStatus.REFUSED


def test_after_guide_free_gives_unguided_rows() -> None:  # spec 19, R5
    bench = Bench(ABC, committed=(1, 5), after_guide="free")
    assert bench.step().rows[0].kind is RowKind.ALL
    answer = bench.step(33, 34)
    assert [row.kind for row in answer.rows] == [RowKind.ALL, RowKind.ALL]
    bench.commit(33)
    assert bench.step(35).num_advanced == 1
    assert bench.session.matcher.native_length == 2


def test_eos_ends_again_after_a_roll_back() -> None:  # spec 17, 20
    bench = Bench(ABC, committed=(1, 5))
    assert bench.step(EOS).status is StepStatus.TERMINATED
    assert bench.step(EOS, accepted=0).status is StepStatus.TERMINATED
    assert bench.session.matcher.length == 3
    assert bench.session.matcher.native_length == 2


def test_the_rejected_tokens_are_rolled_back() -> None:  # spec 43
    bench = Bench(ABC)
    assert bench.step(1, 2, 3).num_advanced == 3
    bench.commit(1)  # the verifier kept the golden token alone
    answer = bench.step(5, accepted=1)
    assert (answer.status, [ids(row) for row in answer.rows]) == (StepStatus.OK, [{EOS}])
    assert bench.session.tokens == [1, 5]


def test_the_count_is_clamped_to_what_the_matcher_advanced() -> None:  # spec 45
    bench = Bench(ABC)
    assert bench.step(1, 2, 9).num_advanced == 2
    bench.commit(1, 2)
    assert bench.step(3, accepted=3).status is StepStatus.OK


def test_a_count_that_disagrees_fails_this_request_alone() -> None:  # spec R8, 43
    bench = Bench(ABC)
    bench.step(1, 2, 3)
    bench.commit(1)
    answer = bench.step(5, accepted=2)
    assert answer.status is StepStatus.FAILED
    assert isinstance(answer.error, AccountingError)
    assert bench.step(5).status is StepStatus.FAILED


def test_a_draft_loop_gives_everything_back() -> None:  # spec 44, 47
    bench = Bench(ABC)
    bench.step(1, draft_walk=True)
    bench.step(1, 2, draft_walk=True)
    answer = bench.step(1, 5)  # the target verifies another draft
    assert [ids(row) for row in answer.rows] == [{2, 5}, {EOS}]
    assert bench.session.tokens == [1, 5]


def test_a_draft_loop_fills_each_state_once() -> None:  # spec 47
    bench = Bench(ABC)
    bench.step(1, draft_walk=True)
    bench.step(1, 2, draft_walk=True)
    before = bench.session.matcher.native.fills
    bench.step(1, 2)
    assert bench.session.matcher.native.fills == before


def test_a_hold_repeats_the_step() -> None:  # spec R9
    bench = Bench(ABC)
    first = bench.step(1, 2)
    again = bench.step(1, 2, accepted=0)
    assert (again.num_advanced, [ids(r) for r in again.rows]) == (2, [ids(r) for r in first.rows])


def test_the_same_number_gets_the_same_answer_and_an_older_one_none() -> None:  # spec 42
    bench = Bench(ABC)
    first, second = bench.entry(), bench.entry((1,))
    bench.run(first)
    answer = bench.run(second)
    assert bench.run(second) == answer
    assert bench.sessions.step(first, 0.0) is None


def test_the_same_number_with_other_bytes_fails_the_request() -> None:  # spec R8
    bench = Bench(ABC)
    entry = bench.entry((1,))
    bench.run(entry)
    other = StepEntry(7, 0, entry.sequence_number, 0, entry.prefix_digest, [], [9])
    assert bench.run(other).status is StepStatus.FAILED


def test_an_unknown_session_a_gap_and_a_wrong_digest_ask_for_a_resync() -> None:  # spec R9
    bench = Bench(ABC)
    assert bench.run(StepEntry(8, 0, 1, 0, PLAN, [], [])).status is StepStatus.RESYNC
    assert bench.run(StepEntry(7, 1, 1, 0, PLAN, [], [])).status is StepStatus.RESYNC
    assert bench.run(StepEntry(7, 0, 1, 2, PLAN, [1], [])).status is StepStatus.RESYNC
    assert bench.run(StepEntry(7, 0, 2, 1, PLAN, [1], [])).status is StepStatus.RESYNC
    assert bench.session.tokens == []
    bench.number = 2
    assert bench.step(1).status is StepStatus.OK


def test_a_lost_entry_is_made_good_by_the_tokens() -> None:  # spec R9, 50
    bench = Bench(ABC)
    bench.step()
    base = digest.chain(PLAN, [1, 2])[-1]
    answer = bench.run(StepEntry(7, 0, 5, 2, base, [1, 2], [4]))
    assert (answer.status, bench.session.tokens) == (StepStatus.OK, [1, 2, 4])


def test_a_replay_continues_and_never_restarts_the_grammar() -> None:  # spec 50, R9
    assert ids(Bench(ABC, committed=(1, 2)).step(3).rows[0]) == {EOS}


def test_a_replay_of_tokens_outside_the_language_is_refused() -> None:
    with pytest.raises(BadRequest, match="not in the language"):
        Bench(ABC, committed=(1, 9))


def test_an_engine_that_breaks_fails_one_request() -> None:  # spec 18, 38
    bench = Bench(Language([(1, 2, 3)], broken=[(1,)]))
    assert bench.step(1).status is StepStatus.FAILED
    assert bench.sessions.step(bench.entry((1,)), 0.0).status is StepStatus.FAILED  # type: ignore[union-attr]


def test_a_newer_epoch_takes_the_place_and_an_older_one_is_ignored() -> None:
    bench = Bench(ABC)
    make = lambda: matcher(ABC)  # noqa: E731
    assert bench.sessions.open(Open(handle=7, epoch=2, plan_digest=PLAN, stop_ids=[EOS]), make, 0.0) is not None
    assert bench.sessions.open(Open(handle=7, epoch=1, plan_digest=PLAN, stop_ids=[EOS]), make, 0.0) is None
    assert bench.sessions.step(bench.entry(), 0.0) is None
    bench.sessions.close(7, 1)
    assert len(bench.sessions) == 1


def test_a_fork_shares_the_prefix_and_nothing_after_it() -> None:  # spec R21, 129
    bench = Bench(ABC)
    bench.step(1, 2)
    fork = Open(handle=8, epoch=0, plan_digest=PLAN, stop_ids=[EOS], committed=[1], parent=7)
    child = bench.sessions.open(fork, lambda: pytest.fail("the parent is there"), 0.0)
    assert child is not None
    assert (child.tokens, bench.session.tokens) == ([1], [1, 2])
    answer = drive(bench.sessions.step(StepEntry(8, 0, 1, 1, digest.chain(PLAN, [1])[-1], [], [5]), 0.0), bench.store)
    assert [ids(row) for row in answer.rows] == [{EOS}]
    bench.sessions.validate()


def test_a_fork_without_its_parent_is_a_replay() -> None:
    bench = Bench(ABC)
    fork = Open(handle=8, epoch=0, plan_digest=PLAN, stop_ids=[EOS], committed=[1, 2], parent=99)
    child = bench.sessions.open(fork, lambda: matcher(ABC), 0.0)
    assert child is not None
    assert child.tokens == [1, 2]


def test_a_silent_session_ends_with_its_lease() -> None:
    bench = Bench(ABC)
    bench.run(bench.entry(), now_s=50.0)
    assert bench.sessions.expire(100.0, 60.0) == 0
    assert bench.sessions.expire(111.0, 60.0) == 1
    assert len(bench.sessions) == 0


def test_forced_tokens_are_offered() -> None:  # spec R22
    assert Bench(Language([(1, 2, 3), (4,)])).step(1).forced == (2, 3)


def test_a_tree_fills_each_node_by_its_own_path() -> None:  # spec 48, R10
    bench = Bench(ABC)
    answer = bench.step(1, 2, 5, 3, 9, 4, parents=[-1, 0, 0, 1, 0, 1])
    assert (answer.status, answer.num_advanced) == (StepStatus.OK, 5)
    assert [ids(row) for row in answer.rows] == [{2, 5}, {3, 4}, {EOS}, {EOS}, set(), {EOS}]
    assert bench.session.tokens == []
    bench.commit(1, 2)
    assert [ids(row) for row in bench.step(4).rows] == [{EOS}]


def test_a_tree_forbids_a_child_that_leads_to_a_dead_state() -> None:  # spec R6, R10
    bench = Bench(Language([(1, 2), (1, 3)], dead=[(1, 9)]))
    answer = bench.step(1, 9, 2, parents=[-1, 0, 0])
    assert [ids(row) for row in answer.rows] == [{2, 3}, set(), {EOS}]


def test_a_tree_whose_golden_token_is_refused_or_dead() -> None:  # spec 32, 33
    bench = Bench(Language([(1, 2)], dead=[(8,)]))
    assert bench.step(9, 2, parents=[-1, 0]).status is StepStatus.REFUSED
    assert bench.step(8, 2, parents=[-1, 0]).status is StepStatus.DEAD_END


def test_parents_that_are_no_tree_fail_the_request() -> None:  # spec R8
    assert Bench(ABC).step(1, 2, parents=[-1, 1]).status is StepStatus.FAILED
    assert Bench(ABC).step(1, 2, parents=[-1]).status is StepStatus.FAILED


def test_a_fork_goes_its_own_way_natively() -> None:
    first = matcher(ABC)
    assert first.accept_token(1)
    second = first.fork()
    assert second.accept_token(5)
    assert first.accept_token(2)
    assert (first.length, second.state(), first.state()) == (2, "must_end", "open")
