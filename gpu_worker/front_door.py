"""The front door: clients in, replies out, in one thread that owns the ROUTER socket.

A bad frame is answered to its sender and harms nothing else. A client that cannot be reached, or does not read, loses its requests:
they are cancelled, so that their slots serve others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import zmq

from gpu_worker.clients import Clients
from gpu_worker.config import WorkerSettings
from gpu_worker.request import Model, Request, admit
from shared import log, metrics, protocol, sockets
from shared.clock import Clock
from shared.errors import BadRequest, MaskstreamError
from shared.mailbox import Mailbox
from shared.protocol import Cancel, Delta, Failed, Generate, WireError, WorkerReply

POLL_MS = 500
NOBLOCK, ADDRESS = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
SIGN_OF_LIFE_S = 2.0
"""A client with open requests that was sent nothing for this long gets an unasked HealthReply: one that is gone is noticed so."""
MAX_FRAMES_A_TURN = 64
"""Frames read before replies are sent again, so that a flood does not silence the others."""


class StepLoop(Protocol):
    """What the front door asks of the step loop; both calls return at once."""

    def submit(self, request: Request) -> None: ...

    def cancel(self, client: bytes, request_id: str) -> None: ...


class FrontDoor:
    """``reply`` may be called from any thread; everything else happens in the thread that ``start`` makes."""

    def __init__(
        self, settings: WorkerSettings, model: Model, loop: StepLoop, clock: Clock, health: Callable[[], protocol.HealthReply]
    ) -> None:
        self._settings, self._model, self._loop, self._clock, self._health = settings, model, loop, clock, health
        self._clients = Clients(settings.max_slots + settings.max_waiting, settings.max_requests_per_client)
        self._outbox: Mailbox[tuple[bytes, WorkerReply]] = Mailbox()
        self._log = log.get("front_door")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            bind, insecure = settings.client_bind, settings.insecure
            self._socket = sockets.bind_router(self._context, bind, insecure=insecure, never_stop_input=True)
        except MaskstreamError:
            self._context.term()
            self._outbox.close()
            raise
        self.address = sockets.last_endpoint(self._socket)
        self._looked_s = clock.now_s()
        self._sent_s: dict[bytes, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="front-door", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def reply(self, client: bytes, message: WorkerReply) -> None:
        self._outbox.put((client, message))

    def reply_all(self, replies: Sequence[tuple[bytes, WorkerReply]]) -> None:
        """The replies of a whole step at once."""
        self._outbox.put_all(replies)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Sends what waits, then closes."""
        self._stopping.set()
        self._outbox.wake()
        self._thread.join(timeout=5)
        self._socket.close(1000)
        self._context.term()
        self._outbox.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._outbox.fileno(), zmq.POLLIN)
        while not self._stopping.is_set():
            poller.poll(POLL_MS)
            self._receive_some()
            self._send_all()
            self._show_life()
        self._send_all()

    def _show_life(self) -> None:
        """Sends to whom nothing was sent for a while; what a vanished client had open is cancelled by the failed send."""
        now_s = self._clock.now_s()
        if now_s - self._looked_s < SIGN_OF_LIFE_S / 2:
            return
        self._looked_s = now_s
        for client in self._clients.connections():
            if now_s - self._sent_s.get(client, now_s) >= SIGN_OF_LIFE_S:
                self._send(client, msgspec.structs.replace(self._health(), requests=self._clients.of(client)))
        self._sent_s = {client: self._sent_s.get(client, now_s) for client in self._clients.connections()}

    def _receive_some(self) -> None:
        for _ in range(MAX_FRAMES_A_TURN):
            try:
                client, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._handle(client, frames)

    def _handle(self, client: bytes, frames: list[bytes]) -> None:
        try:
            if len(frames) != 1:
                raise BadRequest(f"a message is one frame, not {len(frames)}")
            message = protocol.decode_client(frames[0])
        except BadRequest as error:
            metrics.frame_rejected_total.labels("decode").inc()
            self._refuse(client, _request_id_in(frames), error)
            return
        if isinstance(message, Generate):
            self._generate(client, message)
        elif isinstance(message, Cancel):
            if self._clients.is_open(client, message.request_id):
                self._loop.cancel(client, message.request_id)
        else:
            reply = msgspec.structs.replace(self._health(), requests=self._clients.of(client), nonce=message.nonce)
            self._send(client, reply)

    def _generate(self, client: bytes, message: Generate) -> None:
        settings = self._settings
        try:
            self._clients.add(client, message.request_id)
        except MaskstreamError as error:
            self._refuse(client, message.request_id, error)
            return
        try:
            request = admit(
                message, client, self._model, now_s=self._clock.now_s(),
                deadline_s=settings.deadline_s, max_deadline_s=settings.max_deadline_s,
            )  # fmt: skip
        except MaskstreamError as error:
            self._end(client, Failed(request_id=message.request_id, error=WireError.of(error)))
            return
        except Exception as error:  # a prompt that the tokenizer chokes on harms this request alone
            self._log.warning("admission failed", request_id=message.request_id, error=repr(error))
            failure = WireError(code="internal", message=f"admission failed: {type(error).__name__}")
            self._end(client, Failed(request_id=message.request_id, error=failure))
            return
        self._send(client, protocol.Accepted(request_id=message.request_id, prompt_tokens=len(request.prompt_token_ids)))
        self._loop.submit(request)

    def _refuse(self, client: bytes, request_id: str, error: MaskstreamError) -> None:
        """Answers what never became a request; an id in use stays out of the answer, since its own ending is still to come."""
        metrics.requests_total.labels("refused", error.code).inc()
        known = "" if self._clients.is_open(client, request_id) else request_id
        self._send(client, Failed(request_id=known, error=WireError.of(error)))

    def _send_all(self) -> None:
        for client, message in self._outbox.take_all():
            if type(message) is Delta:  # most are
                if self._clients.is_open(client, message.request_id):
                    self._send(client, message)
            elif isinstance(message, protocol.Done | Failed):
                self._end(client, message)
            elif not isinstance(message, protocol.HealthReply) and self._clients.is_open(client, message.request_id):
                self._send(client, message)

    def _end(self, client: bytes, message: protocol.Done | Failed) -> None:
        if self._clients.finish(client, message.request_id):
            self._send(client, message)

    def _send(self, client: bytes, message: WorkerReply) -> None:
        self._sent_s[client] = self._clock.now_s()
        try:
            self._socket.send(client, ADDRESS)
            self._socket.send(protocol.encode(message), NOBLOCK)
        except zmq.ZMQError as error:  # EHOSTUNREACH: gone; EAGAIN: it does not read
            metrics.dropped_total.labels("slow" if error.errno == zmq.EAGAIN else "gone").inc()
            for request_id in self._clients.drop(client):
                self._loop.cancel(client, request_id)


def _request_id_in(frames: list[bytes]) -> str:
    """The request id of a frame that is otherwise wrong, so that its sender can tell which request failed; else empty."""
    try:
        value = msgspec.msgpack.decode(frames[0]) if len(frames) == 1 else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    request_id = value.get("request_id") if isinstance(value, dict) else None
    return request_id if isinstance(request_id, str) and len(request_id) <= 64 else ""
