"""The client's connection: one thread that owns the DEALER socket, a queue in, a callback out.

zmq.asyncio is left out on purpose: a send that is cancelled while no peer is there stays in its queue, and every later one waits
behind it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import zmq

from shared import sockets
from shared.mailbox import Mailbox

POLL_MS = 1_000


class Connection:
    """Frames go out in the order of ``send``, as soon as there is a peer; ``on_frame`` is called in the connection's thread."""

    def __init__(self, address: str, on_frame: Callable[[bytes], None]) -> None:
        self._on_frame = on_frame
        self._outbox: Mailbox[bytes | None] = Mailbox()
        self._unsent: deque[bytes] = deque()
        self._closing = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._socket = sockets.connect_dealer(self._context, address)
        except Exception:
            self._context.term()
            self._outbox.close()
            raise
        self._thread = threading.Thread(target=self._run, name="connection", daemon=True)
        self._thread.start()

    def send(self, frame: bytes) -> None:
        """Queues a frame; never blocks. After ``close`` nothing is sent any more."""
        if not self._closing.is_set():
            self._outbox.put(frame)

    def drop_unsent(self) -> None:
        """Forgets what waits for a peer: nothing of it is sent when one comes back."""
        if not self._closing.is_set():
            self._outbox.put(None)

    def close(self) -> None:
        """Gives queued frames a moment to leave, then ends the thread."""
        self._closing.set()
        self._outbox.wake()
        self._thread.join(timeout=5)
        self._socket.close(200)
        self._context.term()
        self._outbox.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._outbox.fileno(), zmq.POLLIN)
        while not self._closing.is_set():
            poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if self._unsent else 0))
            poller.poll(POLL_MS)
            self._take_outbox()
            self._send_unsent()
            self._receive()

    def _take_outbox(self) -> None:
        for frame in self._outbox.take_all():
            if frame is None:
                self._unsent.clear()
            else:
                self._unsent.append(frame)

    def _send_unsent(self) -> None:
        while self._unsent:
            try:
                self._socket.send(self._unsent[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._unsent.popleft()

    def _receive(self) -> None:
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_frame(frame)
