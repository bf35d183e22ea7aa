"""The sockets, in a thread of their own: one DEALER a worker address, a monitor on each, a pipe for what is to be sent.

The work loop sends through ``send`` and reads ``inbox``; no other thread touches a socket. A service that was stopped and goes on
hears nothing of it on its socket: the monitor's handshake event is what says "greet again".
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

from shared import log, metrics
from shared.errors import BadRequest, ConfigError
from shared.protocol import WorkerMessage, decode_worker
from shared.sockets import configure, connect_dealer, resolve_all

POLL_MS = 1_000
RETRY_MS = 5
MAX_PENDING = 1_000  # messages a worker does not take; the oldest is of no more use to it
WAKE = "inproc://grammar-wake"
EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Connected(NamedTuple):
    """A handshake with the worker behind ``link``: everything before it is gone."""

    link: int


class Lost(NamedTuple):
    """The connection broke; ZMQ connects again by itself."""

    link: int


class Received(NamedTuple):
    link: int
    message: WorkerMessage


class _Link:
    """One DEALER with its monitor."""

    def __init__(self, number: int, address: str, context: zmq.Context[Any], insecure: bool) -> None:
        self.number = number
        self.address = address
        self.monitor: zmq.Socket[bytes]
        self.dealer: zmq.Socket[bytes] = connect_dealer(context, address, insecure=insecure, watch=self._watch)

    def _watch(self, dealer: zmq.Socket[bytes]) -> None:
        self.monitor = dealer.get_monitor_socket(EVENTS)
        self.pending: deque[list[bytes]] = deque(maxlen=MAX_PENDING)

    def send_pending(self) -> None:
        """Sends what it can. The handshake is told a moment before the socket can send: what does not go now is kept."""
        while self.pending:
            try:
                self.dealer.send_multipart(self.pending[0], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self.pending.popleft()

    def close(self) -> None:
        self.dealer.disable_monitor()
        self.monitor.close(0)
        self.dealer.close(0)


class Links:
    """Owner of all sockets. ``inbox`` receives Connected, Lost, Received and whatever other threads put there."""

    def __init__(self, workers: Sequence[str], *, insecure: bool, resolve_s: float, inbox: queue.SimpleQueue[Any]) -> None:
        self._workers = workers
        self._insecure = insecure
        self._resolve_s = resolve_s
        self._inbox = inbox
        self._log = log.get("links")
        self._context: zmq.Context[Any] = zmq.Context(io_threads=1)
        self._wake_out = self._pair(bind=True)
        self._wake_in = self._pair(bind=False)
        self._outbox: deque[tuple[int, list[bytes]]] = deque()
        self._links: dict[str, _Link] = {}
        self._by_number: dict[int, _Link] = {}
        self._next_number = 1
        self._stopping = False
        self._poller = zmq.Poller()
        self._thread = threading.Thread(target=self._guarded, name="links", daemon=True)

    def _pair(self, *, bind: bool) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        configure(socket)
        (socket.bind if bind else socket.connect)(WAKE)
        return socket

    def start(self) -> None:
        """Resolves the workers and connects. Raises ConfigError for an address that may not be used."""
        self._poller.register(self._wake_in, zmq.POLLIN)
        self._resolve()
        self._thread.start()

    def send(self, link: int, frames: list[bytes]) -> None:
        """Queues one message; called by one thread only. It is lost if the worker is gone: the worker asks again."""
        self._outbox.append((link, frames))
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(zmq.Again):  # a thousand wake-ups are waiting already
            self._wake_out.send(b"", zmq.NOBLOCK)

    def close(self) -> None:
        """Sends what is queued and ends the thread. The context is destroyed, so no socket outlives this."""
        self._stopping = True
        if self._thread.is_alive():
            self._wake()
            self._thread.join(timeout=5)
        for link in self._links.values():
            link.close()
        self._wake_out.close(0)
        self._wake_in.close(0)
        self._context.destroy(0)

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # without sockets the service is of no use: its loop ends with this error
            self._inbox.put(error)

    def _run(self) -> None:
        next_resolve_s = time.monotonic() + self._resolve_s
        while not self._stopping:
            for socket, _ in self._poller.poll(self._patience_ms()):
                self._serve(socket)
            self._flush()
            if time.monotonic() >= next_resolve_s:
                self._resolve()
                next_resolve_s = time.monotonic() + self._resolve_s
        self._flush()

    def _serve(self, socket: Any) -> None:
        if socket is self._wake_in:
            _drain(self._wake_in)
            return
        link = next((link for link in self._links.values() if socket in (link.dealer, link.monitor)), None)
        if link is None:
            return
        if socket is link.monitor:
            self._observe(link)
        else:
            self._receive(link)

    def _observe(self, link: _Link) -> None:
        event = parse_monitor_message(link.monitor.recv_multipart())["event"]
        link.pending.clear()  # of a connection that is gone
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._inbox.put(Connected(link.number))
        elif event == zmq.EVENT_DISCONNECTED:
            metrics.reconnects_total.inc()
            self._inbox.put(Lost(link.number))

    def _receive(self, link: _Link) -> None:
        for _ in range(64):  # then the others have their turn
            try:
                frames = link.dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 1:
                metrics.frame_rejected_total.labels("frame_count").inc()
                continue
            try:
                self._inbox.put(Received(link.number, decode_worker(frames[0])))
            except BadRequest as error:
                metrics.frame_rejected_total.labels("decode").inc()
                self._log.warning("frame refused", worker=link.address, error=str(error))

    def _flush(self) -> None:
        while self._outbox:
            number, frames = self._outbox.popleft()
            if (link := self._by_number.get(number)) is not None:
                link.pending.append(frames)
        for link in self._links.values():
            link.send_pending()

    def _patience_ms(self) -> int:
        if any(link.pending for link in self._links.values()):
            return RETRY_MS
        return min(POLL_MS, int(self._resolve_s * 1000))

    def _resolve(self) -> None:
        """Connects to addresses that are new and leaves those that are gone (a name that cannot be resolved keeps what it has)."""
        wanted: set[str] = set()
        for worker in self._workers:
            try:
                wanted.update(resolve_all(worker))
            except OSError as error:
                self._log.info("name not resolved", worker=worker, error=str(error))
                return
        for address in wanted - self._links.keys():
            self._connect(address)
        for address in self._links.keys() - wanted:
            self._disconnect(address)

    def _connect(self, address: str) -> None:
        try:
            link = _Link(self._next_number, address, self._context, self._insecure)
        except ConfigError:
            if not self._thread.is_alive():
                raise
            self._log.warning("address refused", worker=address)
            return
        self._next_number += 1
        self._links[address] = self._by_number[link.number] = link
        self._poller.register(link.dealer, zmq.POLLIN)
        self._poller.register(link.monitor, zmq.POLLIN)

    def _disconnect(self, address: str) -> None:
        link = self._links.pop(address)
        del self._by_number[link.number]
        self._poller.unregister(link.dealer)
        self._poller.unregister(link.monitor)
        link.close()
        self._inbox.put(Lost(link.number))


def _drain(socket: zmq.Socket[bytes]) -> None:
    while True:
        try:
            socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return
