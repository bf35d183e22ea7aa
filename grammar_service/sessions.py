"""Matcher sessions of one connection: a pure state machine. Entries in, walks and answers out; no clock, socket or engine call.

A session is a pure function of (plan, committed tokens). ``Sessions`` decides what an ``Open`` or a ``StepEntry`` means (new, old,
repeated, unknown); ``walks.py`` does the accounting of one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from grammar_service.engines.base import Matcher
from grammar_service.rows import Row, RowStore
from shared import digest
from shared.errors import AccountingError, BadRequest, MaskstreamError
from shared.protocol import Open, StepEntry, StepStatus

Walking = Generator[Matcher, Row, "Answer"]


class Answer(NamedTuple):
    """What became of one entry. ``rows`` as in StepAnswerEntry; ``error`` with status FAILED only."""

    status: StepStatus
    num_advanced: int = 0
    rows: tuple[Row, ...] = ()
    forced: tuple[int, ...] = ()
    error: MaskstreamError | None = None


class Session:
    """One sequence. ``tokens`` is the history the matcher stands at, ``digests`` the digest of each of its prefixes, ``rows`` the
    rows of the last walk by the digest of their prefix. ``base_row`` is the row of the state it stands at after a target walk,
    where the guide goes on from there, ``before_row`` the one before it where ``rows`` is not kept (``unfold``). ``walk_base`` and
    ``walk_advanced`` are of the last target walk, for the cross-check of the verifier's count (``walk_base`` -1: none, or checked).
    """

    __slots__ = (
        "answered", "apart", "base_row", "before_row", "broken", "digests", "epoch", "handle", "last_used_s", "matcher",
        "overdue", "plan_digest", "rows", "tokens", "walk_advanced", "walk_base", "walking",
    )  # fmt: skip

    def __init__(self, handle: int, epoch: int, plan_digest: bytes, matcher: Matcher, now_s: float) -> None:
        self.handle = handle
        self.epoch = epoch
        self.plan_digest = plan_digest
        self.matcher = matcher
        self.tokens: list[int] = []
        self.digests: list[bytes] = [plan_digest]
        self.rows: dict[bytes, Row] = {}
        self.base_row: Row | None = None
        self.before_row: Row | None = None
        self.walk_base = -1
        self.walk_advanced = 0
        self.answered: tuple[StepEntry, Answer | Row] | None = None
        self.walking: StepEntry | None = None
        self.broken: MaskstreamError | None = None
        self.last_used_s = now_s
        self.apart = False  # slow: stepped alone, after the others
        self.overdue = False  # its last step was over the hard budget

    def accept(self, token_id: int) -> bool:
        """Advances by one token under the mask; False leaves everything as it was (spec 16)."""
        if not self.matcher.accept_token(token_id):
            return False
        self.tokens.append(token_id)
        self.digests.append(digest.extend(self.digests[-1], token_id))
        return True

    def replay(self, token_ids: Sequence[int]) -> None:
        """Takes tokens that were committed. Raises BadRequest for one that is not in the language; what came before it stays."""
        taken = self.matcher.replay(token_ids)
        for token_id in token_ids[:taken]:
            self.tokens.append(token_id)
            self.digests.append(digest.extend(self.digests[-1], token_id))
        if taken < len(token_ids):
            raise BadRequest(f"committed token {token_ids[taken]} at {len(self.tokens)} is not in the language", field="committed")

    def cut(self, length: int) -> None:
        """Rolls back to the first ``length`` tokens."""
        if surplus := len(self.tokens) - length:
            self.matcher.rollback(surplus)
            del self.tokens[length:]
            del self.digests[length + 1 :]

    def fail(self, error: MaskstreamError) -> Answer:
        """Breaks the session; its answer, also to a repetition of the entry in progress."""
        self.broken, self.base_row = error, None
        answer = Answer(StepStatus.FAILED, error=error)
        if self.walking is not None:
            self.answered = (self.walking, answer)
        return answer

    def unfold(self) -> None:
        """``rows`` after a walk of ``golden.py``, which does not keep them; there is no ``base_row`` until a walk has ended."""
        if self.before_row is not None and self.base_row is not None:
            self.rows = {self.digests[-2]: self.before_row, self.digests[-1]: self.base_row}
        self.before_row = self.base_row = None

    def validate(self) -> None:
        """Raises AccountingError where the parts of the session disagree."""
        if self.matcher.length != len(self.tokens):
            raise AccountingError(f"session {self.handle}: matcher at {self.matcher.length}, history at {len(self.tokens)}")
        if self.digests != digest.chain(self.plan_digest, self.tokens):
            raise AccountingError(f"session {self.handle}: the digests are not those of the history")
        if not 0 <= self.matcher.native_length <= self.matcher.length:
            raise AccountingError(f"session {self.handle}: the native matcher holds {self.matcher.native_length} tokens")


class Sessions:
    """The sessions of one connection by handle. ``walk`` makes the walk of an entry (``walks.walk`` in production)."""

    def __init__(self, rows: RowStore, walk: Callable[[Session, StepEntry, RowStore], Walking]) -> None:
        self.rows = rows
        self._walk = walk
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, handle: int) -> Session | None:
        """The session of a handle, of whatever epoch."""
        return self._sessions.get(handle)

    def is_stale(self, handle: int, epoch: int) -> bool:
        """True where a newer epoch of the handle is here."""
        known = self._sessions.get(handle)
        return known is not None and known.epoch > epoch

    def open(self, message: Open, create: Callable[[], Matcher], now_s: float) -> Session | None:
        """Opens by fork or replay; None for a stale epoch. Raises BadRequest where ``committed`` is not in the language."""
        if self.is_stale(message.handle, message.epoch):
            return None
        parent = self._parent(message)
        matcher = create() if parent is None else parent.matcher.fork()
        session = Session(message.handle, message.epoch, message.plan_digest, matcher, now_s)
        if parent is not None:
            session.tokens, session.digests = list(parent.tokens), list(parent.digests)
            session.cut(len(message.committed))
        else:
            session.replay(message.committed)
        self._sessions[message.handle] = session
        return session

    def _parent(self, message: Open) -> Session | None:
        parent = self._sessions.get(message.parent) if message.parent is not None else None
        if parent is None or parent.broken is not None or parent.plan_digest != message.plan_digest:
            return None
        same = parent.tokens[: len(message.committed)] == message.committed
        return parent if same and parent.matcher.stop_ids == frozenset(message.stop_ids) else None

    def step(self, entry: StepEntry, now_s: float) -> Answer | Walking | None:
        """The answer from memory or by rule, the walk to run, or None for an entry that is out of date."""
        session = self._sessions.get(entry.handle)
        if session is None or entry.epoch > session.epoch:
            return Answer(StepStatus.RESYNC)
        if entry.epoch < session.epoch:
            return None
        session.last_used_s = now_s
        if session.answered is not None:
            last, answer = session.answered
            if entry.sequence_number < last.sequence_number:
                return None
            if entry.sequence_number == last.sequence_number:
                return full(answer) if entry == last else _failed("the same sequence number came with other bytes")
        if session.broken is not None:
            return Answer(StepStatus.FAILED, error=session.broken)
        return self._recorded(session, entry)

    def _recorded(self, session: Session, entry: StepEntry) -> Walking:
        session.walking = entry
        session.unfold()
        try:
            answer = yield from self._walk(session, entry, self.rows)
        except MaskstreamError as error:  # one request's failure, never the step's (R8)
            return session.fail(error)
        session.answered = (entry, answer)
        if answer.status is StepStatus.OK and not entry.draft_walk and not session.matcher.makes_row():
            session.base_row = session.rows.get(session.digests[-1])
        return answer

    def close(self, handle: int, epoch: int) -> None:
        """Ends a session, unless a newer epoch of the handle is here."""
        if not self.is_stale(handle, epoch):
            self._sessions.pop(handle, None)

    def clear(self) -> None:
        """Ends all sessions: the connection is a new one."""
        self._sessions.clear()

    def expire(self, now_s: float, lease_s: float) -> int:
        """Ends sessions that were silent for ``lease_s``; how many."""
        silent = [handle for handle, session in self._sessions.items() if now_s - session.last_used_s > lease_s]
        for handle in silent:
            del self._sessions[handle]
        return len(silent)

    def validate(self) -> None:
        """Raises AccountingError where a session disagrees with itself (a broken one may)."""
        for handle, session in self._sessions.items():
            if session.handle != handle:
                raise AccountingError(f"session {session.handle} is filed under {handle}")
            if session.broken is None:
                session.validate()


def full(answer: Answer | Row) -> Answer:
    """A row by itself is short for the answer that almost every entry has: OK, the golden token taken, this row."""
    return answer if isinstance(answer, Answer) else Answer(StepStatus.OK, 1, (answer,))


def _failed(message: str) -> Answer:
    return Answer(StepStatus.FAILED, error=AccountingError(message))
