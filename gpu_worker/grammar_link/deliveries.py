"""Where answers go: futures of compilations, tickets of steps, the last answer of each session for a retry. Link's thread only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from gpu_worker.grammar_link.events import CompileEnded, Deliver
from gpu_worker.grammar_link.frame import Frame
from gpu_worker.grammar_link.row_pool import RowPool
from gpu_worker.grammar_link.rows import sources
from gpu_worker.grammar_link.ticket import Delivered, StepTicket
from gpu_worker.grammar_link.walks import SessionId
from shared.errors import MaskstreamError, WorkerLost
from shared.protocol import PoolWrite


class Deliveries:
    """Carries out the actions that end at a caller. A failed session keeps its error until it is closed."""

    def __init__(self, pool: RowPool) -> None:
        self._pool = pool
        self._futures: dict[int, Future] = {}  # type: ignore[type-arg]
        self._tickets: dict[SessionId, StepTicket] = {}
        self._kept: dict[SessionId, Delivered] = {}
        self._errors: dict[SessionId, MaskstreamError] = {}

    def expect_compile(self, waiter: int, future: Future) -> None:  # type: ignore[type-arg]
        self._futures[waiter] = future

    def expect_rows(self, ticket: StepTicket) -> None:
        """From now on what comes for its sessions goes to this ticket."""
        for session in ticket.sessions:
            self._tickets[session] = ticket
            if session in self._errors:
                ticket.fail(session, self._errors[session])

    def compile_ended(self, ended: CompileEnded) -> None:
        future = self._futures.pop(ended.waiter, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if ended.error is not None:
            future.set_exception(ended.error)
        else:
            future.set_result(ended.compiled)

    def deliver(self, answers: Sequence[Deliver], frames: Sequence[Frame]) -> None:
        """The answers of one message; each ticket is told once."""
        by_ticket: dict[StepTicket, list[Delivered]] = {}
        for answer in answers:
            delivered = Delivered(answer.entry, sources(answer.entry, frames, self._pool), answer.stop_ids, answer.service)
            self._kept[answer.session] = delivered
            ticket = self._tickets.get(answer.session)
            if ticket is not None:
                by_ticket.setdefault(ticket, []).append(delivered)
        for ticket, delivered_now in by_ticket.items():
            ticket.deliver(delivered_now)

    def write_pool(self, write: PoolWrite, frames: Sequence[Frame]) -> None:
        """A row for answers to come."""
        self._pool.write(write, frames)

    def redeliver(self, session: SessionId) -> None:
        kept, ticket = self._kept.get(session), self._tickets.get(session)
        if kept is not None and ticket is not None:
            ticket.deliver([kept])

    def fail(self, session: SessionId, error: MaskstreamError) -> None:
        error = self._errors.setdefault(session, error)  # the first one is the cause
        ticket = self._tickets.get(session)
        if ticket is not None:
            ticket.fail(session, error)

    def close(self, session: SessionId) -> None:
        for book in (self._tickets, self._kept, self._errors):
            book.pop(session, None)

    def end_late(self, inbox: Iterable[tuple[object, object]]) -> None:
        """What was posted while the link ended."""
        for _, attachment in inbox:
            if isinstance(attachment, Future) and attachment.set_running_or_notify_cancel():
                attachment.set_exception(WorkerLost("the grammar link is closed"))

    def end(self, error: MaskstreamError) -> None:
        """The link is over."""
        for waiter in list(self._futures):
            self.compile_ended(CompileEnded(waiter, None, error))
        for session in list(self._tickets):
            self.fail(session, error)
