"""The thread that owns the link's socket and its router: receive, decide, act. Others post to its inbox and ring its bell."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

import zmq

from gpu_worker import ranges
from gpu_worker.grammar_link.deliveries import Deliveries
from gpu_worker.grammar_link.events import (
    Action,
    AskCompile,
    CloseSession,
    CompileEnded,
    Count,
    Deliver,
    Event,
    PeerChanged,
    Received,
    Redeliver,
    Send,
    SendChunk,
    SendFailed,
    SessionFailed,
    Tick,
    WritePool,
)
from gpu_worker.grammar_link.router import Router
from gpu_worker.grammar_link.row_pool import RowPool
from gpu_worker.grammar_link.ticket import StepTicket
from shared import log, metrics, protocol
from shared.clock import Clock
from shared.errors import BadRequest, MaskstreamError, WorkerLost
from shared.protocol import StepAnswer, VocabularyChunk, WorkerMessage

TICK_S = 0.02
VALIDATE_EVERY_S = 5.0
MAX_MESSAGES_A_TURN = 64

Attachment = Future | StepTicket | None  # type: ignore[type-arg]


class Pump(threading.Thread):
    """``post`` and ``stop`` may be called from any thread; everything else happens on this one."""

    def __init__(self, socket: zmq.Socket[bytes], router: Router, chunks: Sequence[bytes], clock: Clock) -> None:
        super().__init__(name="grammar-link", daemon=True)
        self._socket, self._router, self._chunks, self._clock = socket, router, chunks, clock
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._inbox: deque[tuple[Event, Attachment]] = deque()
        self._deliveries = Deliveries(RowPool(router.settings.num_pool_rows, router.vocabulary.vocab_size))
        self._log = log.get("grammar_link")
        self._stopping = False
        self._tick_due_s = self._validate_due_s = 0.0
        self.service_names: tuple[str, ...] = ()

    def post(self, event: Event, attachment: Attachment = None) -> None:
        """Hands an event over. Raises WorkerLost where the link is closed."""
        if self._stopping:
            raise WorkerLost("the grammar link is closed")
        self._inbox.append((event, attachment))
        os.eventfd_write(self._bell, 1)

    def stop(self) -> None:
        """Ends the thread and closes the socket; what still waits ends with WorkerLost."""
        self._stopping = True
        os.eventfd_write(self._bell, 1)
        self.join()
        self._deliveries.end_late(self._inbox)
        os.close(self._bell)

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell, zmq.POLLIN)
        try:
            while not self._stopping:
                left_s = max(0.0, self._tick_due_s - self._clock.now_s())
                ready = dict(poller.poll(math.ceil(left_s * 1000)))  # rounded down it would spin for the last millisecond
                if self._bell in ready:
                    os.eventfd_read(self._bell)
                self._take_inbox()
                if self._socket in ready:
                    self._receive()
                self._tick()
        finally:
            self._take_inbox()
            self._deliveries.end(WorkerLost("the grammar link is closed"))
            self._socket.close(0)

    # ---- receive -------------------------------------------------------------------------------------------------------------

    def _take_inbox(self) -> None:
        while self._inbox:
            event, attachment = self._inbox.popleft()
            if isinstance(event, AskCompile) and isinstance(attachment, Future):
                self._deliveries.expect_compile(event.waiter, attachment)
            elif isinstance(attachment, StepTicket):
                self._deliveries.expect_rows(attachment)
            self._handle(event)
            if isinstance(attachment, StepTicket):
                attachment.sent()
            elif isinstance(event, CloseSession):
                self._deliveries.close(event.session)

    def _receive(self) -> None:
        for _ in range(MAX_MESSAGES_A_TURN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            with ranges.of("receive"):
                self._received(frames)

    def _received(self, frames: list[zmq.Frame]) -> None:
        if len(frames) < 2:
            metrics.frame_rejected_total.labels("empty").inc()
            return
        try:
            message = protocol.decode_service(frames[1].buffer)
        except BadRequest as error:
            metrics.frame_rejected_total.labels("decode").inc()
            self._log.warning("frame rejected", error=str(error))
            return
        rows = frames[2:]
        sizes = tuple(len(frame.buffer) for frame in rows)
        if isinstance(message, StepAnswer):
            metrics.mask_bytes_total.inc(len(frames[1].buffer) + sum(sizes))
        self._handle(Received(frames[0].bytes, message, sizes), rows)

    def _tick(self) -> None:
        now_s = self._clock.now_s()
        if now_s < self._tick_due_s:
            return
        self._tick_due_s = now_s + TICK_S
        self._handle(Tick())
        if now_s >= self._validate_due_s and not self._router.sessions.unanswered:
            self._validate_due_s = now_s + VALIDATE_EVERY_S
            try:
                self._router.validate(deep=False)
            except MaskstreamError as error:
                self._log.error("router state", error=str(error))

    # ---- decide and act ------------------------------------------------------------------------------------------------------

    def _handle(self, event: Event, frames: Sequence[zmq.Frame] = ()) -> None:
        try:
            actions = deque(self._router.handle(event, self._clock.now_s()))
            while actions:
                if isinstance(actions[0], Deliver):
                    self._deliveries.deliver(_deliveries_first_in(actions), frames)
                    continue
                failed = self._act(actions.popleft(), frames)
                if failed is not None:
                    failed, actions = _with_what_follows(failed, actions)
                    actions.extend(self._router.handle(failed, self._clock.now_s()))
        except Exception:  # one message may not end the link of all others
            metrics.frame_rejected_total.labels("internal").inc()
            self._log.exception("event failed", kind=type(event).__name__)

    def _act(self, action: Action, frames: Sequence[zmq.Frame]) -> SendFailed | None:
        if isinstance(action, Send):
            return self._send(action.peer, action.message)
        if isinstance(action, SendChunk):
            chunk = VocabularyChunk(
                fingerprint=self._router.vocabulary.fingerprint, chunk=action.chunk, data=self._chunks[action.chunk]
            )
            return self._send(action.peer, chunk)
        if isinstance(action, WritePool):
            self._deliveries.write_pool(action.write, frames)
        elif isinstance(action, Redeliver):
            self._deliveries.redeliver(action.session)
        elif isinstance(action, CompileEnded):
            self._deliveries.compile_ended(action)
        elif isinstance(action, SessionFailed):
            self._deliveries.fail(action.session, action.error)
        elif isinstance(action, PeerChanged):
            self._peer_changed(action)
        elif isinstance(action, Count):
            _count(action)
        return None

    def _send(self, peer: bytes, message: WorkerMessage) -> SendFailed | None:
        try:
            self._socket.send_multipart([peer, protocol.encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            metrics.dropped_total.labels("full").inc()
            return SendFailed(peer, "full", (message,))
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            metrics.dropped_total.labels("gone").inc()
            return SendFailed(peer, "gone", (message,))
        return None

    def _peer_changed(self, change: PeerChanged) -> None:
        self._log.info("grammar service", service=change.service, up=change.up)
        self.service_names = tuple(sorted(service.name for service in self._router.services if service.ready))
        metrics.peer_up.labels(change.service).set(int(change.service in self.service_names))


def _deliveries_first_in(actions: deque[Action]) -> list[Deliver]:
    """The deliveries that come first, taken out."""
    found: list[Deliver] = []
    while actions and isinstance(actions[0], Deliver):
        found.append(actions[0])
        actions.popleft()
    return found


def _with_what_follows(failed: SendFailed, actions: deque[Action]) -> tuple[SendFailed, deque[Action]]:
    """What else was to go to the peer is unsent as well."""
    unsent = [action.message for action in actions if isinstance(action, Send) and action.peer == failed.peer]
    rest = deque(action for action in actions if not (isinstance(action, Send) and action.peer == failed.peer))
    return failed._replace(unsent=(*failed.unsent, *unsent)), rest


def _count(action: Count) -> None:
    if action.what == "replay":
        metrics.session_replays_total.labels(action.label).inc()
    elif action.what == "hello":
        metrics.reconnects_total.inc()
    else:
        metrics.frame_rejected_total.labels(action.label).inc()
