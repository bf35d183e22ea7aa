"""The grammar link's thread-safe face: compile, open, fork, close, submit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future

import zmq

from gpu_worker.grammar_link.events import AskCompile, CloseSession, ForkSession, OpenSession, SubmitStep
from gpu_worker.grammar_link.pump import Pump
from gpu_worker.grammar_link.router import Router
from gpu_worker.grammar_link.settings import LinkSettings, VocabularyInfo
from gpu_worker.grammar_link.ticket import StepTicket
from gpu_worker.grammar_link.walks import SessionId, Walk
from shared.bitmask import Words, num_words
from shared.clock import Clock, MonotonicClock
from shared.errors import BadRequest, ConfigError, WorkerLost
from shared.guide import Guide, canonical, key_of
from shared.protocol import Compiled, Plan
from shared.sockets import bind_router, last_endpoint
from shared.tokenizer import Vocabulary, chunks, fingerprint_of, to_wire


class GrammarLink:
    """See the package's docstring. Any thread may call any method; ``submit`` and ``StepTicket.seal`` belong to one (the step
    loop's). Every method raises WorkerLost where the link is not running."""

    def __init__(
        self,
        bind: str = "tcp://127.0.0.1:*",
        settings: LinkSettings | None = None,
        *,
        insecure: bool = False,
        worker: str = "worker",
        clock: Clock | None = None,
    ) -> None:
        self._bind, self._insecure, self._worker = bind, insecure, worker
        self.settings = settings or LinkSettings()
        self._clock: Clock = clock or MonotonicClock()
        self._ids = itertools.count(1)
        self._held: set[SessionId] = set()
        self._pump: Pump | None = None
        self.address = ""
        self.vocab_size = 0
        self.fingerprint = ""

    def start(self, vocabulary: Vocabulary) -> None:
        """Binds, and starts the thread. Raises ConfigError where the address cannot be bound or the link runs."""
        if self._pump is not None:
            raise ConfigError("the grammar link runs already")
        vocabulary.check()
        table = to_wire(vocabulary)
        pieces = chunks(table)
        self.fingerprint, self.vocab_size = fingerprint_of(table), vocabulary.size
        info = VocabularyInfo(
            fingerprint=self.fingerprint, vocab_size=self.vocab_size, num_bytes=len(table), num_chunks=len(pieces)
        )
        self._context = zmq.Context()
        try:
            socket = bind_router(self._context, self._bind, insecure=self._insecure)
        except ConfigError:
            self._context.term()
            raise
        self.address = last_endpoint(socket)
        self._pump = Pump(socket, Router(self.settings, info, self._worker), pieces, self._clock)
        self._pump.start()

    def close(self) -> None:
        """Ends the thread. What still waits ends with WorkerLost."""
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.stop()
            self._context.term()

    def is_alive(self) -> bool:
        """Whether the link's thread runs."""
        return self._pump is not None and self._pump.is_alive()

    @property
    def service_names(self) -> tuple[str, ...]:
        """Names of the ready grammar services, sorted."""
        return self._running().service_names

    def compile(self, guide: Guide, *, client: str = "", deadline_s: float = 30.0) -> Future[Compiled]:
        """Plans and compiles a guide, or finds it in the cache. The future gives Compiled with a plan, or raises a
        MaskstreamError. Cancelling it forgets the waiter, not the compilation."""
        guide = canonical(guide)
        future: Future[Compiled] = Future()
        self._running().post(AskCompile(next(self._ids), key_of(guide), guide, client, deadline_s), future)
        return future

    def open(self, guide_key: str, plan: Plan, stop_ids: Sequence[int], committed: Sequence[int] = ()) -> SessionId:
        """Opens a session; ``guide_key`` (Compiled.key) decides where. Errors come as the outcome of its first walk."""
        session = next(self._ids)
        self._running().post(OpenSession(session, guide_key, plan, tuple(stop_ids), tuple(committed)))
        return session

    def fork(self, parent: SessionId, length: int) -> SessionId:
        """A session of the first ``length`` committed tokens of another."""
        session = next(self._ids)
        self._running().post(ForkSession(session, parent, length))
        return session

    def close_session(self, session: SessionId) -> None:
        """Ends a session; nothing comes of it any more."""
        self._held.discard(session)
        if self._pump is not None:
            self._pump.post(CloseSession(session))

    def submit(self, step: int, walks: Sequence[Walk], out: Words, *, retired_step: int | None = None) -> StepTicket:
        """Asks for the rows of a step. ``out`` is int32 [rows, W], C-contiguous; it is written until the ticket is sealed.
        ``retired_step``: every read of rows answered for steps up to it has ended; None: rows are read as they come, so the step
        before the last has.
        Raises BadRequest where the buffer or a walk's place in it is wrong."""
        self._check(walks, out)
        ticket = StepTicket(walks, out, self._held)
        self._running().post(SubmitStep(step, max(step - 2, 0) if retired_step is None else retired_step, tuple(walks)), ticket)
        return ticket

    def _running(self) -> Pump:
        if self._pump is None:
            raise WorkerLost("the grammar link is closed")
        return self._pump

    def _check(self, walks: Sequence[Walk], out: Words) -> None:
        width = num_words(self.vocab_size)
        if out.dtype.name != "int32" or out.shape[1:] != (width,) or not out.flags.c_contiguous:
            raise BadRequest(f"rows must be C-contiguous int32 [rows, {width}]", field="out")
        if len({walk.session for walk in walks}) != len(walks):
            raise BadRequest("a session is walked once a step", field="walks")
        last = len(out)
        if any(walk.row < 0 or walk.row + (len(walk.path) or 1) > last for walk in walks):
            raise BadRequest(f"a walk's rows are outside [0, {len(out)})", field="walks")
