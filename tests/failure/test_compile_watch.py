"""A step that does not come back costs its process, and nothing else of the fleet; a supervisor starts another."""

from __future__ import annotations

import time

import pytest

from grammar_service import engines
from shared.protocol import Open, Plan, Ready, StepStatus
from tests.grammar_driver import Driver, Sequence1
from tests.grammar_process import ServiceProcess, serving
from tests.vocabularies import encode_greedy, tiny

pytestmark = pytest.mark.failure

AMBIGUOUS = Plan(
    engine="xgrammar", engine_version=engines.versions()["xgrammar"], guide_kind="ebnf", grammar_kind="ebnf",
    text='root ::= root root root | "a" | ""',
)  # fmt: skip


def hang(driver: Driver, handle: int) -> None:
    """Replays a prefix whose tokens cost xgrammar more and more, up to seconds each."""
    driver.send(Open(
        handle=handle, epoch=0, plan_digest=AMBIGUOUS.digest, plan=AMBIGUOUS, stop_ids=driver.vocabulary.stop_ids,
        committed=[ord("a")] * 600,
    ))  # fmt: skip


def test_a_loop_that_hangs_is_killed() -> None:  # spec R8, 38
    with serving(tiny(), "--step-kill-s", "0.5", "--step-hard-s", "0.2") as (driver, service):
        hang(driver, 1)
        assert service.process.wait(timeout=60) == -9


def test_the_supervisor_starts_another() -> None:
    with (
        Driver(tiny()) as driver,
        ServiceProcess(driver.address, "--supervise", "--step-kill-s", "0.5", "--drain-s", "0") as service,
    ):
        driver.wait_ready()
        first = driver.hello
        hang(driver, 1)
        driver.expect(Ready)
        assert first is not None
        assert driver.hello is not None
        assert driver.hello.instance != first.instance
        assert driver.compile("regex", "a+").error is None
        service.process.terminate()
        assert service.process.wait(timeout=20) == 0


def test_a_session_over_its_budget_fails_and_the_others_are_answered() -> None:  # spec R8
    with serving(tiny(), "--step-kill-s", "30", "--step-hard-s", "0.05") as (driver, _):
        slow, fast = AMBIGUOUS, driver.compile("regex", "[0-9]+").plan
        assert fast is not None
        assert driver.open(1, slow, plan=slow).error is None
        driver.open(2, fast)
        sequences = Sequence1(driver, 1, slow), Sequence1(driver, 2, fast)
        tokens = {1: encode_greedy(driver.vocabulary, b"a"), 2: encode_greedy(driver.vocabulary, b"7")}
        deadline = time.monotonic() + 60
        failed = False
        while not failed and time.monotonic() < deadline:
            answers = driver.step(*(sequence.entry(tokens[sequence.handle]) for sequence in sequences))
            assert answers[2][0].status == StepStatus.OK
            failed = answers[1][0].status == StepStatus.FAILED
            for sequence in sequences:
                sequence.commit(*tokens[sequence.handle])
        error = answers[1][0].error
        assert error is not None
        assert error.code == "step_timeout"
