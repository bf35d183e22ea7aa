"""What comes before a step: vocabularies, compilations and opens. Called by the work loop only."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from grammar_service import engines
from grammar_service.cache import CompiledGrammar, GrammarCache, NegativeCache
from grammar_service.compile import Compiled as Finished
from grammar_service.compile import Compiler, Task
from grammar_service.config import GrammarSettings, guide_limits
from grammar_service.gate_table import GateTables
from grammar_service.isolation import Isolation
from grammar_service.links import Received
from grammar_service.peer import UNKNOWN_PLAN, Peer
from grammar_service.rows import RowStore
from grammar_service.sessions import Sessions
from grammar_service.stepper import Budget, Stepper
from grammar_service.trial import TrialLimits
from grammar_service.vocabularies import Assembly, Loaded, Vocabularies, give_back_memory
from grammar_service.walks import walk
from grammar_service.watch import BusyMark
from shared import log
from shared.errors import BadRequest, MaskstreamError
from shared.gate import Gate
from shared.guide import key_of
from shared.protocol import (
    PROTOCOL_VERSION,
    Compile,
    Compiled,
    Message,
    Open,
    Opened,
    Ready,
    Step,
    VocabularyChunk,
    VocabularyRequest,
    Welcome,
    WireError,
)  # fmt: skip
from shared.tokenizer import from_wire

GuideKey = tuple[str, str]


class VocabularyBuilt(NamedTuple):
    """A vocabulary was turned into engines off the loop, or could not be."""

    fingerprint: str
    outcome: Loaded | MaskstreamError


class Waiter(NamedTuple):
    """Who asked for a compilation, and under which key."""

    link: int
    key: str


class Admission:
    """Everything that may take long happens in other threads; their results come back through the inbox."""

    def __init__(
        self, settings: GrammarSettings, inbox: queue.SimpleQueue[Any], send: Callable[[int, Message], None], busy: BusyMark
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._send = send
        self._log = log.get("admission")
        self._vocabularies = Vocabularies(settings.max_vocabularies)
        self._assemblies: dict[str, Assembly] = {}
        self._cache = GrammarCache(settings.cache_bytes, int(settings.cache_bytes * settings.cache_client_share))
        self._waiters: dict[GuideKey, list[Waiter]] = {}
        cores = os.cpu_count() or 1
        self._threads = settings.threads or cores
        self._refused = NegativeCache(settings.negative_cache_s)
        trial = TrialLimits(settings.compile_timeout_s, settings.compile_memory_bytes, settings.step_hard_s)
        self._isolation = Isolation(trial, guide_limits(settings), busy, settings.step_kill_s, settings.compile_spares)
        self._compiler = Compiler(settings.compile_jobs or cores, settings.compile_queue, self._isolation.attempt, inbox)

    def handlers(self) -> dict[type, Callable[[Peer, Any], None]]:
        """Handlers by message type."""
        return {
            Welcome: self._on_welcome, VocabularyChunk: self._on_chunk, Compile: self._on_compile, Open: self._on_open,
        }  # fmt: skip

    @property
    def num_waiting(self) -> int:
        return self._compiler.num_waiting

    @property
    def num_vocabularies(self) -> int:
        return len(self._vocabularies)

    def close(self) -> None:
        """Ends the compile threads and the zygote."""
        self._compiler.close()
        self._isolation.close()

    def handle(self, event: Any, peers: Iterable[Peer]) -> None:
        """An event of one of the other threads."""
        if isinstance(event, VocabularyBuilt):
            self._on_built(event, peers)
        elif isinstance(event, Finished):
            self._on_finished(event, peers)

    # ---- vocabularies ----

    def _on_welcome(self, peer: Peer, message: Welcome) -> None:
        if message.protocol_version != PROTOCOL_VERSION:
            self._log.error("worker speaks another version", worker=message.worker, version=message.protocol_version)
            return
        peer.worker, peer.fingerprint, peer.lease_s = message.worker, message.fingerprint, message.lease_s
        loaded = self._vocabularies.get(message.fingerprint)
        if loaded is not None:
            self._ready(peer, loaded)
            return
        try:
            assembly = self._assemblies.setdefault(message.fingerprint, Assembly(message, self._settings.max_vocabulary_bytes))
        except BadRequest as error:
            self._send(peer.link, Ready(fingerprint=message.fingerprint, error=WireError.of(error)))
            return
        self._ask(peer, assembly)

    def _ask(self, peer: Peer, assembly: Assembly) -> None:
        for chunk in assembly.ask(peer.link):
            self._send(peer.link, VocabularyRequest(fingerprint=assembly.fingerprint, chunk=chunk))

    def _on_chunk(self, peer: Peer, message: VocabularyChunk) -> None:
        assembly = self._assemblies.get(message.fingerprint)
        if assembly is None or message.fingerprint != peer.fingerprint:
            return
        try:
            data = assembly.take(message)
        except BadRequest as error:
            self._built_wrong(peer, error)
            return
        if data is None:
            self._ask(peer, assembly)
        else:
            threading.Thread(target=self._build, args=(message.fingerprint, data), name="vocabulary", daemon=True).start()

    def _built_wrong(self, peer: Peer, error: BadRequest) -> None:
        self._assemblies.pop(peer.fingerprint, None)
        self._send(peer.link, Ready(fingerprint=peer.fingerprint, error=WireError.of(error)))

    def _build(self, fingerprint: str, data: bytes) -> None:
        outcome = self._load(fingerprint, data)
        del data
        give_back_memory()
        self._inbox.put(VocabularyBuilt(fingerprint, outcome))

    def _load(self, fingerprint: str, data: bytes) -> Loaded | MaskstreamError:
        try:
            vocabulary = from_wire(data, fingerprint)
            self._isolation.load(fingerprint, data)
            rows = RowStore(vocabulary.size, self._settings.row_bytes)
            loaded = engines.load(vocabulary, threads=self._threads)
            return Loaded(fingerprint, vocabulary.size, loaded, rows, GateTables(vocabulary))
        except MaskstreamError as error:
            return error
        except Exception as error:  # a worker's bad table must not take the service down
            return BadRequest(f"{type(error).__name__}: {str(error)[:200]}", field="vocabulary")

    def _on_built(self, event: VocabularyBuilt, peers: Iterable[Peer]) -> None:
        self._assemblies.pop(event.fingerprint, None)
        if isinstance(event.outcome, Loaded):
            for dropped in self._vocabularies.put(event.outcome):
                self._cache.forget_vocabulary(dropped)
                self._isolation.drop(dropped)
        for peer in peers:
            if peer.fingerprint != event.fingerprint:
                continue
            if isinstance(event.outcome, Loaded):
                self._ready(peer, event.outcome)
            else:
                self._send(peer.link, Ready(fingerprint=event.fingerprint, error=WireError.of(event.outcome)))

    def _ready(self, peer: Peer, loaded: Loaded) -> None:
        rows = loaded.rows or RowStore(loaded.vocab_size, self._settings.row_bytes)
        peer.loaded = loaded
        peer.sessions = Sessions(rows, walk)
        peer.stepper = Stepper(loaded.engines, rows, Budget(self._settings.step_soft_s, self._settings.step_hard_s))
        self._send(peer.link, Ready(fingerprint=loaded.fingerprint))

    # ---- compilations ----

    def _on_compile(self, peer: Peer, message: Compile) -> None:
        if peer.loaded is None:
            self._refuse(Waiter(peer.link, message.key), BadRequest("no vocabulary is ready", field="fingerprint"))
            return
        key = (peer.fingerprint, key_of(message.guide))
        grammar = self._cache.find(key, message.client)
        if grammar is not None:
            self._compiled(peer, message.key, grammar, 0.0, cached=True)
            return
        self._submit(peer, Task(key, message.client, peer.loaded, message.guide), Waiter(peer.link, message.key))

    def _submit(self, peer: Peer, task: Task, waiter: Waiter | None) -> None:
        try:
            if (known := self._refused.get(task.key, time.monotonic())) is not None:
                raise known
            self._compiler.submit(task)
        except MaskstreamError as error:
            if waiter is not None:
                self._refuse(waiter, error)
            else:
                self._fail_opens(task.key, error, [peer])
            return
        if waiter is not None:
            self._waiters.setdefault(task.key, []).append(waiter)

    def _refuse(self, waiter: Waiter, error: MaskstreamError, compile_ms: float = 0.0) -> None:
        self._send(waiter.link, Compiled(key=waiter.key, error=WireError.of(error), compile_ms=compile_ms))

    def _compiled(self, peer: Peer, key: str, grammar: CompiledGrammar, compile_ms: float, *, cached: bool) -> None:
        self._send(peer.link, Compiled(
            key=key, plan=grammar.plan, compile_ms=compile_ms, grammar_bytes=grammar.num_bytes,
            first_row_share=grammar.first_row_share, cached=cached,
        ))  # fmt: skip

    def _on_finished(self, event: Finished, peers: Iterable[Peer]) -> None:
        self._compiler.finished(event.key)
        by_link = {peer.link: peer for peer in peers}
        waiters = self._waiters.pop(event.key, [])
        if isinstance(event.outcome, MaskstreamError):
            self._refused.put(event.key, event.outcome, time.monotonic())
            for waiter in waiters:
                self._refuse(waiter, event.outcome, event.compile_ms)
            self._fail_opens(event.key, event.outcome, by_link.values())
            return
        key = event.key[0], event.outcome.plan.digest
        grammar = self._cache.put(key, event.outcome, event.client, event.key if event.is_guide else None)
        for waiter in waiters:
            if (peer := by_link.get(waiter.link)) is not None:
                self._compiled(peer, waiter.key, grammar, event.compile_ms, cached=False)
        for peer in by_link.values():
            if peer.fingerprint == event.key[0]:
                self._open_waiting(peer, grammar)

    # ---- opens ----

    def _on_open(self, peer: Peer, message: Open) -> None:
        try:
            pinned = peer.pinned(message)
        except BadRequest as error:
            self._opened(peer, message, WireError.of(error))
            return
        grammar = self._cache.get((peer.fingerprint, pinned.grammar_digest))
        if grammar is not None:
            self._answer_open(peer, message, grammar, pinned.gate)
        elif pinned.plan is None or peer.loaded is None:  # evicted meanwhile: the worker has the plan, nobody else keeps it
            self._opened(peer, message, UNKNOWN_PLAN)
        else:
            peer.wait(message, pinned)
            key = peer.fingerprint, pinned.grammar_digest.hex()
            self._submit(peer, Task(key, peer.worker, peer.loaded, pinned.plan), None)

    def _opened(self, peer: Peer, message: Open, error: WireError) -> None:
        self._send(peer.link, Opened(handle=message.handle, epoch=message.epoch, error=error))

    def _answer_open(self, peer: Peer, message: Open, grammar: CompiledGrammar, gate: Gate | None) -> None:
        reply = peer.open(message, grammar, time.monotonic(), gate)
        if reply is not None:
            self._send(peer.link, reply)

    def _open_waiting(self, peer: Peer, grammar: CompiledGrammar) -> None:
        for waiting in peer.ready(grammar.plan.digest):
            self._answer_open(peer, waiting.open, grammar, waiting.pinned.gate)
            if waiting.entry is not None:
                step, entry = waiting.entry
                self._inbox.put(Received(peer.link, Step(step=step, retired_step=0, entries=[entry])))

    def _fail_opens(self, key: GuideKey, error: MaskstreamError, peers: Iterable[Peer]) -> None:
        for peer in peers:
            if peer.fingerprint == key[0] and len(key[1]) == 16:
                for waiting in peer.ready(bytes.fromhex(key[1])):
                    self._opened(peer, waiting.open, WireError.of(error))
