"""Long weighted walks of random events, where the state machine test goes wide but short: thousands of answers a seed."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from gpu_worker.grammar_link import events
from gpu_worker.grammar_link.settings import LinkSettings
from gpu_worker.grammar_link.walks import Walk
from shared.protocol import Drain, StepAnswer
from tests.property.router_world import World

EVENTS_A_SEED = 8_000


class RandomWalk:
    """``dice`` decides everything."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.world = World(LinkSettings(plan_cache_entries=3, no_service=self.dice.choice(["wait", "refuse"])))
        self.weights: dict[Callable[[], None], int] = {
            self.serve: 40, self.step: 40, self.work_one: 10, self.speak_one: 10, self.open: 8, self.retry: 8, self.cancel: 3,
            self.compile: 4, self.time: 12, self.start: 4, self.kill: 1, self.reconnect: 1, self.drain: 1, self.duplicate: 4,
            self.forge: 4, self.fork: 3, self.forget_plans: 1,
        }  # fmt: skip

    def run(self) -> None:
        rules, weights = list(self.weights), list(self.weights.values())
        for rule in self.dice.choices(rules, weights, k=EVENTS_A_SEED):
            rule()
        for peer in list(self.world.services):
            self.world.kill(peer)
        self.world.pass_time(3.0)
        self.world.start_service()
        self.world.settle()
        assert all(known.state != "waiting" for known in self.world.known.values())
        assert all(len(ends) == 1 for ends in self.world.compiles.values())

    # ---- services ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if len(self.world.services) < 4:
            self.world.start_service(credit=self.dice.randint(1, 3))

    def serve(self) -> None:
        for peer in list(self.world.services):
            while self.world.services[peer].inbox:
                self.world.work(peer)
            while self.world.services[peer].outbox:
                self.world.speak(peer)

    def _peer(self, condition: Callable[[bytes], object] = lambda peer: True) -> bytes | None:
        peers = sorted(peer for peer in self.world.services if condition(peer))
        return self.dice.choice(peers) if peers else None

    def work_one(self) -> None:
        if peer := self._peer(lambda peer: self.world.services[peer].inbox):
            self.world.work(peer)

    def speak_one(self) -> None:
        if peer := self._peer(lambda peer: self.world.services[peer].outbox):
            self.world.speak(peer)

    def kill(self) -> None:
        if peer := self._peer():
            self.world.kill(peer)

    def reconnect(self) -> None:
        if peer := self._peer():
            instance = self.world.services[peer].instance
            self.world.kill(peer)
            self.world.start_service(instance=instance)

    def drain(self) -> None:
        if peer := self._peer():
            self.world.tell(events.Received(peer, Drain()))

    def forget_plans(self) -> None:
        if peer := self._peer():
            self.world.services[peer].forget_plans()

    def duplicate(self) -> None:
        if self.world.sent_before:
            self.world.tell(self.dice.choice(self.world.sent_before[-50:]))

    def forge(self) -> None:
        old = [event for event in self.world.sent_before[-50:] if isinstance(event.message, StepAnswer)]
        if not old:
            return
        event = self.dice.choice(old)
        session = self._session("waiting", "delivered") or 1
        router_session = self.world.router.sessions.by_id.get(session)
        if router_session is None:
            return
        epoch, number = router_session.epoch, router_session.sequence_number
        forged = [
            msgspec.structs.replace(entry, handle=session, epoch=epoch, sequence_number=number, digest=b"forged!!")
            for entry in event.message.entries
        ]
        peer = router_session.peer or event.peer
        self.world.tell(events.Received(peer, StepAnswer(step=1, entries=forged)))

    # ---- worker --------------------------------------------------------------------------------------------------------------

    def _session(self, *states: str) -> int | None:
        found = sorted(session for session, known in self.world.known.items() if known.state in states)
        return self.dice.choice(found) if found else None

    def _tokens(self, least: int = 0) -> list[int]:
        return [self.dice.randrange(2, 64) for _ in range(self.dice.randint(least, 4))]

    def open(self) -> None:
        if len(self.world.known) < 12:
            self.world.open(self.dice.randrange(4), self._tokens())

    def fork(self) -> None:
        parent = self._session("idle", "delivered", "waiting")
        if parent is not None and len(self.world.known) < 12:
            self.world.fork(parent, self.dice.randint(0, len(self.world.known[parent].committed)))

    def step(self) -> None:
        ready = [session for session, known in self.world.known.items() if known.state in ("idle", "delivered")]
        if ready:
            chosen = self.dice.sample(ready, self.dice.randint(1, len(ready)))
            self.world.submit([Walk(s, committed=self._tokens(1), path=self._tokens(), accepted=1) for s in chosen])

    def retry(self) -> None:
        session = self._session("waiting", "delivered")
        if session is not None:
            self.world.retry(session)

    def cancel(self) -> None:
        session = self._session("idle", "waiting", "delivered", "failed")
        if session is not None:
            self.world.close(session)

    def compile(self) -> None:
        self.world.compile(self.dice.randrange(4), self.dice.choice([0.5, 5.0]))

    def time(self) -> None:
        self.world.pass_time(self.dice.choice([0.01, 0.01, 0.1, 0.1, 0.6, 1.1, 3.0]))


@pytest.mark.parametrize("seed", range(6))
def test_random_walk(seed: int) -> None:  # spec R8, R9
    walk = RandomWalk(seed)
    walk.run()
    assert walk.world.num_delivered > 200
