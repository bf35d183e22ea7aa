"""One connection to a worker: its vocabulary, its sessions, and the opens that wait for their grammar."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from grammar_service.cache import CompiledGrammar
from grammar_service.engines.base import Matcher
from grammar_service.frames import Frames
from grammar_service.gate import GatedMatcher
from grammar_service.golden import plain_ones
from grammar_service.row_pool import RowPool
from grammar_service.rows import Row
from grammar_service.sessions import Answer, Session, Sessions
from grammar_service.stepper import Job, Stepper
from grammar_service.vocabularies import Loaded
from shared import digest
from shared.errors import BadRequest, MaskstreamError
from shared.gate import Gate
from shared.protocol import Open, Opened, Plan, Step, StepAnswer, StepAnswerEntry, StepEntry, StepStatus, Welcome, WireError, encode

OK = int(StepStatus.OK)
NO_TOKENS: list[int] = []
UNKNOWN_PLAN = WireError(code="unknown_plan", message="send the plan along")


MAX_GATED = 1_000


class Pinned(NamedTuple):
    """What an Open asks for: the digest of what is compiled, the gate before it, the plan without the gate if it came along."""

    grammar_digest: bytes
    gate: Gate | None = None
    plan: Plan | None = None


class Waiting(NamedTuple):
    """An Open whose grammar is being compiled, and the newest entry that came for it meanwhile with its step number."""

    open: Open
    pinned: Pinned
    entry: tuple[int, StepEntry] | None = None


class Peer:
    """State of one link since its last handshake."""

    def __init__(self, link: int) -> None:
        self.link = link
        self.worker = ""
        self.fingerprint = ""
        self.lease_s = 60.0
        self.loaded: Loaded | None = None
        self.sessions: Sessions | None = None
        self.stepper: Stepper | None = None
        self.pool = RowPool()
        self._gated: OrderedDict[bytes, Pinned] = OrderedDict()  # by the digest of the gated plan; the oldest is forgotten
        self.waiting: dict[int, Waiting] = {}

    def is_granted(self, welcome: Welcome) -> bool:
        """Whether it says what an earlier one said."""
        return (welcome.fingerprint, welcome.pool_base, welcome.pool_rows) == (self.fingerprint, self.pool.base, self.pool.rows)

    def grant(self, welcome: Welcome) -> None:
        """The part of the worker's row pool that may be written, of which nothing is written yet."""
        self.pool = self.pool.grant(welcome.pool_base, welcome.pool_rows)

    def pinned(self, message: Open) -> Pinned:
        """What an Open pins. Raises BadRequest where its plan is not the one that the digest names."""
        plan = message.plan
        if plan is None:
            return self._gated.get(message.plan_digest, Pinned(message.plan_digest))
        if plan.digest != message.plan_digest:
            raise BadRequest("the plan has another digest", field="plan_digest")
        if plan.gate is not None:
            self._gated[message.plan_digest] = Pinned(plan.grammar_digest, plan.gate)
            if len(self._gated) > MAX_GATED:
                self._gated.popitem(last=False)
        return Pinned(plan.grammar_digest, plan.gate, msgspec.structs.replace(plan, gate=None))

    def wait(self, message: Open, pinned: Pinned) -> None:
        """Keeps an Open until its grammar is there; a newer epoch takes the place of an older one."""
        known = self.waiting.get(message.handle)
        if known is None or known.open.epoch <= message.epoch:
            self.waiting[message.handle] = Waiting(message, pinned)

    def ready(self, grammar_digest: bytes) -> list[Waiting]:
        """The opens that waited for this grammar; they wait no more."""
        found = [waiting for waiting in self.waiting.values() if waiting.pinned.grammar_digest == grammar_digest]
        for waiting in found:
            del self.waiting[waiting.open.handle]
        return found

    def open(self, message: Open, grammar: CompiledGrammar, now_s: float, gate: Gate | None = None) -> Opened | None:
        """Opens a session over a compiled grammar; None for a stale epoch."""
        if self.sessions is None or self.loaded is None:
            return Opened(handle=message.handle, epoch=message.epoch, error=UNKNOWN_PLAN)
        width = self.loaded.vocab_size
        if not message.stop_ids or any(stop >= width for stop in message.stop_ids):
            error = BadRequest(f"one or more ids below {width}", field="stop_ids")
            return Opened(handle=message.handle, epoch=message.epoch, error=WireError.of(error))
        try:
            session = self.sessions.open(message, lambda: self._matcher(message, grammar, gate), now_s)
        except MaskstreamError as error:
            return Opened(handle=message.handle, epoch=message.epoch, error=WireError.of(error))
        return None if session is None else Opened(handle=message.handle, epoch=message.epoch)

    def _matcher(self, message: Open, grammar: CompiledGrammar, gate: Gate | None) -> Matcher:
        matcher = grammar.factory.create(message.stop_ids, grammar.plan.after_guide)
        if gate is None or self.loaded is None or self.loaded.gates is None:
            return matcher
        return GatedMatcher.around(matcher, gate, self.loaded.gates.of(gate))

    def step(self, message: Step, now_s: float) -> Iterator[list[bytes]]:
        """Runs the entries that can run; answers in parts, as frames. Those that wait for a grammar are kept."""
        if self.sessions is None or self.stepper is None:
            return
        self.pool.begin(message.step, message.retired_step)
        fresh = self._fresh(message)
        plain, left = plain_ones(self.sessions, fresh.values())
        advanced = self.stepper.advance(plain, left, now_s)
        jobs: list[Job] = []
        at_once: list[tuple[StepEntry, Answer]] = []
        for entry in left:
            outcome = self.sessions.step(entry, now_s)
            if isinstance(outcome, Answer):
                at_once.append((entry, outcome))
            elif outcome is not None and (session := self.sessions.get(entry.handle)) is not None:
                jobs.append(Job(session, outcome))
        if at_once:
            frames = Frames(self.pool)
            entries = [_entry(entry, answer, frames, self._stops(entry.handle)) for entry, answer in at_once]
            yield _answer(message.step, entries, frames)
        for part in self.stepper.run(jobs, advanced):
            yield self._encode(message.step, part)

    def _fresh(self, message: Step) -> dict[int, StepEntry]:
        """The first entry of each session: an engine does not survive two walks on one matcher. One whose grammar is awaited is
        kept for later."""
        fresh = {entry.handle: entry for entry in message.entries}
        if len(fresh) < len(message.entries):
            fresh.update((entry.handle, entry) for entry in reversed(message.entries))
        for handle in self.waiting.keys() & fresh.keys():
            waiting = self.waiting[handle]
            if waiting.open.epoch == fresh[handle].epoch:
                self.waiting[handle] = waiting._replace(entry=(message.step, fresh.pop(handle)))
        return fresh

    def close(self, sessions: list[tuple[int, int]]) -> None:
        """Ends sessions, those that still wait for their grammar included."""
        for handle, epoch in sessions:
            waiting = self.waiting.get(handle)
            if waiting is not None and waiting.open.epoch <= epoch:
                del self.waiting[handle]
            if self.sessions is not None:
                self.sessions.close(handle, epoch)

    def expire(self, now_s: float) -> None:
        """Ends sessions that no entry has come for within the lease."""
        if self.sessions is not None:
            self.sessions.expire(now_s, self.lease_s)

    @property
    def num_sessions(self) -> int:
        """Sessions open here."""
        return len(self.sessions) if self.sessions is not None else 0

    def _stops(self, handle: int) -> frozenset[int]:
        session = self.sessions.get(handle) if self.sessions is not None else None
        return session.matcher.stop_ids if session is not None else frozenset()

    def _encode(self, step: int, answers: Sequence[tuple[Session, Answer | Row]]) -> list[bytes]:
        """Answers to the entries that the sessions walked."""
        frames = Frames(self.pool)
        entries: list[StepAnswerEntry] = []
        for session, answer in answers:
            entry = session.walking
            if entry is None:
                continue
            if isinstance(answer, Row):
                wire = frames.wire(answer, session.matcher.stop_ids)
                walked = session.digests[-1]
                entries.append(
                    StepAnswerEntry(entry.handle, entry.epoch, entry.sequence_number, walked, OK, 1, 1, [wire], NO_TOKENS)
                )
            else:
                entries.append(_entry(entry, answer, frames, session.matcher.stop_ids))
        return _answer(step, entries, frames)


def _answer(step: int, entries: list[StepAnswerEntry], frames: Frames) -> list[bytes]:
    return [encode(StepAnswer(step=step, entries=entries, writes=frames.writes)), *frames.frames]


def _entry(entry: StepEntry, answer: Answer, frames: Frames, stop_ids: frozenset[int]) -> StepAnswerEntry:
    rows = [frames.wire(row, stop_ids) for row in answer.rows]
    return StepAnswerEntry(
        entry.handle, entry.epoch, entry.sequence_number, digest.of_walk(entry.prefix_digest, entry.path, entry.parents),
        answer.status, answer.num_advanced, len(rows), rows, list(answer.forced),
        WireError.of(answer.error) if answer.error is not None else None,
    )  # fmt: skip
