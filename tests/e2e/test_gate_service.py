"""The reasoning gate through a real service on a real vocabulary: rows, drafts that close it, roll-back, replay, budget."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from shared.bitmask import count, is_set
from shared.gate import Gate
from shared.protocol import Plan, StepStatus
from tests.grammar_driver import Driver, Sequence1
from tests.grammar_process import serving
from tests.vocabularies import encode_greedy, qwen

pytestmark = pytest.mark.e2e
END = "</think>"


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with serving(qwen()) as (made, _):
        yield made


def tokens(text: str) -> list[int]:
    return encode_greedy(qwen(), text.encode())


def gated(driver: Driver, handle: int, gate: Gate, *, regex: str = "[0-9]{2}x", **fields: object) -> Sequence1:
    compiled = driver.compile("regex", regex)
    assert compiled.plan is not None
    plan: Plan = msgspec.structs.replace(compiled.plan, gate=gate)
    opened = driver.open(handle, plan, plan=plan, **fields)
    assert opened.error is None, opened.error
    return Sequence1(driver, handle, plan, committed=fields.get("committed", ()))  # type: ignore[arg-type]


def allows(row: object, token: int) -> bool:
    return is_set(row, token, driver_size())  # type: ignore[arg-type]


def driver_size() -> int:
    return qwen().size


def test_everything_but_stop_tokens_may_be_thought(driver: Driver) -> None:  # spec 12, R5
    sequence = gated(driver, 1, Gate(end=END))
    _, rows = driver.step(sequence.entry())[1]
    assert count(rows[0], driver_size()) == driver_size() - len(qwen().stop_ids)
    assert not any(allows(rows[0], stop) for stop in qwen().stop_ids)


def test_the_marker_closes_inside_a_draft_block(driver: Driver) -> None:  # spec 12, 25, 43
    sequence = gated(driver, 2, Gate(end=END))
    driver.step(sequence.entry())
    path = [*tokens("hm"), *tokens(END), *tokens("4")]
    answer, rows = driver.step(sequence.entry([*path, *tokens("y")]))[2]
    assert (answer.status, answer.num_advanced, answer.num_guided) == (StepStatus.OK, len(path), len(path))
    assert allows(rows[-3], tokens("y")[0])
    assert not allows(rows[-2], tokens("y")[0])
    assert allows(rows[-2], tokens("4")[0])
    kept = len(path) - 2  # the verifier took back the digit and the last token of the marker
    sequence.commit(*path[:kept])
    _, rows = driver.step(sequence.entry(tokens("oh"), accepted=kept))[2]
    assert allows(rows[0], tokens("y")[0])
    assert not allows(rows[0], qwen().stop_ids[0])


def test_a_replay_elsewhere_stands_where_the_text_does(driver: Driver) -> None:  # spec 12, 50, R9
    committed = [*tokens("so"), *tokens(END), *tokens("4")]
    for known in (committed[:1], committed[:-1], committed):
        sequence = gated(driver, 3, Gate(end=END), committed=known)
        _, rows = driver.step(sequence.entry())[3]
        assert allows(rows[0], qwen().stop_ids[0]) is False
        assert allows(rows[0], tokens("z")[0]) == (len(known) == 1)
        assert allows(rows[0], tokens("7")[0])
        driver.end((3, 0))


def test_a_spent_budget_forces_the_marker(driver: Driver) -> None:  # spec 13, R22
    sequence = gated(driver, 4, Gate(end=END, start="<think>", budget=2))
    written = [*tokens("<think>"), *tokens("a"), *tokens("</")]
    answer, rows = driver.step(sequence.entry())[4]
    assert [count(row, driver_size()) for row in rows] == [1]
    for token in written:
        assert allows(rows[-1], token)
        answer, rows = driver.step(sequence.entry([token]))[4]
        sequence.commit(token)
    forced = list(answer.forced)
    assert b"".join(qwen().token_bytes[i] for i in forced) == b"think>"  # the rest of what is there
    answer, rows = driver.step(sequence.entry(forced))[4]
    assert answer.num_advanced == len(forced)
    assert [count(row, driver_size()) for row in rows[:-1]] == [1] * (len(forced) - 1)
    assert allows(rows[-1], tokens("4")[0])
    assert not allows(rows[-1], tokens("a")[0])


def test_the_plan_may_be_left_out_the_second_time(driver: Driver) -> None:  # spec 12, 137
    first = gated(driver, 5, Gate(end=END, budget=7))
    assert driver.open(6, first.plan).error is None
    other = msgspec.structs.replace(first.plan, gate=Gate(end=END, budget=8))
    error = driver.open(7, other).error
    assert error is not None
    assert error.code == "unknown_plan"
    assert other.digest != first.plan.digest
    assert other.grammar_digest == first.plan.grammar_digest  # compiled once


@pytest.mark.parametrize(
    ("gate", "field"), [(Gate(end="e"), "reasoning.end"), (Gate(end=[qwen().stop_ids[0]]), "reasoning.end")]
)  # fmt: skip
def test_a_marker_that_cannot_serve_is_refused_by_name(driver: Driver, gate: Gate, field: str) -> None:  # spec 12
    compiled = driver.compile("regex", "a")
    assert compiled.plan is not None
    plan = msgspec.structs.replace(compiled.plan, gate=gate)
    error = driver.open(8, plan, plan=plan).error
    assert error is not None
    assert (error.code, error.field) == ("bad_request", field)
