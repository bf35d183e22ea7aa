"""The two lanes of a step: each session is stepped once, also where it turns out to be slow in the middle of it."""

from __future__ import annotations

from typing import Any

from grammar_service import engines
from grammar_service.rows import RowStore
from grammar_service.sessions import Answer, Sessions
from grammar_service.stepper import Budget, Job, Stepper
from grammar_service.walks import walk
from shared.protocol import Open, Plan, StepEntry, StepStatus
from tests.vocabularies import tiny

NUM_SESSIONS = 5


def steps(budget: Budget) -> tuple[list[list[int]], Sessions]:
    """Handles of each part of one step of sessions that are all new."""
    vocabulary = tiny()
    loaded: dict[str, Any] = engines.load(vocabulary)
    plan = Plan(
        engine="llguidance", engine_version=loaded["llguidance"].version, guide_kind="regex", grammar_kind="regex", text="[0-9]+"
    )
    factory = loaded["llguidance"].compile("regex", plan.text, {})
    rows = RowStore(vocabulary.size, 1 << 20)
    sessions, stepper = Sessions(rows, walk), Stepper(loaded, rows, budget)
    jobs = []
    for handle in range(NUM_SESSIONS):
        message = Open(handle=handle, epoch=0, plan_digest=plan.digest, committed=[], stop_ids=vocabulary.stop_ids)
        session = sessions.open(message, lambda: factory.create(vocabulary.stop_ids), 0.0)
        outcome = sessions.step(StepEntry(handle, 0, 1, 0, plan.digest, [], []), 0.0)
        assert session is not None
        assert outcome is not None
        assert not isinstance(outcome, Answer)
        jobs.append(Job(session, outcome))
    parts = list(stepper.run(jobs, {}))
    assert all(answer.status is StepStatus.OK for part in parts for _, answer in part)
    return [[session.handle for session, _ in part] for part in parts], sessions


def test_sessions_that_become_slow_within_a_step_are_answered_once() -> None:  # spec R8
    parts, sessions = steps(Budget(0.0, 1e9))  # whatever they take is too long
    assert parts == [list(range(NUM_SESSIONS))]
    found = [sessions.get(handle) for handle in range(NUM_SESSIONS)]
    assert all(session is not None and session.apart for session in found)  # from the next step on each has a lane of its own


def test_quick_sessions_stay_together() -> None:
    parts, sessions = steps(Budget(1e9, 1e9))
    assert parts == [list(range(NUM_SESSIONS))]
    assert not any(session is None or session.apart for session in (sessions.get(handle) for handle in range(NUM_SESSIONS)))
