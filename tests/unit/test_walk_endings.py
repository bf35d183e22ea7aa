"""Every way in which a walk can end, as a table: what is answered, what is counted, where the session stands."""

from __future__ import annotations

import pytest

from shared.protocol import StepStatus
from tests.scripted import EOS, Bench, Language, ids

LANGUAGE = Language([(1, 2, 3), (1, 5), (1, 2, 4, 6)], dead=[(8,), (1, 9), (1, 2, 7)], broken=[(1, 5)])
ENDED = Language([(1, 2)])
OK, TERMINATED, DEAD_END, REFUSED = StepStatus.OK, StepStatus.TERMINATED, StepStatus.DEAD_END, StepStatus.REFUSED

ABC = [{2, 5, 9}, {3, 4, 7}, {EOS}]
DEAD = {7, 9}  # drafts that led to a dead end are forbidden from then on (R6)

# committed, path, draft walk: status, tokens advanced, rows, where the session stands.
TABLE = {
    "first row": ((), (), False, OK, 0, [{1, 8}], ()),  # spec 30
    "golden token": ((), (1,), False, OK, 1, [{2, 5, 9}], (1,)),  # spec 42
    "golden token refused": ((), (3,), False, REFUSED, 0, [], ()),  # spec 32
    "golden token refused while drafting": ((), (3,), True, REFUSED, 0, [], ()),  # spec 32
    "golden token into a dead end": ((), (8,), False, DEAD_END, 0, [], ()),  # spec 33
    "golden token into a dead end while drafting": ((), (8,), True, DEAD_END, 1, [], (8,)),  # spec 34
    "draft into a dead end": ((), (1, 9, 3), False, OK, 1, [{2, 5}], (1,)),  # spec 35
    "second draft into a dead end": ((), (1, 2, 7), False, OK, 2, [{2, 5, 9}, {3, 4}], (1, 2)),  # spec 35
    "draft refused": ((), (1, 60, 2), False, OK, 1, [{2, 5, 9}], (1,)),  # spec 36
    "second draft refused": ((), (1, 2, 5), False, OK, 2, [{2, 5, 9}, {3, 4, 7}], (1, 2)),  # spec 36
    "last draft ends the text": ((), (1, 2, 3, EOS), False, TERMINATED, 4, ABC, (1, 2, 3, EOS)),  # spec 37
    "draft behind the end": ((), (1, 2, 3, EOS, 1), False, TERMINATED, 4, ABC, (1, 2, 3, EOS)),  # spec 37
    "golden token ends the text": ((1, 2, 3), (EOS,), False, TERMINATED, 1, [], (1, 2, 3, EOS)),  # spec 37
    "golden token and drafts behind the end": ((1, 2, 3), (EOS, 1), False, TERMINATED, 1, [], (1, 2, 3, EOS)),  # spec 37
    "first row behind the end": ((1, 2, 3, EOS), (), False, TERMINATED, 0, [], (1, 2, 3, EOS)),  # spec 31
    "golden token behind the end": ((1, 2, 3, EOS), (1,), False, REFUSED, 0, [], (1, 2, 3, EOS)),  # spec 31
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_every_ending(name: str) -> None:  # spec 31-37
    committed, path, draft_walk, status, advanced, rows, stands = TABLE[name]
    bench = Bench(LANGUAGE, committed=committed)
    answer = bench.step(*path, draft_walk=draft_walk)
    assert (answer.status, answer.num_advanced, [ids(row) for row in answer.rows]) == (status, advanced, rows)
    assert tuple(bench.session.tokens) == stands


@pytest.mark.parametrize("name", [name for name in TABLE if not TABLE[name][0]])
@pytest.mark.parametrize("kept", range(4))
def test_whatever_was_walked_the_next_walk_stands_at_what_was_kept(name: str, kept: int) -> None:  # spec 43-45
    """The verifier keeps some of what was advanced (never more than the text's end); the rest is as if it had never been."""
    _, path, draft_walk, _, advanced, _, _ = TABLE[name]
    bench = Bench(LANGUAGE)
    bench.step(*path, draft_walk=draft_walk)
    kept = min(kept, advanced, 2)
    if path[:1] == (8,):
        kept = 0  # nothing may follow it: a worker drops it
    bench.commit(*path[:kept])
    fresh = Bench(LANGUAGE, committed=path[:kept])
    accepted = -1 if draft_walk else kept  # what a drafting loop walked is no walk of the verifier (spec 44)
    after, alone = bench.step(accepted=accepted), fresh.step()
    assert (after.status, after.num_advanced) == (alone.status, alone.num_advanced)
    assert [ids(row) - DEAD for row in after.rows] == [ids(row) - DEAD for row in alone.rows]
    assert bench.session.tokens == fresh.session.tokens


@pytest.mark.parametrize("word", range(28))
def test_a_row_is_alive_by_any_bit_below_the_vocabulary_alone(word: int) -> None:  # spec 26
    """One allowed token anywhere keeps a row alive, the sign bit of a word too; what the engine leaves above V never does."""
    for token in (word, word + 32, 31):
        answer = Bench(Language([(1, token)])).step(1)
        assert (answer.status, [ids(row) for row in answer.rows]) == (OK, [{token}])
    assert Bench(Language([(1, 2)], dead=[(8,)])).step(8).status is DEAD_END  # bits from 70 on are set by the scripted engine


def test_a_text_that_is_over_says_so_until_it_is_taken_back() -> None:  # spec 31, 45
    bench = Bench(ENDED)
    assert bench.step(1, 2, EOS).status is TERMINATED
    bench.commit(1, 2)
    answer = bench.step(accepted=2)
    assert (answer.status, [ids(row) for row in answer.rows]) == (OK, [{EOS}])
    assert bench.step(EOS).status is TERMINATED
