"""Plans by guide key: a bounded cache, one compilation in flight a key, failures forgotten soon."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from gpu_worker.grammar_link.events import AskCompile, Peer
from gpu_worker.grammar_link.settings import LinkSettings
from shared.errors import MaskstreamError
from shared.guide import Guide
from shared.protocol import Compiled

_TRANSIENT = ("overloaded", "deadline", "worker_lost", "cancelled")


@dataclass(slots=True)
class Flight:
    """A compilation on its way. ``waiters`` maps each waiter to its deadline; ``deaths`` counts services lost under it."""

    key: str
    guide: Guide
    client: str
    waiters: dict[int, float] = field(default_factory=dict)
    peer: Peer | None = None

    def deadline_s(self) -> float:
        return max(self.waiters.values(), default=0.0)


class PlanBook:
    """Cache and flights. Pure: says what is known; the router does the sending."""

    def __init__(self, settings: LinkSettings) -> None:
        self._settings = settings
        self._plans: OrderedDict[str, Compiled] = OrderedDict()
        self._bytes = 0
        self._failures: OrderedDict[str, tuple[float, MaskstreamError]] = OrderedDict()
        self.flights: dict[str, Flight] = {}

    @property
    def num_plans(self) -> int:
        return len(self._plans)

    def find(self, key: str) -> Compiled | None:
        compiled = self._plans.get(key)
        if compiled is not None:
            self._plans.move_to_end(key)
        return compiled

    def failure(self, key: str, now_s: float) -> MaskstreamError | None:
        until_s, error = self._failures.get(key, (now_s, None))
        if error is not None and now_s >= until_s:
            del self._failures[key]
            return None
        return error

    def join(self, ask: AskCompile, now_s: float) -> Flight | None:
        """Adds a waiter; the flight if it is a new one that must be sent."""
        flight = self.flights.get(ask.key)
        is_new = flight is None
        if flight is None:
            flight = self.flights[ask.key] = Flight(ask.key, ask.guide, ask.client)
        flight.waiters[ask.waiter] = now_s + ask.deadline_s
        return flight if is_new else None

    def land(self, compiled: Compiled, now_s: float) -> list[int]:
        """The end of a flight: remembers it and gives the waiters."""
        flight = self.flights.pop(compiled.key)
        if compiled.error is not None:
            self.remember_failure(compiled.key, compiled.error.exception(), now_s)
        else:
            self._keep(compiled)
        return list(flight.waiters)

    def remember_failure(self, key: str, error: MaskstreamError, now_s: float, ttl_s: float | None = None) -> None:
        ttl_s = self._settings.failure_ttl_s if ttl_s is None else ttl_s
        if error.code in _TRANSIENT or ttl_s == 0:
            return
        self._failures[key] = (now_s + ttl_s, error)
        self._failures.move_to_end(key)
        while len(self._failures) > self._settings.plan_cache_entries:
            self._failures.popitem(last=False)

    def forget(self, key: str) -> None:
        compiled = self._plans.pop(key, None)
        self._bytes -= _size(compiled) if compiled else 0

    def expired(self, now_s: float) -> list[tuple[Flight, int]]:
        """Waiters whose deadline has passed, taken off their flights."""
        late = [(flight, w) for flight in self.flights.values() for w, until_s in flight.waiters.items() if now_s >= until_s]
        for flight, waiter in late:
            del flight.waiters[waiter]
        return late

    def _keep(self, compiled: Compiled) -> None:
        self.forget(compiled.key)
        self._plans[compiled.key] = compiled
        self._bytes += _size(compiled)
        while len(self._plans) > self._settings.plan_cache_entries or self._bytes > self._settings.plan_cache_bytes:
            self.forget(next(iter(self._plans)))

    def validate(self) -> list[str]:
        """Every broken invariant, in words."""
        wrong = [f"flight {key} holds key {flight.key}" for key, flight in self.flights.items() if key != flight.key]
        wrong += [f"{key} is cached and in flight" for key in self.flights if key in self._plans]
        if self._bytes != sum(map(_size, self._plans.values())):
            wrong.append(f"plan bytes {self._bytes} are not the sum")
        if len(self._plans) > self._settings.plan_cache_entries or self._bytes > self._settings.plan_cache_bytes:
            wrong.append("the plan cache is over its bounds")
        return wrong


def _size(compiled: Compiled) -> int:
    return len(compiled.plan.text) + 512 if compiled.plan else 0
