"""The link through a proxy that delays, partitions and cuts: texts come out whole, and every row is the right one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zmq

from gpu_worker.grammar_link import WalkStatus
from shared import metrics
from shared.protocol import Pong, encode
from shared.sockets import connect_dealer
from tests.contract.test_grammar_link_toy import FAST, Bench, text, wait_until
from tests.proxy import Proxy
from tests.toy_service import STOP, ToyService, toy_plan

pytestmark = pytest.mark.failure
WANTED = [1 + 2 * i for i in range(30)]


class ProxiedBench(Bench):
    """Every service sits behind a proxy of its own."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack, FAST)
        self.proxies: dict[str, Proxy] = {}

    def service(self, name: str, **options: object) -> ToyService:
        proxy = self.proxies[name] = Proxy(self.link.address)
        self._stack.callback(proxy.stop)
        service = ToyService(proxy.address, name)
        service.start()
        self._stack.callback(service.stop)
        wait_until(lambda: name in self.link.service_names)
        return service


@pytest.fixture
def bench() -> Iterator[ProxiedBench]:
    with ExitStack() as stack:
        yield ProxiedBench(stack)


def test_cut_connections(bench: ProxiedBench) -> None:  # spec R9
    bench.service("a")
    bench.service("b")
    session = bench.link.open("k", toy_plan(), [STOP])
    for _ in range(4):
        assert text_of(bench, session) == WANTED
        for proxy in bench.proxies.values():
            proxy.cut()
        session = bench.link.open("k", toy_plan(), [STOP])


def test_cut_in_mid_text(bench: ProxiedBench) -> None:  # spec R9
    dice = random.Random(3)
    for name in ("a", "b"):
        bench.service(name)
    session = bench.link.open("k", toy_plan(), [STOP])
    assert text_of(bench, session, disturb=lambda step: step % 5 == 4 and dice.choice(list(bench.proxies.values())).cut()) == WANTED


def test_partition_of_the_serving_side(bench: ProxiedBench) -> None:
    for name in ("a", "b"):
        bench.service(name)
    session = bench.link.open("k", toy_plan(), [STOP])
    first = bench.step(session).service
    bench.proxies[first].hold()
    outcome = bench.step(session, path=(1,))
    assert outcome.status is WalkStatus.OK and outcome.service != first
    bench.proxies[first].release()
    outcome = bench.step(session, committed=(1,), path=(2,))
    assert outcome.status is WalkStatus.OK and bench.allowed() == [3, 4, STOP]
    wait_until(lambda: first in bench.link.service_names)


def test_delay_longer_than_the_wait_of_a_step(bench: ProxiedBench) -> None:
    bench.service("a")
    bench.proxies["a"].delay_s = 0.08
    session = bench.link.open("k", toy_plan(), [STOP])
    assert text(bench, session, 8) == WANTED[:8]


def test_only_service_comes_back(bench: ProxiedBench) -> None:
    bench.service("a")
    session = bench.link.open("k", toy_plan(), [STOP])
    bench.step(session, path=(1,))
    proxy = bench.proxies["a"]
    proxy.refuse = True
    proxy.cut()
    assert bench.step(session, committed=(1,), path=(2,), timeout_s=0.5).status is WalkStatus.HOLD
    proxy.refuse = False
    assert bench.step(session, path=(2,), timeout_s=10).status is WalkStatus.OK
    assert bench.allowed() == [3, 4, STOP]


def test_duplicated_answers_are_used_once(bench: ProxiedBench) -> None:
    service = bench.service("a")
    service.copies = 3
    before = rejected("duplicate") + rejected("stale_sequence_number")
    session = bench.link.open("k", toy_plan(), [STOP])
    assert text_of(bench, session) == WANTED
    wait_until(lambda: rejected("duplicate") + rejected("stale_sequence_number") >= before + 2 * (len(WANTED) - 1))


def test_garbage_on_the_socket_harms_nobody(bench: ProxiedBench) -> None:
    bench.service("a")
    session = bench.link.open("k", toy_plan(), [STOP])
    dice, before = random.Random(1), rejected("decode")
    with zmq.Context() as context, connect_dealer(context, bench.link.address) as garbler:
        frames = [b"", b"\xc1", dice.randbytes(100), encode(Pong(nonce=1))[:-1], b"\x91" * 10_000, b"\xdf\xff\xff\xff\xff"]
        for frame in frames:
            garbler.send_multipart([frame, dice.randbytes(50)])
        assert text_of(bench, session) == WANTED
        wait_until(lambda: rejected("decode") >= before + len(frames))
    assert bench.link.service_names == ("a",)


def rejected(reason: str) -> float:
    return metrics.frame_rejected_total.labels(reason)._value.get()


def text_of(bench: ProxiedBench, session: int, disturb=lambda step: None) -> list[int]:
    """A text of 30 tokens, disturbed between its steps."""
    tokens: list[int] = []
    committed: list[int] = []
    path: list[int] = []
    for step in range(len(WANTED)):
        disturb(step)
        outcome = bench.step(session, committed=tuple(committed), path=tuple(path), timeout_s=20)
        assert outcome.status is WalkStatus.OK, outcome
        committed, path = path, [max(i for i in bench.allowed() if i != STOP)]
        tokens += path
    return tokens
