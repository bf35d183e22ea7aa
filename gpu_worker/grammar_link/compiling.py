"""The router's part for compilations: where they go, who waits for them, and when they are given up."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_worker.grammar_link.events import Action, AskCompile, CompileEnded, Count, Send
from gpu_worker.grammar_link.placement import ranking
from gpu_worker.grammar_link.plans import Flight, PlanBook
from gpu_worker.grammar_link.services import Service, Services
from gpu_worker.grammar_link.settings import LinkSettings
from shared.errors import CompileCrashed, CompileTimeout, MaskstreamError, Overloaded
from shared.protocol import Compile, Compiled, WorkerMessage


class CompileDesk:
    """Decides on compilations; writes to the router's list of actions."""

    def __init__(self, settings: LinkSettings, services: Services, plans: PlanBook, actions: list[Action]) -> None:
        self._settings, self._services, self._plans, self._actions = settings, services, plans, actions

    def ask(self, ask: AskCompile, now_s: float) -> None:
        error, compiled = self._plans.failure(ask.key, now_s), self._plans.find(ask.key)
        if error is not None or compiled is not None:
            self._actions.append(CompileEnded(ask.waiter, None if error else compiled, error))
        elif not self._services.usable() and self._settings.no_service == "refuse":
            self._actions.append(CompileEnded(ask.waiter, None, Overloaded("no grammar service is connected")))
        else:
            flight = self._plans.join(ask, now_s)
            if flight is not None:
                self._place(flight, now_s)

    def ended(self, service: Service, compiled: Compiled, now_s: float) -> bool:
        """Whether this is the end of a compilation that was asked for."""
        flight = self._plans.flights.get(compiled.key)
        if flight is None or flight.peer != service.peer or (compiled.plan is None) == (compiled.error is None):
            self._actions.append(Count("rejected", "stale_compiled"))
            return False
        if compiled.plan is not None:
            service.learn(compiled.plan.digest)
        error = compiled.error.exception() if compiled.error else None
        for waiter in self._plans.land(compiled, now_s):
            self._actions.append(CompileEnded(waiter, None if error else compiled, error))
        return True

    def lost(self, service: Service, unsent: Sequence[WorkerMessage]) -> list[str]:
        """A service is gone: what it was compiling waits for another; gives the keys that had reached it."""
        flights = [flight for flight in self._plans.flights.values() if flight.peer == service.peer]
        for flight in flights:
            flight.peer = None
        never_came = {message.key for message in unsent if isinstance(message, Compile)}
        return [flight.key for flight in flights if flight.key not in never_came]

    def poison(self, key: str, now_s: float) -> None:
        """A guide that ended two services: refused from now on."""
        error = poisoned()
        self._plans.forget(key)
        self._plans.remember_failure(key, error, now_s, self._settings.poison_ttl_s)
        flight = self._plans.flights.pop(key, None)
        for waiter in flight.waiters if flight else ():
            self._actions.append(CompileEnded(waiter, None, error))

    def place_waiting(self, now_s: float) -> None:
        for flight in list(self._plans.flights.values()):
            if flight.peer is None:
                self._place(flight, now_s)

    def expire(self, now_s: float) -> None:
        for flight, waiter in self._plans.expired(now_s):
            self._actions.append(CompileEnded(waiter, None, _too_late(flight)))
        for flight in [flight for flight in self._plans.flights.values() if not flight.waiters]:
            del self._plans.flights[flight.key]

    def _place(self, flight: Flight, now_s: float) -> None:
        by_instance = {service.instance: service for service in self._services.usable()}
        if not by_instance:
            return
        service = by_instance[ranking(flight.key, list(by_instance))[0]]
        flight.peer = service.peer
        patience_s = max(0.001, flight.deadline_s() - now_s)
        self._actions.append(
            Send(service.peer, Compile(key=flight.key, guide=flight.guide, client=flight.client, deadline_s=patience_s))
        )


def poisoned() -> CompileCrashed:
    """The named failure of a guide that ended two services."""
    return CompileCrashed("two grammar services ended while they worked on this guide")


def _too_late(flight: Flight) -> MaskstreamError:
    if flight.peer is None:
        return Overloaded("no grammar service came before the deadline")
    return CompileTimeout("the guide was not compiled before the deadline")
