"""The grammar link's decisions: registry, placement, plans, sessions, steps, deaths. Pure: event in, actions out, time handed in.

Every failure is of one session or one compilation. ``validate()`` checks every invariant and raises AccountingError with the
story. The registry's part is here; sessions are decided on in ``session_desk.py`` and ``dispatch.py``, compilations in
``compiling.py``.
"""

from __future__ import annotations

from gpu_worker.grammar_link.compiling import CompileDesk
from gpu_worker.grammar_link.events import (
    Action,
    AskCompile,
    CloseSession,
    Count,
    Event,
    ForkSession,
    OpenSession,
    Peer,
    PeerChanged,
    Received,
    Send,
    SendChunk,
    SendFailed,
    SubmitStep,
)  # fmt: skip
from gpu_worker.grammar_link.partitions import Partitions
from gpu_worker.grammar_link.plans import PlanBook
from gpu_worker.grammar_link.quarantine import Quarantine
from gpu_worker.grammar_link.services import Service, Services
from gpu_worker.grammar_link.session_desk import SessionDesk
from gpu_worker.grammar_link.settings import LinkSettings, VocabularyInfo
from gpu_worker.grammar_link.validation import broken
from shared.errors import AccountingError
from shared.protocol import (
    PROTOCOL_VERSION,
    Compiled,
    Drain,
    Hello,
    HelloAgain,
    Open,
    Opened,
    Ping,
    Pong,
    Ready,
    Step,
    StepAnswer,
    VocabularyRequest,
    Welcome,
    WorkerMessage,
)  # fmt: skip

GUILTY = ("send_failed",)
"""Ends of a connection that a guide may have caused. A silent service may be stopped, cut off or starved of CPU time, which is no
guide's doing: one whose loop hangs is killed by its own watcher and then counts. One that says Hello again is alive."""


class Router:
    """Feed it events with the time; carry out the actions in order. ``services`` is its registry, read-only for others."""

    def __init__(self, settings: LinkSettings, vocabulary: VocabularyInfo, worker: str = "worker") -> None:
        self.settings, self.vocabulary, self._worker = settings, vocabulary, worker
        self._actions: list[Action] = []
        self._nonce = 0
        self.services = Services(settings)
        self.partitions = Partitions(settings)
        self.lane = Quarantine(settings.poison_ttl_s)
        self.plans = PlanBook(settings)
        self.compiling = CompileDesk(settings, self.services, self.plans, self._actions)
        self.sessions = SessionDesk(settings, vocabulary.vocab_size, self.services, self.lane, self.plans, self._actions)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What one event leads to."""
        self.sessions.dispatcher.now_s = now_s
        if isinstance(event, Received):
            self._received(event, now_s)
        elif isinstance(event, SendFailed):
            self._drop(event.peer, "send_failed", now_s, event.unsent)
        elif isinstance(event, AskCompile):
            self.compiling.ask(event, now_s)
        elif isinstance(event, SubmitStep):
            self.sessions.submit(event)
        elif isinstance(event, OpenSession | ForkSession):
            self.sessions.open(event)
        elif isinstance(event, CloseSession):
            self.sessions.close(event.session)
        else:
            self._tick(now_s)
        self.sessions.dispatcher.flush()
        actions = list(self._actions)
        self._actions.clear()
        return actions

    def validate(self, *, deep: bool = True) -> None:
        """Raises AccountingError if an invariant is broken; ``deep`` computes every digest anew."""
        wrong = broken(self.services, self.sessions, self.lane, self.plans, deep=deep)
        if wrong:
            raise AccountingError("; ".join(wrong))

    def _received(self, event: Received, now_s: float) -> None:
        message = event.message
        service = self.services.get(event.peer)
        if isinstance(message, Hello):
            self._hello(event.peer, message, now_s)
        elif service is None:
            if self.services.may_answer_stranger(event.peer, now_s):
                self._actions.append(Send(event.peer, HelloAgain()))
        else:
            self.services.heard(service, now_s)
            self._from_service(service, event, now_s)

    def _from_service(self, service: Service, event: Received, now_s: float) -> None:
        message = event.message
        if isinstance(message, StepAnswer):
            self.sessions.answered(service, message, event.frame_bytes)
            if service.pool_lost:  # before the replays that follow
                service.pool_lost = False
                self._welcome(service.peer)
        elif isinstance(message, Opened):
            self.sessions.opened(service, message)
        elif isinstance(message, Compiled):
            if self.compiling.ended(service, message, now_s):
                self.lane.clear(message.key)
        elif isinstance(message, VocabularyRequest):
            self._vocabulary(service, message)
        elif isinstance(message, Ready):
            self._ready(service, message, now_s)
        elif isinstance(message, Ping):
            self._actions.append(Send(service.peer, Pong(nonce=message.nonce)))
        elif isinstance(message, Drain):
            service.draining = True
            self.sessions.drain(service)

    def _hello(self, peer: Peer, hello: Hello, now_s: float) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            self._actions.append(Count("rejected", "protocol_version"))
        elif (known := self.services.get(peer)) is not None and known.instance == hello.instance:
            self.services.heard(known, now_s)  # a Hello of the handshake and one after hello_again can cross
        else:
            self._register(peer, hello, now_s)
        self._welcome(peer)

    def _register(self, peer: Peer, hello: Hello, now_s: float) -> None:
        for old in (self.services.get(peer), self.services.of_instance(hello.instance)):
            if old is not None and self.services.get(old.peer) is not None:
                self._drop(old.peer, "reconnected", now_s)
                self._actions.append(Count("hello", "reconnect"))
        if self.services.is_full():
            self._actions.append(Count("rejected", "too_many_services"))
            return
        self.services.add(peer, hello, now_s).partition = self.partitions.grant(self.sessions.dispatcher.retired_step)

    def _welcome(self, peer: Peer) -> None:
        table, service = self.vocabulary, self.services.get(peer)
        partition = service.partition if service is not None else None
        self._actions.append(
            Send(peer, Welcome(
                worker=self._worker, fingerprint=table.fingerprint, vocab_size=table.vocab_size, vocabulary_bytes=table.num_bytes,
                num_chunks=table.num_chunks, lease_s=self.settings.lease_s,
                pool_base=partition.base if partition else 0, pool_rows=partition.rows if partition else 0,
            ))
        )  # fmt: skip

    def _vocabulary(self, service: Service, request: VocabularyRequest) -> None:
        if request.fingerprint != self.vocabulary.fingerprint or request.chunk >= self.vocabulary.num_chunks:
            self._actions.append(Count("rejected", "vocabulary_request"))
        else:
            self._actions.append(SendChunk(service.peer, request.chunk))

    def _ready(self, service: Service, ready: Ready, now_s: float) -> None:
        if ready.fingerprint != self.vocabulary.fingerprint or ready.error is not None:
            self._actions.append(Count("rejected", "not_ready"))
            return
        if not service.ready:
            service.ready = True
            self._actions.append(PeerChanged(service.name, True))
        self.compiling.place_waiting(now_s)
        self.sessions.dispatcher.place_waiting()

    def _drop(self, peer: Peer, reason: str, now_s: float, unsent: tuple[WorkerMessage, ...] = ()) -> None:
        """A connection is over: its sessions and compilations go on elsewhere."""
        if self.services.get(peer) is None:
            return
        service = self.services.remove(peer)
        if service.partition is not None:
            self.partitions.release(service.partition, self.sessions.dispatcher.step)
        if service.ready:
            self._actions.append(PeerChanged(service.name, False))
        guilty = reason in GUILTY
        compiled_keys = self.compiling.lost(service, unsent)
        for key in self.sessions.lost(service, compiled_keys, guilty, _carried(unsent)):
            self.compiling.poison(key, now_s)
        self.compiling.place_waiting(now_s)
        self.sessions.dispatcher.place_waiting()

    def _tick(self, now_s: float) -> None:
        for service in self.services.silent(now_s):
            self._drop(service.peer, "silent", now_s)
        for service in self.services.to_ping(now_s):
            service.pinged_s, self._nonce = now_s, self._nonce + 1
            self._actions.append(Send(service.peer, Ping(nonce=self._nonce)))
        self.compiling.expire(now_s)
        self.sessions.expire()


def _carried(messages: tuple[WorkerMessage, ...]) -> frozenset[int]:
    """The sessions that messages are about."""
    opened = [message.handle for message in messages if isinstance(message, Open)]
    walked = [entry.handle for message in messages if isinstance(message, Step) for entry in message.entries]
    return frozenset(opened + walked)
