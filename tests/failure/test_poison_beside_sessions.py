"""The whole poison corpus, two guides of it at a time, beside 20 ordinary sessions: none of their steps fails or is late."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from shared.guide import Guide
from shared.protocol import Compile, Compiled, StepStatus
from tests.failure.poison import CORPUS, Poison
from tests.failure.processes import children, wait_until
from tests.grammar_driver import Driver, Sequence1
from tests.grammar_process import ServiceProcess, serving
from tests.vocabularies import encode_greedy, qwen

pytestmark = [pytest.mark.failure, pytest.mark.slow, pytest.mark.timeout(400)]

NUM_SESSIONS = 20
ORDINARY = '{"type":"array","items":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}}'
ITEM = b'{"a": "some words of a text"}, '
HARD_S = 0.25
BASELINE_STEPS = 150
COMPILE_S = 3.0
MEMORY_SLACK_BYTES = 60 << 20


class Outcome(NamedTuple):
    """Seconds of each step, and the answers to the poisons by name."""

    seconds: list[float]
    answers: dict[str, Compiled]


class Sessions:
    """Sessions that write one endless array each, a token a step; every answer is checked."""

    def __init__(self, driver: Driver) -> None:
        plan = driver.compile("json_schema", ORDINARY).plan
        assert plan is not None
        self.driver = driver
        self.sequences = [Sequence1(driver, handle, plan) for handle in range(100, 100 + NUM_SESSIONS)]
        for sequence in self.sequences:
            assert driver.open(sequence.handle, plan).error is None
        self.text = encode_greedy(driver.vocabulary, b"[")
        self.item = encode_greedy(driver.vocabulary, ITEM)
        self.at = 0
        self.path: list[int] = []

    def step(self) -> float:
        """One step of all; how long it took."""
        started_s = time.perf_counter()
        answers = self.driver.step(*(sequence.entry(self.path) for sequence in self.sequences), step=self.at + 1)
        spent_s = time.perf_counter() - started_s
        for sequence in self.sequences:
            entry, rows = answers[sequence.handle]
            assert entry.status == StepStatus.OK, entry
            assert entry.num_advanced == len(self.path)
            assert rows[-1].any()
            sequence.commit(*self.path)
        self.path = [self.text[0] if self.at == 0 else self.item[(self.at - 1) % len(self.item)]]
        self.at += 1
        return spent_s

    def end(self) -> None:
        self.driver.end(*((sequence.handle, 0) for sequence in self.sequences))


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Driver, ServiceProcess]]:
    with serving(qwen(), "--compile-timeout-s", str(COMPILE_S), "--compile-memory-bytes", str(1 << 30)) as pair:
        yield pair


def send(driver: Driver, poison: Poison) -> None:
    guide: Any = Guide(kind=poison.kind, text=poison.text)  # type: ignore[arg-type]
    driver.send(Compile(key=poison.name, guide=guide, client="poisoner"))


def poisoned(driver: Driver, sessions: Sessions) -> Outcome:
    """Steps the sessions while the corpus is sent, two poisons under way at any time."""
    driver.log.clear()
    left, seconds, answers = list(CORPUS), [], {}
    under_way = 0
    while len(answers) < len(CORPUS):
        while left and under_way < 2:
            send(driver, left.pop(0))
            under_way += 1
        seconds.append(sessions.step())
        for message in driver.log:
            if isinstance(message, Compiled):
                answers[message.key] = message
                under_way -= 1
        driver.log.clear()
    return Outcome(seconds, answers)


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]


def test_ordinary_sessions_do_not_feel_the_corpus(running: tuple[Driver, ServiceProcess]) -> None:  # spec R1, R8, 38
    driver, service = running
    sessions = Sessions(driver)
    driver.compile("regex", "warm[0-9]+")  # the first child, the first pages
    resident = service.resident_bytes()
    before = [sessions.step() for _ in range(BASELINE_STEPS)]
    outcome = poisoned(driver, sessions)
    after = [sessions.step() for _ in range(BASELINE_STEPS)]

    assert service.process.poll() is None
    assert set(outcome.answers) == {poison.name for poison in CORPUS}
    baseline_s = max(p99(before), p99(after))  # the machine's own changes are no effect of the corpus
    assert p99(outcome.seconds) < 2 * baseline_s + HARD_S, (p99(outcome.seconds), baseline_s, len(outcome.seconds))
    refused = {name for name, compiled in outcome.answers.items() if compiled.error is not None}
    assert refused >= {poison.name for poison in CORPUS if not poison.may_pass}

    held = sum(compiled.grammar_bytes for compiled in outcome.answers.values())
    assert service.resident_bytes() - resident < held + MEMORY_SLACK_BYTES
    nothing_is_left(driver, service, sessions)
    sessions.end()


def nothing_is_left(driver: Driver, service: ServiceProcess, sessions: Sessions) -> None:
    """The corpus once more: what was made at first use (the first message over 64 KB has pyzmq make a context) is there by now."""
    (zygote,) = children(service.step_pid())
    wait_until(lambda: len(children(zygote)) <= 1)  # the one forked ahead
    descriptors, resident = service.descriptors(), service.resident_bytes()
    poisoned(driver, sessions)
    wait_until(lambda: len(children(zygote)) <= 1)
    assert service.descriptors() <= descriptors
    assert service.resident_bytes() - resident < MEMORY_SLACK_BYTES // 2
    assert children(service.step_pid()) == [zygote]
