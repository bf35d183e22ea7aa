"""The router's part for sessions: what the worker asks, which answers count, what a death or a silence leads to."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_worker.grammar_link.answers import is_plain, misfit, stale
from gpu_worker.grammar_link.compiling import poisoned
from gpu_worker.grammar_link.dispatch import Dispatcher
from gpu_worker.grammar_link.events import (
    Action,
    Count,
    Deliver,
    ForkSession,
    OpenSession,
    Redeliver,
    SessionFailed,
    SubmitStep,
    WritePool,
)  # fmt: skip
from gpu_worker.grammar_link.plans import PlanBook
from gpu_worker.grammar_link.quarantine import Quarantine
from gpu_worker.grammar_link.services import Service, Services
from gpu_worker.grammar_link.sessions import Session, new_session
from gpu_worker.grammar_link.settings import LinkSettings
from gpu_worker.grammar_link.walks import SessionId, Walk
from shared.errors import AccountingError, MaskstreamError, Overloaded, UnsupportedSchema, WorkerLost
from shared.protocol import Opened, StepAnswer, StepAnswerEntry, StepStatus


class SessionDesk:
    """Decides on sessions; writes to the router's list of actions."""

    def __init__(
        self, settings: LinkSettings, vocab_size: int, services: Services, lane: Quarantine, plans: PlanBook, actions: list[Action]
    ) -> None:
        self._settings, self._vocab_size = settings, vocab_size
        self._services, self._lane, self._plans, self._actions = services, lane, plans, actions
        self.dispatcher = Dispatcher(settings, services, lane, actions)
        self.by_id, self.unanswered = self.dispatcher.by_id, self.dispatcher.unanswered

    # ---- what the worker asks ------------------------------------------------------------------------------------------------

    def open(self, event: OpenSession | ForkSession) -> None:
        """Opens a session, on a service at once if there is one. Whatever fails is said by SessionFailed."""
        session = self._made(event)
        if session is None:
            self._actions.append(SessionFailed(event.session, AccountingError("a fork of a session that does not exist")))
            return
        error = self._refusal(session)
        if error is not None:
            self._actions.append(SessionFailed(event.session, error))
            return
        self.by_id[session.session] = session
        self.dispatcher.place(session)

    def _refusal(self, session: Session) -> MaskstreamError | None:
        if session.session in self.by_id:
            return AccountingError("a session of this number is open")
        if self._settings.no_service == "refuse" and not self._services.usable():
            return Overloaded("no grammar service is connected")
        if not session.committed and self._services.usable() and not self._services.usable(session.plan):
            self._plans.forget(session.guide_key)  # whoever made it is gone: the next request gets a plan that is offered
            plan = session.plan
            return UnsupportedSchema(f"no grammar service offers {plan.engine} {plan.engine_version}", field="engine")
        return self._plans.failure(session.guide_key, self.dispatcher.now_s)

    def _made(self, event: OpenSession | ForkSession) -> Session | None:
        if isinstance(event, OpenSession):
            return new_session(event.session, event.guide_key, event.plan, event.stop_ids, list(event.committed))
        parent = self.by_id.get(event.parent)
        if parent is None or not 0 <= event.length <= len(parent.committed):
            return None
        committed = parent.committed[: event.length]
        return new_session(event.session, parent.guide_key, parent.plan, parent.stop_ids, committed, parent.session)

    def close(self, session_id: SessionId) -> None:
        session = self.by_id.pop(session_id, None)
        if session is None:
            return
        self.unanswered.pop(session_id, None)
        self._lane.discard(session_id)
        self.dispatcher.leave(session, "closed")
        self.dispatcher.test_next()

    def submit(self, event: SubmitStep) -> None:
        self.dispatcher.step, self.dispatcher.retired_step = event.step, event.retired_step
        for walk in event.walks:
            session = self.by_id.get(walk.session)
            if session is None:
                self._actions.append(SessionFailed(walk.session, AccountingError("a step of a session that is not open")))
            elif not session.is_retry(walk):
                self._begin(session, walk)
            elif not session.unanswered:
                self._actions.append(Redeliver(walk.session))

    def _begin(self, session: Session, walk: Walk) -> None:
        if session.unanswered:
            self.dispatcher.unsend(session)
        session.begin(walk, self.dispatcher.now_s, self._settings.replay_after_s)
        self.unanswered[session.session] = None
        service = self._services.get(session.peer)
        if service is None or service.draining or session.suspect:
            if service is not None and service.draining:
                self.dispatcher.move_off(session, service)
            self.dispatcher.dispatch(session)
        else:
            service.due[session.session] = None

    # ---- what services say ---------------------------------------------------------------------------------------------------

    def opened(self, service: Service, message: Opened) -> None:
        session = self.by_id.get(message.handle)
        if session is None or session.peer != service.peer or session.epoch != message.epoch:
            return
        if message.error is None:
            session.opened = True
        elif message.error.code == "unknown_plan":
            service.plans.discard(session.plan_digest)
            self._retry_wrong(session, "unknown_plan")
        else:
            self._fail(session, message.error.exception())

    def answered(self, service: Service, answer: StepAnswer, frame_bytes: tuple[int, ...]) -> None:
        for write in answer.writes:  # also where the entries are refused
            if service.partition is not None and service.partition.write(write, frame_bytes, self._vocab_size):
                self._actions.append(WritePool(write))
            else:
                self._actions.append(Count("rejected", "pool_write"))
        by_id, size, peer, partition = self.by_id, self._vocab_size, service.peer, service.partition
        for entry in answer.entries:
            session = by_id.get(entry.handle)
            if session is not None and is_plain(session, peer, entry, size, partition):
                self._accept(service, session, entry)
                continue
            reason = stale(session, service.peer, entry)
            if reason or session is None:
                self._actions.append(Count("rejected", reason))
            elif entry.status == StepStatus.RESYNC:
                self._retry_wrong(session, "resync")
            elif reason := misfit(session, entry, frame_bytes, self._vocab_size, service.partition):
                service.pool_lost |= reason == "pool"
                self._actions.append(Count("rejected", reason))
                self._retry_wrong(session, "mismatch")
            else:
                self._accept(service, session, entry)

    def _accept(self, service: Service, session: Session, entry: StepAnswerEntry) -> None:
        pending = session.pending
        if pending is not None and pending.message_number is not None:
            service.settle(pending.message_number, session.session)
            pending.message_number = None
        else:
            service.due.pop(session.session, None)
        session.answer()
        self.unanswered.pop(session.session, None)
        self._actions.append(Deliver(session.session, entry, session.stop_set, service.name))
        if session.suspect:
            self._clear(session)
        if service.draining:
            self.dispatcher.move_off(session, service)

    def _clear(self, session: Session) -> None:
        """An answer speaks for a suspect."""
        session.suspect = False
        self._lane.discard(session.session)
        self._lane.clear(session.guide_key)
        self.dispatcher.test_next()

    def _retry_wrong(self, session: Session, reason: str) -> None:
        """The service could not or did not answer the walk: open again, a few times."""
        session.replays += 1
        if session.replays > 1 or reason == "mismatch":
            self._avoid(session)
        if session.replays > self._settings.max_replays:
            self._fail(session, AccountingError(f"worker and grammar service disagree on a session ({reason})"))
        elif session.unanswered:
            self.dispatcher.replay(session, reason)
        else:
            self.dispatcher.leave(session, reason)

    def _avoid(self, session: Session) -> None:
        if session.peer is not None:
            session.tried.add(session.peer)

    def _fail(self, session: Session, error: MaskstreamError) -> None:
        """Ends one session with an error; nothing else is touched."""
        self.close(session.session)
        self._actions.append(SessionFailed(session.session, error))

    # ---- death, silence, drain -----------------------------------------------------------------------------------------------

    def lost(self, service: Service, compiled_keys: Iterable[str], guilty: bool, unsent: frozenset[SessionId]) -> list[str]:
        """A connection is over; what is ``unsent`` cannot have caused it. Gives the guide keys that fail by it."""
        sessions = [self.by_id[session_id] for session_id in sorted(service.sessions)]
        suspects = [s for s in sessions if (s.unanswered or not s.opened) and s.session not in unsent] if guilty else []
        tested = [session.guide_key for session in suspects if session.session == self._lane.under_test]
        keys = tested or [*(s.guide_key for s in suspects), *compiled_keys, *service.abandoned]
        for session in sessions:
            self._lane.discard(session.session)
            session.leave("death")
        for session in suspects:
            session.suspect = True
        alone = bool(tested) or (not suspects and len(set(keys)) == 1)
        failed = self._lane.strike(keys, self.dispatcher.now_s, alone=alone) if guilty else []
        for session in [session for session in self.by_id.values() if session.guide_key in failed]:
            self._fail(session, poisoned())
        for session in sessions:
            if session.unanswered and session.session in self.by_id:
                self.dispatcher.dispatch(session)
        return failed

    def drain(self, service: Service) -> None:
        for session_id in sorted(service.sessions):
            session = self.by_id[session_id]
            if not session.unanswered:
                self.dispatcher.move_off(session, service)

    def expire(self) -> None:
        """Walks out of patience are replayed elsewhere; texts that nobody can continue end with a name."""
        for session_id in list(self.unanswered):
            session = self.by_id.get(session_id)
            if session is None or session.pending is None:
                continue
            if session.orphan_since_s is not None:
                self._expire_orphan(session, session.orphan_since_s)
            elif session.peer is not None and self.dispatcher.now_s - session.pending.since_s >= session.pending.patience_s:
                self._run_out(session)

    def _expire_orphan(self, session: Session, since_s: float) -> None:
        if self.dispatcher.now_s - since_s < self._settings.orphan_after_s or self._services.usable(session.plan):
            return
        if self._services.usable() or self._settings.no_service == "refuse":
            plan = session.plan
            self._fail(session, WorkerLost(f"no grammar service offers {plan.engine} {plan.engine_version}, which this text needs"))

    def _run_out(self, session: Session) -> None:
        """Patience doubles, so that a service that is only slow is not asked for ever faster."""
        service, pending = self._services.get(session.peer), session.pending
        if service is None or pending is None:
            return
        pending.patience_s = max(2 * pending.patience_s, self._settings.dead_after_s)
        if service.heard_s < pending.since_s:
            service.abandoned.add(session.guide_key)
            session.suspect = True
        self._avoid(session)
        self.dispatcher.replay(session, "late")
