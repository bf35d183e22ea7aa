"""A world around the pure router: services that keep their own books, a clock that moves when told, and what the worker knows.

It carries out the router's actions and checks each: an answer is delivered once a walk and only if its digest is right; a service
that did nothing wrong is never sent what it cannot follow.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gpu_worker.grammar_link import events
from gpu_worker.grammar_link.pump import _with_what_follows
from gpu_worker.grammar_link.router import Router
from gpu_worker.grammar_link.settings import LinkSettings, VocabularyInfo
from gpu_worker.grammar_link.walks import Walk
from shared.digest import chain, of_walk
from shared.errors import MaskstreamError
from shared.guide import key_of, make_guide
from shared.protocol import (
    Close,
    Compile,
    Compiled,
    Hello,
    HelloAgain,
    Open,
    Opened,
    Plan,
    Ready,
    Step,
    StepAnswer,
    StepAnswerEntry,
    StepEntry,
    StepStatus,
    WireError,
    WireRow,
)

VOCAB_SIZE = 64
INFO = VocabularyInfo(fingerprint="f" * 32, vocab_size=VOCAB_SIZE, num_bytes=10, num_chunks=1)
ALL_ROW = WireRow(0)


def plan_of(guide: int) -> Plan:
    return Plan(engine="toy", engine_version="1", guide_kind="regex", grammar_kind="toy", text=str(guide))


def guide_of(guide: int):
    return make_guide("regex", str(guide))


@dataclass
class Held:
    """A session as a service has it."""

    epoch: int
    plan: Plan
    history: list[int]


@dataclass
class FakeService:
    """``inbox`` are messages not worked on yet, ``outbox`` answers not sent yet: both may wait as long as the test likes."""

    peer: bytes
    instance: str
    credit: int
    engines: dict[str, str]
    inbox: deque = field(default_factory=deque)
    outbox: deque = field(default_factory=deque)
    held: dict[int, Held] = field(default_factory=dict)
    plans: dict[bytes, Plan] = field(default_factory=dict)
    num_resyncs: int = 0
    num_forgotten: int = 0

    def work(self) -> None:
        """Takes one message and makes its answer."""
        message = self.inbox.popleft()
        if isinstance(message, Open):
            self._open(message)
        elif isinstance(message, Step):
            self.outbox.append((StepAnswer(step=message.step, entries=[self._walk(entry) for entry in message.entries]), ()))
        elif isinstance(message, Close):
            for handle, epoch in message.sessions:
                if handle in self.held and self.held[handle].epoch == epoch:
                    del self.held[handle]
        elif isinstance(message, Compile):
            plan = plan_of(int(message.guide.text))
            self.plans[plan.digest] = plan
            self.outbox.append((Compiled(key=message.key, plan=plan), ()))
        elif isinstance(message, HelloAgain):
            self.outbox.append((self.hello(), ()))

    def hello(self) -> Hello:
        return Hello(service=self.instance, instance=self.instance, engines=self.engines, max_outstanding_steps=self.credit)

    def forget_plans(self) -> None:
        self.plans.clear()
        self.num_forgotten += 1

    def _open(self, message: Open) -> None:
        plan = message.plan or self.plans.get(message.plan_digest)
        error = None if plan else WireError(code="unknown_plan", message="?")
        if plan is not None:
            self.plans[plan.digest] = plan
            self.held[message.handle] = Held(message.epoch, plan, list(message.committed))
        self.outbox.append((Opened(handle=message.handle, epoch=message.epoch, error=error), ()))

    def _walk(self, entry: StepEntry) -> StepAnswerEntry:
        held = self.held.get(entry.handle)
        if held is None or held.epoch != entry.epoch:
            self.num_resyncs += 1
            assert self.num_forgotten, "a walk was sent to a service that was not asked to open its session"
            return StepAnswerEntry(entry.handle, entry.epoch, entry.sequence_number, b"", StepStatus.RESYNC, 0, 0, [])
        history = held.history[: entry.base_length - len(entry.committed)] + list(entry.committed)
        digest = chain(held.plan.digest, history)[-1]
        assert (len(history), digest) == (entry.base_length, entry.prefix_digest), "the service was sent what it cannot follow"
        held.history = history + list(entry.path)
        rows = [ALL_ROW] * max(1, len(entry.path))
        walk = of_walk(digest, entry.path, entry.parents)
        return StepAnswerEntry(
            entry.handle, entry.epoch, entry.sequence_number, walk, StepStatus.OK, len(entry.path), len(rows), rows
        )


@dataclass
class Known:
    """A session as the worker knows it. ``state``: idle, waiting (a walk is out), delivered, failed."""

    guide: int
    committed: list[int]
    walk: Walk | None = None
    state: str = "idle"
    error: MaskstreamError | None = None


class World:
    """Router, services, worker. ``validate`` runs after every event."""

    def __init__(self, settings: LinkSettings | None = None) -> None:
        self.settings = settings or LinkSettings(plan_cache_entries=3)
        self.router = Router(self.settings, INFO)
        self.now_s = 0.0
        self.services: dict[bytes, FakeService] = {}
        self.dead: set[bytes] = set()
        self.known: dict[int, Known] = {}
        self.compiles: dict[int, list[object]] = {}
        self.sent_before: list[events.Received] = []
        self._numbers = 0
        self.num_delivered = 0

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def tell(self, event: events.Event) -> None:
        waiting = deque([event])
        while waiting:
            actions = deque(self.router.handle(waiting.popleft(), self.now_s))
            self.router.validate()
            while actions:
                failed = self._act(actions.popleft())
                if failed is not None:
                    failed, actions = _with_what_follows(failed, actions)
                    waiting.append(failed)

    def _act(self, action: events.Action) -> events.SendFailed | None:
        if isinstance(action, events.Send):
            if action.peer not in self.services:
                return events.SendFailed(action.peer, "gone", (action.message,))
            self.services[action.peer].inbox.append(action.message)
        elif isinstance(action, events.Deliver):
            self._delivered(action)
        elif isinstance(action, events.Redeliver):
            assert self.known[action.session].state == "delivered"
        elif isinstance(action, events.SessionFailed):
            known = self.known[action.session]
            known.state, known.error = "failed", action.error
        elif isinstance(action, events.CompileEnded):
            assert (action.compiled is None) != (action.error is None)
            self.compiles[action.waiter].append(action.compiled or action.error)
        return None

    def _delivered(self, action: events.Deliver) -> None:
        known = self.known[action.session]
        assert known.state == "waiting" and known.walk is not None, "delivered twice, or never asked for"
        prefix = chain(plan_of(known.guide).digest, known.committed)[-1]
        assert action.entry.digest == of_walk(prefix, known.walk.path, known.walk.parents)
        known.state = "delivered"
        self.num_delivered += 1

    # ---- services ------------------------------------------------------------------------------------------------------------

    def start_service(self, *, instance: str = "", credit: int = 2, engines: dict[str, str] | None = None) -> bytes:
        peer = b"peer%d" % self.number()
        service = FakeService(peer, instance or peer.decode(), credit, engines or {"toy": "1"})
        self.services[peer] = service
        self.tell(events.Received(peer, service.hello()))
        self.tell(events.Received(peer, Ready(fingerprint=INFO.fingerprint)))
        return peer

    def kill(self, peer: bytes) -> None:
        """Noticed when something is sent next, as with a real socket."""
        del self.services[peer]
        self.dead.add(peer)

    def work(self, peer: bytes) -> None:
        self.services[peer].work()

    def speak(self, peer: bytes) -> None:
        message, sizes = self.services[peer].outbox.popleft()
        event = events.Received(peer, message, sizes)
        if isinstance(message, StepAnswer | Compiled | Opened):
            self.sent_before.append(event)
        was_hello = isinstance(message, Hello)
        self.tell(event)
        if was_hello:
            self.tell(events.Received(peer, Ready(fingerprint=INFO.fingerprint)))

    # ---- worker --------------------------------------------------------------------------------------------------------------

    def open(self, guide: int, committed: list[int]) -> int:
        session = self.number()
        self.known[session] = Known(guide, list(committed))
        self.tell(events.OpenSession(session, key_of(guide_of(guide)), plan_of(guide), (1,), tuple(committed)))
        return session

    def fork(self, parent: int, length: int) -> int:
        session, source = self.number(), self.known[parent]
        self.known[session] = Known(source.guide, source.committed[:length])
        self.tell(events.ForkSession(session, parent, length))
        return session

    def submit(self, walks: list[Walk]) -> None:
        for walk in walks:
            known = self.known[walk.session]
            if known.state == "failed":
                continue
            known.committed += walk.committed
            known.walk, known.state = walk, "waiting"
        self.tell(events.SubmitStep(self.number(), 0, walks))

    def retry(self, session: int) -> None:
        walk = self.known[session].walk
        assert walk is not None
        self.tell(events.SubmitStep(self.number(), 0, [walk._replace(committed=())]))

    def close(self, session: int) -> None:
        self.tell(events.CloseSession(session))
        del self.known[session]

    def compile(self, guide: int, deadline_s: float = 5.0) -> int:
        waiter = self.number()
        self.compiles[waiter] = []
        asked = guide_of(guide)
        self.tell(events.AskCompile(waiter, key_of(asked), asked, "", deadline_s))
        return waiter

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.tell(events.Tick())

    def settle(self, rounds: int = 400) -> None:
        """Every living service works and speaks; time passes slowly."""
        for _ in range(rounds):
            for peer in list(self.services):
                while peer in self.services and self.services[peer].inbox:
                    self.work(peer)
                while peer in self.services and self.services[peer].outbox:
                    self.speak(peer)
            self.pass_time(0.05)
            if not any(known.state == "waiting" for known in self.known.values()) and all(self.compiles.values()):
                return
