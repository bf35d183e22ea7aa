"""Gets walks to services: placement, epochs, the lane of suspects, credit, and the Steps that carry what is due."""

from __future__ import annotations

from gpu_worker.grammar_link.events import Action, Count, Send
from gpu_worker.grammar_link.placement import choose
from gpu_worker.grammar_link.quarantine import Quarantine
from gpu_worker.grammar_link.services import Service, Services
from gpu_worker.grammar_link.sessions import Session
from gpu_worker.grammar_link.settings import LinkSettings
from gpu_worker.grammar_link.walks import SessionId
from shared.protocol import Close, Open, Step, StepEntry

MAX_STEP_ENTRIES = 1024
MAX_STEP_TOKENS = 1 << 18  # at most 5 bytes each: a Step stays well below the frame limit


class Dispatcher:
    """Holds the open sessions; writes to the router's list of actions. ``unanswered`` are those whose walk waits. ``now_s`` is the
    time of the event being handled."""

    def __init__(self, settings: LinkSettings, services: Services, lane: Quarantine, actions: list[Action]) -> None:
        self._settings, self._services, self._lane, self._actions = settings, services, lane, actions
        self._message_number = 0
        self.now_s = 0.0
        self.step, self.retired_step = 0, 0
        self.by_id: dict[SessionId, Session] = {}
        self.unanswered: dict[SessionId, None] = {}

    def dispatch(self, session: Session) -> None:
        """Sees that the waiting walk gets to a service: now, or when one is there, or when its turn on the lane comes."""
        if session.suspect and self._lane.under_test != session.session:
            self._lane.add(session.session)
            self.test_next()
        elif session.peer is not None or self.place(session):
            self._make_due(session)
        else:
            self._orphan(session)

    def place(self, session: Session) -> bool:
        """Opens the session on a service that offers its plan, in a new epoch; False if there is none. One that failed the current
        walk comes last."""
        candidates = self._services.usable(session.plan)
        if not any(s.peer not in session.tried for s in candidates):
            session.tried.clear()  # another round
        by_instance = {s.instance: s for s in candidates if s.peer not in session.tried}
        chosen = choose(session.guide_key, {i: len(s.sessions) for i, s in by_instance.items()}, self._settings.load_factor)
        if chosen is None:
            return False
        parent = self.by_id.get(session.parent) if session.parent is not None and session.epoch == 0 else None
        beside_parent = next((s for s in candidates if parent is not None and s.peer == parent.peer), None)
        self._open_on(beside_parent or by_instance[chosen], session, parent.session if parent and beside_parent else None)
        return True

    def leave(self, session: Session, reason: str) -> None:
        """Takes the session off its service, which is told so."""
        service = self._services.get(session.peer)
        if service is not None:
            self.unsend(session)
            service.sessions.discard(session.session)
            self._actions.append(Send(service.peer, Close(sessions=[(session.session, session.epoch)])))
        session.leave(reason)

    def unsend(self, session: Session) -> None:
        """The current walk is answered or no longer wanted from its service; its credit comes back."""
        service, pending = self._services.get(session.peer), session.pending
        if service is None or pending is None:
            return
        if pending.message_number is not None:
            service.settle(pending.message_number, session.session)
            pending.message_number = None
        else:
            service.due.pop(session.session, None)

    def replay(self, session: Session, reason: str) -> None:
        """Rebuilds a session with a waiting walk in a new epoch."""
        self._lane.discard(session.session)
        self.leave(session, reason)
        if not session.suspect:
            self.place(session)
        self.dispatch(session)

    def move_off(self, session: Session, service: Service) -> None:
        """Off a service that drains, where another can take the session; it is placed when its next walk comes."""
        if any(other is not service for other in self._services.usable(session.plan)):
            self.leave(session, "drain")

    def place_waiting(self) -> None:
        """Something changed among the services: sessions without a place try again."""
        for session_id in list(self.unanswered):
            session = self.by_id[session_id]
            if session.peer is None and session_id not in self._lane:
                self.dispatch(session)
        self.test_next()

    def test_next(self) -> None:
        """The next suspect, if the lane is free and a service can take it."""
        session_id = self._lane.next()
        if session_id is None:
            return
        session = self.by_id[session_id]
        if self.place(session):
            self._make_due(session)
        else:
            self._lane.put_back()
            for waiting in self._lane.sessions():
                self._orphan(self.by_id[waiting])

    def flush(self) -> None:
        """What is due goes out in as few Steps as the credit allows."""
        for service in self._services:
            while service.due and len(service.outstanding) < service.credit:
                self._send_step(service)

    def _make_due(self, session: Session) -> None:
        service = self._services.get(session.peer)
        if service is not None:
            service.due[session.session] = None

    def _orphan(self, session: Session) -> None:
        if session.orphan_since_s is None:
            session.orphan_since_s = self.now_s

    def _open_on(self, service: Service, session: Session, parent: SessionId | None) -> None:
        if session.epoch > 0:
            self._actions.append(Count("replay", session.left_because))
        session.settle_on(service.peer, self.now_s)
        service.sessions.add(session.session)
        plan = None if session.plan_digest in service.plans else session.plan
        self._actions.append(
            Send(service.peer, Open(
                handle=session.session, epoch=session.epoch, plan_digest=session.plan_digest, plan=plan,
                stop_ids=list(session.stop_ids), committed=list(session.committed), parent=parent,
            ))
        )  # fmt: skip
        service.learn(session.plan_digest)

    def _send_step(self, service: Service) -> None:
        self._message_number += 1
        entries: list[StepEntry] = []
        num_tokens = 0
        while service.due and len(entries) < MAX_STEP_ENTRIES and num_tokens < MAX_STEP_TOKENS:
            session = self.by_id[next(iter(service.due))]
            del service.due[session.session]
            entries.append(session.entry())
            num_tokens += len(entries[-1].committed) + len(entries[-1].path)
            if session.pending is not None:
                session.pending.message_number = self._message_number
        service.outstanding[self._message_number] = {entry.handle for entry in entries}
        self._actions.append(Send(service.peer, Step(step=self.step, retired_step=self.retired_step, entries=entries)))
