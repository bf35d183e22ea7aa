"""The loop of the grammar service: receive, decide, act, reply. It owns every matcher; sockets and compilations are elsewhere."""

from __future__ import annotations

import gc
import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from grammar_service import engines
from grammar_service.admission import Admission
from grammar_service.config import GrammarSettings
from grammar_service.links import Connected, Links, Lost, Received
from grammar_service.peer import Peer
from grammar_service.watch import BusyMark
from shared import log, metrics
from shared.protocol import (
    Close,
    Drain,
    Hello,
    HelloAgain,
    Message,
    Ping,
    Pong,
    Ready,
    Step,
    Welcome,
    encode,
)  # fmt: skip

IDLE_S = 0.25
HOUSEKEEPING_S = 1.0
COLLECT_AFTER = (20_000, 10, 10)  # a step makes thousands of short-lived objects without cycles


class Service:
    """One grammar service. ``run`` returns after ``stop``, once the sessions have moved or ``drain_s`` is over."""

    def __init__(self, settings: GrammarSettings) -> None:
        self._settings = settings
        self._log = log.get("service")
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._links = Links(settings.workers, insecure=settings.insecure, resolve_s=settings.resolve_s, inbox=self._inbox)
        self._busy = BusyMark()
        self._peers: dict[int, Peer] = {}
        self._admission = Admission(settings, self._inbox, self.send, self._busy)
        self._hello = Hello(
            service=settings.name, instance=uuid.uuid4().hex, engines=engines.versions(),
            max_outstanding_steps=settings.outstanding_steps,
        )  # fmt: skip
        self._stop = threading.Event()
        self._turned_s = self._kept_house_s = time.monotonic()
        self._draining_since_s: float | None = None
        self._handlers: dict[type, Callable[[Peer, Any], None]] = {
            Step: self._on_step, Close: self._on_close, Ping: self._on_ping, HelloAgain: self._on_hello_again, Pong: _ignore,
            **self._admission.handlers(),
        }  # fmt: skip
        self._admit_welcome = self._handlers[Welcome]
        self._handlers[Welcome] = self._on_welcome

    def run(self) -> None:
        """The loop. Raises ConfigError for a worker address that may not be used."""
        self._links.start()
        gc.set_threshold(*COLLECT_AFTER)
        try:
            while not self._may_leave():
                self._turned_s = time.monotonic()
                event = self._next_event()
                self._busy.enter()
                self._handle(event)
                self._keep_house()
                self._busy.leave()
        finally:
            self._admission.close()
            self._links.close()
            self._busy.close()

    def _next_event(self) -> Any:
        try:
            return self._inbox.get(timeout=IDLE_S)
        except queue.Empty:
            return None

    def _handle(self, event: Any) -> None:
        match event:
            case Received(link, message):
                if (peer := self._peers.get(link)) is not None:
                    self._handlers[type(message)](peer, message)
            case Connected(link):
                self._peers[link] = Peer(link)  # a new connection: the worker opens its sessions anew
                self.send(link, self._hello)
            case Lost(link):
                self._peers.pop(link, None)
            case None:
                pass
            case Exception():
                raise event
            case _:
                self._admission.handle(event, self._peers.values())

    def send(self, link: int, message: Message) -> None:
        """Sends one message of one frame."""
        self._links.send(link, [encode(message)])

    def _on_step(self, peer: Peer, message: Step) -> None:
        for frames in peer.step(message, time.monotonic()):
            self._links.send(peer.link, frames)

    def _on_close(self, peer: Peer, message: Close) -> None:
        peer.close(message.sessions)

    def _on_ping(self, peer: Peer, message: Ping) -> None:
        self.send(peer.link, Pong(nonce=message.nonce, sessions=self.num_sessions(), queue=self._admission.num_waiting))

    def _on_welcome(self, peer: Peer, message: Welcome) -> None:
        """The first of a connection is for admission; another one only takes back what was written into the pool."""
        again = peer.loaded is not None and message.pool_rows > 0 and peer.is_granted(message)
        peer.grant(message)
        if again:
            self.send(peer.link, Ready(fingerprint=message.fingerprint))
        else:
            self._admit_welcome(peer, message)

    def _on_hello_again(self, peer: Peer, message: HelloAgain) -> None:
        self.send(peer.link, self._hello)

    def _keep_house(self) -> None:
        now_s = time.monotonic()
        if now_s - self._kept_house_s < HOUSEKEEPING_S:
            return
        self._kept_house_s = now_s
        for peer in self._peers.values():
            peer.expire(now_s)
        metrics.sessions.set(self.num_sessions())
        metrics.step_queue_depth.set(self._inbox.qsize())

    def num_sessions(self) -> int:
        """Open sessions of all workers."""
        return sum(peer.num_sessions for peer in self._peers.values())

    def stop(self) -> None:
        """Asks the loop to drain and leave; may be called from a signal handler or another thread."""
        self._stop.set()

    def _may_leave(self) -> bool:
        if not self._stop.is_set():
            return False
        if self._draining_since_s is None:
            self._draining_since_s = time.monotonic()
            for link in self._peers:
                self.send(link, Drain())
        return self.num_sessions() == 0 or time.monotonic() - self._draining_since_s > self._settings.drain_s

    def health(self) -> tuple[bool, str]:
        """Live: the loop turned lately. Workers are a metric: one that waits for us must not make us unhealthy."""
        silent_s = time.monotonic() - self._turned_s
        text = f"workers={len(self._peers)} sessions={self.num_sessions()} vocabularies={self._admission.num_vocabularies}\n"
        return silent_s < 2 * self._settings.step_kill_s, text


def _ignore(peer: Peer, message: Any) -> None:
    """A sign of life that asks for nothing."""
