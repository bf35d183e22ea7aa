"""The invariants of the router's state, each a sentence when it is broken."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_worker.grammar_link.plans import PlanBook
from gpu_worker.grammar_link.quarantine import Quarantine
from gpu_worker.grammar_link.services import Services
from gpu_worker.grammar_link.session_desk import SessionDesk
from gpu_worker.grammar_link.sessions import Session
from shared.digest import chain, of_walk


def broken(services: Services, desk: SessionDesk, lane: Quarantine, plans: PlanBook, *, deep: bool) -> list[str]:
    """Every broken invariant, in words; empty if all hold."""
    wrong = list(_services(services, desk))
    for session in desk.by_id.values():
        found = [*_session(session, services, desk, lane), *(_digests(session) if deep else ())]
        wrong += [f"session {session.session} {what}" for what in found]
    wrong += _lane(desk, lane)
    wrong += [f"flight {key} is on a service that is gone" for key, flight in plans.flights.items()
              if flight.peer is not None and services.get(flight.peer) is None]  # fmt: skip
    return wrong + plans.validate()


def _services(services: Services, desk: SessionDesk) -> Iterator[str]:
    instances = [service.instance for service in services]
    if len(instances) != len(set(instances)):
        yield "one instance is registered twice"
    for service in services:
        here = {session.session for session in desk.by_id.values() if session.peer == service.peer}
        if here != service.sessions:
            yield f"{service.name} lists sessions {service.sessions} but has {here}"
        if len(service.outstanding) > service.credit:
            yield f"{service.name} was sent more Steps than its credit"
        if service.due and len(service.outstanding) < service.credit:
            yield f"{service.name} has credit and something due"
        for number, waiting in service.outstanding.items():
            if not waiting or waiting - service.sessions:
                yield f"Step {number} of {service.name} waits for {waiting}"


def _session(session: Session, services: Services, desk: SessionDesk, lane: Quarantine) -> Iterator[str]:
    service = services.get(session.peer)
    if session.peer is not None and (service is None or session.epoch == 0):
        yield "is placed on a service that is gone, or in epoch 0"
    if (session.session in desk.unanswered) != session.unanswered:
        yield "is answered and unanswered"
    pending = session.pending
    if pending is None:
        return
    places = [
        service is not None and session.session in service.due,
        service is not None and pending.message_number is not None
        and session.session in service.outstanding.get(pending.message_number, ()),
        session.peer is None and session.session in lane,
        session.peer is None and session.session not in lane and session.orphan_since_s is not None,
    ]  # fmt: skip
    if sum(places) != int(session.unanswered):
        yield f"waits in {sum(places)} places (due, sent, lane, orphan: {places})"


def _digests(session: Session) -> Iterator[str]:
    if chain(session.plan_digest, session.committed)[-1] != session.prefix_digest:
        yield "has a prefix digest of other tokens"
    pending = session.pending
    if pending is not None and of_walk(session.prefix_digest, pending.walk.path, pending.walk.parents) != pending.digest:
        yield "has a walk digest of another walk"


def _lane(desk: SessionDesk, lane: Quarantine) -> Iterator[str]:
    for session_id in lane.sessions():
        session = desk.by_id.get(session_id)
        if session is None or not session.suspect or not session.unanswered:
            yield f"session {session_id} is on the lane without cause"
        elif (session.peer is not None) != (session_id == lane.under_test):
            yield f"session {session_id} is placed out of its turn on the lane"
