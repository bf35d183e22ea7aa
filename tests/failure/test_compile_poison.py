"""Every poison through the real service: a clear answer in time, sessions beside it unharmed, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest

from shared.bitmask import count, token_ids
from shared.guide import Guide
from shared.protocol import Compile, Compiled, Ping, Plan, Pong, StepStatus
from tests.failure.poison import CORPUS, Poison
from tests.failure.processes import children
from tests.grammar_driver import Driver, Sequence1
from tests.grammar_process import ServiceProcess, serving
from tests.vocabularies import encode_greedy, qwen

pytestmark = pytest.mark.failure

LIMIT_S = 4.0
CODES = {
    "bad_request", "unsupported_schema", "unsatisfiable", "grammar_too_large", "compile_timeout", "compile_crashed", "too_large",
}  # fmt: skip
ORDINARY = '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}'


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Driver, ServiceProcess]]:
    with serving(qwen(), "--compile-timeout-s", str(LIMIT_S), "--compile-memory-bytes", str(1 << 30)) as pair:
        yield pair


def begin(driver: Driver, poison: Poison) -> None:
    driver.send(Compile(key=poison.name, guide=Guide(kind=poison.kind, text=poison.text), client="poisoner"))  # type: ignore[arg-type]


def ordinary(driver: Driver) -> Plan:
    plan = driver.compile("json_schema", ORDINARY).plan
    assert plan is not None
    return plan


def cases() -> list[object]:
    return [pytest.param(poison, id=poison.name) for poison in CORPUS]


@pytest.mark.parametrize("poison", cases())
def test_poison_has_a_clear_outcome_and_ordinary_sessions_go_on(
    running: tuple[Driver, ServiceProcess], poison: Poison
) -> None:  # spec R1, R8, 38
    driver, service = running
    plan = ordinary(driver)
    handles = range(100, 105)
    for handle in handles:
        assert driver.open(handle, plan, epoch=0).error is None
    begin(driver, poison)
    compiled = walk_beside(driver, plan, poison)
    assert (compiled.error is None) or compiled.error.code in CODES, compiled.error
    assert poison.may_pass or compiled.error is not None
    if compiled.plan is not None:
        walk_freely(driver, compiled.plan)
    assert service.process.poll() is None
    driver.end(*((handle, 0) for handle in handles))


def walk_beside(driver: Driver, plan: Plan, poison: Poison) -> Compiled:
    """Steps ordinary sessions until the poison's answer is there; none of their steps fails or waits for it."""
    deadline = time.monotonic() + LIMIT_S + 20
    tokens = encode_greedy(driver.vocabulary, b'{"a": "xxxxxxxx')
    while time.monotonic() < deadline:
        for handle in range(100, 105):
            entry, _ = driver.step(Sequence1(driver, handle, plan, committed=tokens[:3]).entry(committed=3))[handle]
            assert entry.status in (StepStatus.OK, StepStatus.FAILED) and entry.error is None
        found = [m for m in driver.log if isinstance(m, Compiled) and m.key == poison.name]
        driver.send(Ping(nonce=1))
        driver.expect(Pong)
        if found:
            return found[0]
    raise AssertionError(f"{poison.name}: no answer within {LIMIT_S} s and a grace")


def walk_freely(driver: Driver, plan: Plan) -> None:
    """What was let through gives rows within the step budget, or fails that session alone."""
    driver.open(200, plan)
    sequence = Sequence1(driver, 200, plan)
    path: list[int] = []
    for _ in range(20):
        entry, rows = driver.step(sequence.entry(path))[200]
        if entry.status != StepStatus.OK:
            assert entry.status != StepStatus.FAILED or (entry.error is not None and entry.error.code == "step_timeout")
            break
        sequence.commit(*path)
        assert count(rows[-1], driver.vocabulary.size) > 0
        allowed = token_ids(rows[-1], driver.vocabulary.size)
        path = [int(allowed[len(allowed) // 3])]
    driver.end((200, 0))


def test_a_guide_that_timed_out_is_not_tried_again(running: tuple[Driver, ServiceProcess]) -> None:
    with serving(qwen(), "--compile-timeout-s", "0.02") as (driver, _):
        guide = ("json_schema", json.dumps({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(400)}}))
        first = driver.compile(*guide)
        assert first.error is not None
        assert first.error.code == "compile_timeout"
        started = time.monotonic()
        again = driver.compile(*guide)
        assert again.error == first.error
        assert time.monotonic() - started < 5
        assert again.compile_ms == 0


def test_the_zygote_is_replaced_when_it_dies(running: tuple[Driver, ServiceProcess]) -> None:
    driver, service = running
    (zygote,) = children(service.step_pid())
    os.kill(zygote, signal.SIGKILL)
    time.sleep(0.2)
    codes = [compiled.error and compiled.error.code for compiled in (driver.compile("regex", f"after{n}") for n in range(3))]
    assert codes[-1] is None
    assert children(service.step_pid()) != [zygote]


def test_descriptors_and_children_are_back_where_they_were(running: tuple[Driver, ServiceProcess]) -> None:
    driver, service = running
    driver.compile("regex", "before")
    before = service.descriptors(), len(children(service.step_pid()))
    for number in range(25):
        driver.compile("regex", f"(unclosed{number}")
        driver.compile("regex", f"fine{number}")
    assert (service.descriptors(), len(children(service.step_pid()))) == before
