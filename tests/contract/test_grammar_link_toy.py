"""The link over real sockets against a small service with a toy language: rows, holds, deaths, drains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from gpu_worker.grammar_link import GrammarLink, LinkSettings, Outcome, Walk, WalkStatus
from shared.bitmask import num_words, unpack
from shared.errors import BadRequest, MaskstreamError, Overloaded, UnsupportedSchema, WorkerLost
from shared.guide import make_guide
from shared.protocol import Compiled, WireError
from tests.toy_service import STOP, VOCAB_SIZE, ToyService, allowed_after, toy_plan, vocabulary

FAST = LinkSettings(replay_after_s=0.3, dead_after_s=0.8, ping_interval_s=0.1, probe_interval_s=0.05, orphan_after_s=1.0)


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "did not come to pass"
        time.sleep(0.005)


class Bench:
    """A link, its services, and one-session steps."""

    def __init__(self, stack: ExitStack, settings: LinkSettings = FAST) -> None:
        self._stack = stack
        self.link = GrammarLink(settings=settings)
        self.link.start(vocabulary())
        stack.callback(self.link.close)
        self.out = np.zeros((8, num_words(VOCAB_SIZE)), dtype=np.int32)
        self.step_number = 0

    def service(self, name: str, **options: object) -> ToyService:
        service = ToyService(self.link.address, name, **options)  # type: ignore[arg-type]
        service.start()
        self._stack.callback(service.stop)
        wait_until(lambda: name in self.link.service_names)
        return service

    def step(self, session: int, *, timeout_s: float = 5.0, **walk: object) -> Outcome:
        """Submits until the walk no longer holds."""
        until_s = time.monotonic() + timeout_s
        while True:
            self.step_number += 1
            ticket = self.link.submit(self.step_number, [Walk(session, **walk)], self.out)  # type: ignore[arg-type]
            ticket.wait(0.05, for_held=True)
            outcome = ticket.seal()[session]
            walk["committed"] = ()
            if outcome.status is not WalkStatus.HOLD or time.monotonic() > until_s:
                return outcome

    def allowed(self, row: int = 0) -> list[int]:
        return [int(i) for i in np.flatnonzero(unpack(self.out[row], VOCAB_SIZE))]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack)


def text(bench: Bench, session: int, length: int) -> list[int]:
    """Generates with the highest allowed non-stop token; every row is compared with the language."""
    tokens: list[int] = []
    committed: list[int] = []
    path: list[int] = []
    for _ in range(length):
        outcome = bench.step(session, committed=tuple(committed), path=tuple(path), accepted=len(path) if committed else -1)
        assert outcome.status is WalkStatus.OK, outcome
        assert bench.allowed() == allowed_after(tokens, [STOP])
        committed, path = path, [max(i for i in bench.allowed() if i != STOP)]
        tokens += path
    return tokens


def test_text_without_drafts(bench: Bench) -> None:  # spec 15, 30, R9
    bench.service("a")
    compiled = bench.link.compile(make_guide("regex", "x")).result(5)
    assert compiled.plan is not None
    session = bench.link.open(compiled.key, compiled.plan, [STOP])
    assert text(bench, session, 40) == [1 + 2 * i for i in range(40)]
    bench.link.close_session(session)


def test_drafts_and_refused_draft(bench: Bench) -> None:  # spec 24, 36
    bench.service("a")
    session = bench.link.open("k", toy_plan(), [STOP])
    outcome = bench.step(session, path=(1, 2, 9))
    assert (outcome.status, outcome.num_advanced, outcome.num_guided) == (WalkStatus.OK, 2, 2)
    assert [bench.allowed(row) for row in range(3)] == [[2, 3, STOP], [3, 4, STOP], []]
    outcome = bench.step(session, committed=(1, 2), path=(4, STOP), accepted=2)
    assert (outcome.status, outcome.num_advanced, outcome.num_guided) == (WalkStatus.TERMINATED, 2, 1)


def test_refused_golden_token(bench: Bench) -> None:  # spec 32
    bench.service("a")
    session = bench.link.open("k", toy_plan(), [STOP])
    assert bench.step(session, path=(50,)).status is WalkStatus.REFUSED
    assert not bench.out[0].any()


def test_replay_after_death_of_the_service(bench: Bench) -> None:  # spec R9
    services = {name: bench.service(name) for name in ("a", "b")}
    session = bench.link.open("k", toy_plan(), [STOP])
    first = bench.step(session, path=(1,)).service
    services[first].stop()
    outcome = bench.step(session, committed=(1,), path=(3,), accepted=1)
    assert outcome.status is WalkStatus.OK and outcome.service != first
    assert bench.allowed() == [4, 5, STOP]


def test_silent_service_costs_one_wait_and_a_late_answer_counts(bench: Bench) -> None:
    service = bench.service("a")
    session = bench.link.open("k", toy_plan(), [STOP])
    bench.step(session)
    service.silence()
    ticket = bench.link.submit(100, [Walk(session, path=(1,))], bench.out)
    assert not ticket.wait(0.05) and ticket.seal()[session].status is WalkStatus.HOLD
    ticket = bench.link.submit(101, [Walk(session, path=(1,))], bench.out)
    assert ticket.wait(5.0), "a held session is not waited for"
    ticket.seal()
    service.speak()
    steps = service.num_steps
    time.sleep(0.15)
    ticket = bench.link.submit(102, [Walk(session, path=(1,))], bench.out)
    ticket.wait(1.0, for_held=True)
    assert ticket.seal()[session].status is WalkStatus.OK and service.num_steps <= steps + 1
    assert bench.allowed() == [2, 3, STOP]


def test_stopped_service_is_left_and_told_hello_again(bench: Bench) -> None:
    services = {name: bench.service(name) for name in ("a", "b")}
    session = bench.link.open("k", toy_plan(), [STOP])
    first = bench.step(session).service
    services[first].silence()
    outcome = bench.step(session, path=(1,))
    assert outcome.status is WalkStatus.OK and outcome.service != first
    wait_until(lambda: first not in bench.link.service_names)
    services[first].speak()
    wait_until(lambda: first in bench.link.service_names)


def test_drained_service_loses_its_sessions(bench: Bench) -> None:
    services = {name: bench.service(name) for name in ("a", "b")}
    session = bench.link.open("k", toy_plan(), [STOP])
    first = bench.step(session).service
    services[first].drain_event.set()
    wait_until(lambda: not services[first].sessions)
    outcome = bench.step(session, path=(1,))
    assert outcome.status is WalkStatus.OK and outcome.service != first


def test_one_compilation_in_flight_a_key(bench: Bench) -> None:
    service = bench.service("a")
    futures = [bench.link.compile(make_guide("regex", "x")) for _ in range(5)]
    assert len({future.result(5).key for future in futures}) == 1
    assert bench.link.compile(make_guide("regex", "x")).result(5).plan is not None
    assert len(service.compiles) == 1


def test_refusal_reaches_the_caller_with_its_pointer(bench: Bench) -> None:  # spec R1
    service = bench.service("a")
    error = WireError(code="unsupported_schema", message="no", pointer="/a", keyword="not")
    service.on_compile = lambda message: Compiled(key=message.key, error=error)
    with pytest.raises(UnsupportedSchema) as caught:
        bench.link.compile(make_guide("regex", "x")).result(5)
    assert (caught.value.pointer, caught.value.keyword) == ("/a", "not")


def test_no_service_waits_until_one_comes(bench: Bench) -> None:
    future = bench.link.compile(make_guide("regex", "x"), deadline_s=20)
    session = bench.link.open("k", toy_plan(), [STOP])
    assert bench.step(session, timeout_s=0.1).status is WalkStatus.HOLD
    bench.service("a")
    assert future.result(5).plan is not None
    assert bench.step(session).status is WalkStatus.OK


def test_no_service_and_a_deadline(bench: Bench) -> None:
    with pytest.raises(Overloaded):
        bench.link.compile(make_guide("regex", "x"), deadline_s=0.1).result(5)


def test_no_service_refuses_by_configuration() -> None:
    with ExitStack() as stack:
        bench = Bench(stack, LinkSettings(no_service="refuse"))
        with pytest.raises(Overloaded):
            bench.link.compile(make_guide("regex", "x")).result(5)
        outcome = bench.step(bench.link.open("k", toy_plan(), [STOP]))
        assert outcome.status is WalkStatus.FAILED and isinstance(outcome.error, Overloaded)


def test_plan_that_nobody_offers_fails_by_name(bench: Bench) -> None:
    bench.service("old", engines={"toy": "0"})
    outcome = bench.step(bench.link.open("k", toy_plan(), [STOP]))
    assert outcome.status is WalkStatus.FAILED and isinstance(outcome.error, UnsupportedSchema)
    assert (outcome.error.field, "toy 1" in outcome.error.message) == ("engine", True)
    outcome = bench.step(bench.link.open("k", toy_plan(), [STOP], [1]))  # in mid-text somebody may come back
    assert outcome.status is WalkStatus.FAILED and isinstance(outcome.error, WorkerLost)
    assert "toy 1" in outcome.error.message


def test_fork_continues_a_prefix(bench: Bench) -> None:
    bench.service("a")
    parent = bench.link.open("k", toy_plan(), [STOP])
    bench.step(parent, path=(1,))
    bench.step(parent, committed=(1,), path=(2,))
    fork = bench.link.fork(parent, 1)
    assert bench.step(fork, path=(3,)).status is WalkStatus.OK
    assert bench.allowed() == [4, 5, STOP]
    assert bench.step(bench.link.fork(parent, 9)).status is WalkStatus.FAILED


def test_wrong_buffers_are_refused(bench: Bench) -> None:
    session = bench.link.open("k", toy_plan(), [STOP])
    for out in (np.zeros((1, 3), np.int32), np.zeros((1, 4), np.int64), np.zeros((1, 8), np.int32)[:, ::2]):
        with pytest.raises(BadRequest):
            bench.link.submit(1, [Walk(session)], out)
    with pytest.raises(BadRequest):
        bench.link.submit(1, [Walk(session, row=8)], bench.out)
    with pytest.raises(BadRequest):
        bench.link.submit(1, [Walk(session), Walk(session, row=1)], bench.out)


def test_close_ends_what_waits() -> None:
    link = GrammarLink()
    link.start(vocabulary())
    future = link.compile(make_guide("regex", "x"))
    link.close()
    with pytest.raises(WorkerLost):
        future.result(1)
    with pytest.raises(MaskstreamError):
        link.compile(make_guide("regex", "x"))
