"""Registry of grammar services: who said Hello, who is ready, who is silent, what each still owes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpu_worker.grammar_link.events import Peer
from gpu_worker.grammar_link.partitions import Partition
from gpu_worker.grammar_link.settings import LinkSettings
from gpu_worker.grammar_link.walks import SessionId
from shared.protocol import Hello, Plan

MAX_KNOWN_PLANS = 4096
MAX_STRANGERS = 1024
STRANGER_BACKOFF_S = 0.1
STRANGER_BACKOFF_MAX_S = 5.0


@dataclass(slots=True)
class Service:
    """One connection of a grammar service. ``due`` waits for credit; ``outstanding`` maps a sent Step to what of it is unanswered;
    ``abandoned`` are the guides of sessions that were taken away since it fell silent; ``pool_lost``: it refers to rows that
    are not in its ``partition`` of the pool."""

    peer: Peer
    name: str
    instance: str
    engines: dict[str, str]
    credit: int
    heard_s: float
    pinged_s: float
    ready: bool = False
    draining: bool = False
    plans: set[bytes] = field(default_factory=set)
    sessions: set[SessionId] = field(default_factory=set)
    due: dict[SessionId, None] = field(default_factory=dict)
    outstanding: dict[int, set[SessionId]] = field(default_factory=dict)
    abandoned: set[str] = field(default_factory=set)
    partition: Partition | None = None
    pool_lost: bool = False

    def offers(self, plan: Plan) -> bool:
        """Exactly the engine and version that the plan is pinned to."""
        return self.engines.get(plan.engine) == plan.engine_version

    def learn(self, plan_digest: bytes) -> None:
        if len(self.plans) >= MAX_KNOWN_PLANS:
            self.plans.clear()  # the service answers unknown_plan where it matters
        self.plans.add(plan_digest)

    def owes(self) -> bool:
        return bool(self.outstanding)

    def settle(self, message_number: int, session: SessionId) -> None:
        """One entry of a Step is answered or no longer wanted; the last one gives the credit back."""
        waiting = self.outstanding.get(message_number)
        if waiting is not None:
            waiting.discard(session)
            if not waiting:
                del self.outstanding[message_number]


class Services:
    """All connections that said Hello, and the back-off towards those that did not."""

    def __init__(self, settings: LinkSettings) -> None:
        self._settings = settings
        self._by_peer: dict[Peer, Service] = {}
        self._strangers: dict[Peer, tuple[float, float]] = {}

    def __iter__(self) -> Iterator[Service]:
        return iter(list(self._by_peer.values()))

    def get(self, peer: Peer | None) -> Service | None:
        return None if peer is None else self._by_peer.get(peer)

    def is_full(self) -> bool:
        return len(self._by_peer) >= self._settings.max_services

    def of_instance(self, instance: str) -> Service | None:
        return next((service for service in self._by_peer.values() if service.instance == instance), None)

    def add(self, peer: Peer, hello: Hello, now_s: float) -> Service:
        self._strangers.pop(peer, None)
        service = Service(peer, hello.service, hello.instance, dict(hello.engines), hello.max_outstanding_steps, now_s, now_s)
        self._by_peer[peer] = service
        return service

    def remove(self, peer: Peer) -> Service:
        return self._by_peer.pop(peer)

    def usable(self, plan: Plan | None = None) -> list[Service]:
        """Ready services that offer ``plan``; one that is suddenly silent, then one that drains, only where there is no other."""
        ready = [s for s in self._by_peer.values() if s.ready and (plan is None or s.offers(plan))]
        staying = [s for s in ready if not s.draining] or ready
        return [s for s in staying if not s.abandoned] or staying

    def heard(self, service: Service, now_s: float) -> None:
        """Any message counts as a sign of life."""
        service.heard_s = now_s
        service.abandoned.clear()

    def silent(self, now_s: float) -> list[Service]:
        return [s for s in self if now_s - s.heard_s >= self._patience_s(s)]

    def _patience_s(self, service: Service) -> float:
        """One that is not ready works on the vocabulary, is silent meanwhile, and holds nothing."""
        return self._settings.dead_after_s if service.ready else self._settings.start_after_s

    def to_ping(self, now_s: float) -> list[Service]:
        """Services silent for an interval since their last sign of life and the last ping."""
        return [s for s in self if now_s - max(s.heard_s, s.pinged_s) >= self._interval(s)]

    def _interval(self, service: Service) -> float:
        return self._settings.probe_interval_s if service.owes() else self._settings.ping_interval_s

    def may_answer_stranger(self, peer: Peer, now_s: float) -> bool:
        """Whether hello_again is due to an unknown routing id: waits double from 0.1 s to 5 s."""
        due_s, wait_s = self._strangers.pop(peer, (now_s, STRANGER_BACKOFF_S))
        if len(self._strangers) >= MAX_STRANGERS:
            self._strangers.pop(next(iter(self._strangers)))
        if now_s < due_s:
            self._strangers[peer] = (due_s, wait_s)
            return False
        self._strangers[peer] = (now_s + wait_s, min(2 * wait_s, STRANGER_BACKOFF_MAX_S))
        return True
