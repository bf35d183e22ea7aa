"""The service's side of the grammar link, message by message, on a real process."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from grammar_service import engines
from shared.guide import Guide, key_of
from shared.protocol import (
    Close,
    Compile,
    Compiled,
    Drain,
    Hello,
    HelloAgain,
    Open,
    Opened,
    Ping,
    Plan,
    Pong,
    Ready,
    Step,
    StepAnswer,
    StepStatus,
    VocabularyRequest,
)  # fmt: skip
from tests.grammar_driver import Driver, Sequence1
from tests.grammar_process import ServiceProcess, serving
from tests.vocabularies import encode_greedy, qwen, tiny

pytestmark = pytest.mark.failure


class Silent(Driver):
    """A worker that greets no service by itself."""

    def _greet(self, identity: bytes, message: Any) -> bool:
        if isinstance(message, Hello):
            self.identity, self.hello = identity, message
        return False


class Liar(Driver):
    """A worker whose chunks are not of the vocabulary that it announced."""

    def __init__(self) -> None:
        super().__init__(qwen())
        self._data = self._data[:-1] + bytes([self._data[-1] ^ 1])


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with serving(tiny()) as (driver, _):
        yield driver


def begin(driver: Driver, handle: int, text: str = "[0-9]+x") -> Sequence1:
    plan = driver.compile("regex", text).plan
    assert plan is not None
    assert driver.open(handle, plan).error is None
    return Sequence1(driver, handle, plan)


def tokens(driver: Driver, text: bytes) -> list[int]:
    return encode_greedy(driver.vocabulary, text)


def test_hello_comes_at_each_handshake_and_again_when_asked() -> None:  # spec R11
    with Silent(tiny()) as first, ServiceProcess(first.address, "--drain-s", "0", "--name", "greeter"):
        hello = first.expect(Hello)[0]
        assert (hello.service, hello.engines) == ("greeter", engines.versions())
        first.send(HelloAgain())
        assert first.expect(Hello)[0] == hello
        first.close()
        with Silent(tiny(), first.address) as second:
            assert second.expect(Hello)[0] == hello  # the same instance: it may still hold what it held


def test_work_before_the_vocabulary_is_refused_by_name() -> None:
    with Silent(tiny()) as driver, ServiceProcess(driver.address, "--drain-s", "0"):
        driver.expect(Hello)
        error = driver.compile("regex", "a").error
        assert error is not None
        assert (error.code, error.field) == ("bad_request", "fingerprint")


def test_the_vocabulary_is_asked_for_in_chunks_that_are_hashed() -> None:
    with Liar() as driver, ServiceProcess(driver.address, "--drain-s", "0"):
        ready = driver.wait_ready()
        assert ready.error is not None
        assert (ready.error.code, ready.error.field) == ("bad_request", "fingerprint")
        assert {m.chunk for m in driver.log if isinstance(m, VocabularyRequest)} == {0, 1}
        driver._data = driver._data[:-1] + bytes([driver._data[-1] ^ 1])
        driver.send(HelloAgain())  # the lie is forgotten: the next try is judged anew
        assert driver.wait_ready().error is None


def test_a_known_vocabulary_is_not_asked_for_twice(driver: Driver) -> None:
    asked = sum(isinstance(message, VocabularyRequest) for message in driver.log)
    driver.send(HelloAgain())
    assert driver.expect(Ready)[0].error is None
    assert sum(isinstance(message, VocabularyRequest) for message in driver.log) == asked


@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        ("regex", "(", "bad_request"),
        ("json_schema", "{", "bad_request"),
        ("json_schema", "false", "unsatisfiable"),
        ("json_schema", '{"$ref":"http://elsewhere/s.json"}', "unsupported_schema"),
        ("regex", "a{999999}", "grammar_too_large"),
        ("lark", "start: nowhere", "bad_request"),
    ],
)
def test_compile_answers_each_refusal_under_its_key(driver: Driver, kind: str, text: str, code: str) -> None:  # spec R1
    compiled = driver.compile(kind, text)
    assert compiled.plan is None
    assert compiled.error is not None
    assert compiled.error.code == code
    assert compiled.error.message


def test_compile_tells_size_share_and_cache(driver: Driver) -> None:  # spec 3
    first, again = driver.compile("regex", "[ab]cde"), driver.compile("regex", "[ab]cde")
    assert (first.cached, again.cached) == (False, True)
    assert first.plan == again.plan
    assert first.grammar_bytes == again.grammar_bytes > 0
    assert 0 < first.first_row_share < 0.1
    assert again.compile_ms == 0 < first.compile_ms


def test_equal_guides_in_flight_are_answered_each(driver: Driver) -> None:
    guide = Guide(kind="regex", text="flight[0-9]{3}")
    for client in ("one", "two", "three"):
        driver.send(Compile(key=key_of(guide), guide=guide, client=client))
    plans = [driver.expect(Compiled)[0].plan for _ in range(3)]
    assert plans[0] == plans[1] == plans[2] is not None


def test_open_of_a_plan_that_nobody_keeps_asks_for_it(driver: Driver) -> None:
    plan = Plan(
        engine="llguidance", engine_version=engines.versions()["llguidance"], guide_kind="regex", grammar_kind="regex", text="kept"
    )
    error = driver.open(10, plan).error
    assert error is not None
    assert error.code == "unknown_plan"
    assert driver.open(10, plan, plan=plan).error is None
    driver.end((10, 0))


def test_open_by_plan_without_any_compile_serves_a_step(driver: Driver) -> None:  # spec R9
    sequence = begin(driver, 11)
    assert driver.open(12, sequence.plan, epoch=4, committed=tokens(driver, b"12")).error is None
    answer, _ = driver.step(Sequence1(driver, 12, sequence.plan, epoch=4, committed=tokens(driver, b"12")).entry())[12]
    assert answer.status == StepStatus.OK
    driver.end((11, 0), (12, 4))


def test_an_older_epoch_opens_nothing(driver: Driver) -> None:
    sequence = begin(driver, 13)
    assert driver.open(13, sequence.plan, epoch=2).error is None
    driver.send(Open(handle=13, epoch=1, plan_digest=sequence.plan.digest, stop_ids=driver.vocabulary.stop_ids, committed=[]))
    driver.send(Ping(nonce=13))
    driver.expect(Pong, lambda pong: pong.nonce == 13)
    assert not [m for m in driver.log if isinstance(m, Opened) and (m.handle, m.epoch) == (13, 1)]
    driver.end((13, 2))


def test_the_same_number_has_the_same_answer_and_an_older_one_none(driver: Driver) -> None:  # spec R9
    sequence = begin(driver, 20)
    first = sequence.entry()
    answer, rows = driver.step(first)[20]
    again, same_rows = driver.step(first)[20]
    assert again == answer
    assert (rows[0] == same_rows[0]).all()
    sequence.commit(*tokens(driver, b"1"))
    second = sequence.entry()
    assert driver.step(second)[20][0].status == StepStatus.OK
    driver.send(Step(step=501, retired_step=0, entries=[first]))  # older: dropped
    driver.send(Ping(nonce=20))
    driver.expect(Pong, lambda pong: pong.nonce == 20)
    assert not [m for m in driver.log if isinstance(m, StepAnswer) and m.step == 501 and m.entries]
    driver.end((20, 0))


def test_the_same_number_with_other_bytes_is_an_error(driver: Driver) -> None:
    sequence = begin(driver, 21)
    driver.step(sequence.entry())
    sequence.number -= 1
    answer, _ = driver.step(sequence.entry(tokens(driver, b"1")))[21]
    assert answer.status == StepStatus.FAILED
    assert answer.error is not None
    driver.end((21, 0))


def test_a_step_of_an_unknown_session_or_a_newer_epoch_asks_for_it(driver: Driver) -> None:  # spec R11
    sequence = begin(driver, 22)
    unknown, newer = Sequence1(driver, 99, sequence.plan), Sequence1(driver, 22, sequence.plan, epoch=1)
    answers = driver.step(unknown.entry(), newer.entry())
    assert [answers[handle][0].status for handle in (99, 22)] == [StepStatus.RESYNC] * 2
    driver.end((22, 0))


def test_close_ends_a_session_but_not_its_newer_epoch(driver: Driver) -> None:
    sequence = begin(driver, 30)
    driver.end((30, 0))
    assert driver.step(sequence.entry())[30][0].status == StepStatus.RESYNC
    driver.open(30, sequence.plan, epoch=2)
    driver.end((30, 1))
    assert driver.step(Sequence1(driver, 30, sequence.plan, epoch=2).entry())[30][0].status == StepStatus.OK
    driver.end((30, 2))


def test_pong_comes_from_the_loop_that_works(driver: Driver) -> None:
    plan = Plan(
        engine="xgrammar", engine_version=engines.versions()["xgrammar"], guide_kind="ebnf", grammar_kind="ebnf",
        text='root ::= root root root | "a" | ""',
    )  # fmt: skip
    driver.open(40, plan, plan=plan)
    driver.log.clear()
    driver.send(Open(
        handle=41, epoch=0, plan_digest=plan.digest, stop_ids=driver.vocabulary.stop_ids, committed=tokens(driver, b"a") * 120,
    ))  # fmt: skip
    driver.send(Ping(nonce=40))
    pong = driver.expect(Pong, lambda pong: pong.nonce == 40)[0]
    kinds = [type(message) for message in driver.log]
    assert kinds.index(Opened) < kinds.index(Pong)  # no sooner than the slow replay before it was done
    assert pong.sessions == 2
    driver.end((40, 0), (41, 0))


def test_a_new_connection_starts_empty() -> None:  # spec R11
    with Driver(tiny()) as first, ServiceProcess(first.address, "--drain-s", "0"):
        first.wait_ready()
        sequence = begin(first, 1)
        first.close()
        with Driver(tiny(), first.address) as second:
            assert second.wait_ready().error is None
            assert second.step(Sequence1(second, 1, sequence.plan).entry())[1][0].status == StepStatus.RESYNC
            assert second.open(1, sequence.plan).error is None  # the grammar is still compiled


def test_sigterm_is_told_and_the_sessions_are_served_until_they_are_gone() -> None:
    with Driver(tiny()) as driver, ServiceProcess(driver.address, "--drain-s", "60") as service:
        driver.wait_ready()
        sequence = begin(driver, 1)
        service.process.send_signal(signal.SIGTERM)
        driver.expect(Drain)
        assert driver.step(sequence.entry())[1][0].status == StepStatus.OK
        assert service.process.poll() is None
        driver.send(Close(sessions=[(1, 0)]))
        assert service.process.wait(timeout=20) == 0


def test_what_does_not_move_is_left_when_the_time_is_over() -> None:
    with Driver(tiny()) as driver, ServiceProcess(driver.address, "--drain-s", "0.5") as service:
        driver.wait_ready()
        begin(driver, 1)
        started_s = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        driver.expect(Drain)
        assert service.process.wait(timeout=20) == 0
        assert time.monotonic() - started_s >= 0.5
