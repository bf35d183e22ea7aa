"""Random events against the pure router: whatever comes, invariants hold, and in the end every walk is answered or named."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gpu_worker.grammar_link import events
from gpu_worker.grammar_link.walks import Walk
from shared.protocol import Drain, Ping, StepAnswer, StepAnswerEntry
from tests.property.router_world import World

TOKENS = st.lists(st.integers(2, 63), max_size=4)


class RouterMachine(RuleBasedStateMachine):  # spec R8, R9
    """Events: hello, crash, silence, reply, late and duplicate replies, forged replies, drain, cancel, time."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.world.start_service()
        self.world.start_service(credit=1)
        self.world.open(0, [])

    def pick(self, data: st.DataObject, things: list) -> object:
        return data.draw(st.sampled_from(sorted(things)))

    # ---- services ------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.services) < 4)
    @rule(credit=st.integers(1, 3))
    def hello(self, credit: int) -> None:
        self.world.start_service(credit=credit)

    @precondition(lambda self: self.world.services)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.world.kill(self.pick(data, list(self.world.services)))

    @precondition(lambda self: self.world.services)
    @rule(data=st.data())
    def reconnect(self, data: st.DataObject) -> None:
        peer = self.pick(data, list(self.world.services))
        instance = self.world.services[peer].instance
        self.world.kill(peer)
        self.world.start_service(instance=instance)

    @precondition(lambda self: any(s.inbox for s in self.world.services.values()))
    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        self.world.work(self.pick(data, [p for p, s in self.world.services.items() if s.inbox]))

    @precondition(lambda self: any(s.outbox for s in self.world.services.values()))
    @rule(data=st.data())
    def reply(self, data: st.DataObject) -> None:
        self.world.speak(self.pick(data, [p for p, s in self.world.services.items() if s.outbox]))

    @precondition(lambda self: self.world.services)
    @rule(data=st.data(), silent_s=st.sampled_from([0.0, 0.0, 0.2]))
    def serve(self, data: st.DataObject, silent_s: float) -> None:
        """One service does all it was asked, and says so."""
        peer = self.pick(data, list(self.world.services))
        while self.world.services[peer].inbox:
            self.world.work(peer)
        self.world.pass_time(silent_s)
        while self.world.services[peer].outbox:
            self.world.speak(peer)

    @precondition(lambda self: self.world.services)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        self.world.tell(events.Received(self.pick(data, list(self.world.services)), Drain()))

    @precondition(lambda self: self.world.services)
    @rule(data=st.data())
    def forget_plans(self, data: st.DataObject) -> None:
        self.world.services[self.pick(data, list(self.world.services))].forget_plans()

    @precondition(lambda self: self.world.sent_before)
    @rule(data=st.data(), delay_s=st.sampled_from([0.0, 1.0]))
    def duplicate(self, data: st.DataObject, delay_s: float) -> None:
        index = data.draw(st.integers(0, len(self.world.sent_before) - 1))
        self.world.pass_time(delay_s)
        self.world.tell(self.world.sent_before[index])

    @precondition(lambda self: any(isinstance(e.message, StepAnswer) for e in self.world.sent_before))
    @rule(data=st.data(), what=st.sampled_from(["digest", "num_advanced", "num_guided", "status", "epoch", "handle"]))
    def forged(self, data: st.DataObject, what: str) -> None:
        """An old answer with one field changed, to the walk of today."""
        old = data.draw(st.sampled_from([e for e in self.world.sent_before if isinstance(e.message, StepAnswer)]))
        entries = [_changed(entry, what) for entry in old.message.entries]
        self.world.tell(events.Received(old.peer, StepAnswer(step=1, entries=entries)))

    @rule()
    def stranger(self) -> None:
        self.world.tell(events.Received(b"stranger", Ping(nonce=1)))

    # ---- worker --------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.known) < 6)
    @rule(guide=st.integers(0, 3), committed=TOKENS)
    def open(self, guide: int, committed: list[int]) -> None:
        self.world.open(guide, committed)

    @precondition(lambda self: self.live() and len(self.world.known) < 6)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = self.pick(data, self.live())
        self.world.fork(parent, data.draw(st.integers(0, len(self.world.known[parent].committed))))

    @precondition(lambda self: self.ready_to_walk())
    @rule(data=st.data(), path=TOKENS, committed=TOKENS)
    def step(self, data: st.DataObject, path: list[int], committed: list[int]) -> None:
        sessions = data.draw(st.lists(st.sampled_from(sorted(self.ready_to_walk())), min_size=1, unique=True))
        fresh = [
            s for s in sessions if self.world.known[s].walk is None or committed or list(self.world.known[s].walk.path) != path
        ]
        if fresh:
            self.world.submit([Walk(session, committed=committed, path=path, accepted=len(committed)) for session in fresh])

    @precondition(lambda self: self.walked())
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        self.world.retry(self.pick(data, self.walked()))

    @precondition(lambda self: self.world.known)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.close(self.pick(data, list(self.world.known)))

    @rule(guide=st.integers(0, 3), deadline_s=st.sampled_from([0.5, 5.0]))
    def compile(self, guide: int, deadline_s: float) -> None:
        self.world.compile(guide, deadline_s)

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.6, 1.1, 3.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    def live(self) -> list[int]:
        return [s for s, known in self.world.known.items() if known.state != "failed"]

    def ready_to_walk(self) -> list[int]:
        return [s for s, known in self.world.known.items() if known.state in ("idle", "delivered")]

    def walked(self) -> list[int]:
        return [s for s, known in self.world.known.items() if known.walk is not None and known.state in ("waiting", "delivered")]

    def teardown(self) -> None:
        """A healthy service at the end: nothing waits any more, every compilation ended once."""
        if not hasattr(self, "world"):
            return
        for peer in list(self.world.services):
            self.world.kill(peer)
        self.world.pass_time(3.0)
        self.world.start_service(credit=2)
        self.world.settle()
        assert all(known.state != "waiting" for known in self.world.known.values())
        assert all(len(ends) == 1 for ends in self.world.compiles.values())
        assert not self.world.router.lane.sessions()


def _changed(entry: StepAnswerEntry, what: str) -> StepAnswerEntry:
    """One field wrong."""
    wrong = {"digest": b"x" * 8, "num_advanced": 200, "num_guided": 9, "status": 77}
    near = {"epoch": entry.epoch + 1, "handle": entry.handle + 1}
    return msgspec.structs.replace(entry, **{what: {**wrong, **near}[what]})


TestRouterMachine = RouterMachine.TestCase
TestRouterMachine.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
