"""The rows of one step as they come in: written by the link's thread, waited for and sealed once by the step loop."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from gpu_worker.grammar_link.row_pool import PooledRow
from gpu_worker.grammar_link.rows import Source, write_row, write_rows
from gpu_worker.grammar_link.walks import HELD, Outcome, SessionId, Walk, WalkStatus
from shared.bitmask import Words
from shared.errors import MaskstreamError
from shared.protocol import StepAnswerEntry

OK = int(WalkStatus.OK)
STATUS = {int(status): status for status in WalkStatus}


class Delivered(NamedTuple):
    """An answer that fits its walk, what its rows refer to, the session's stop set, and who answered."""

    entry: StepAnswerEntry
    sources: Sequence[Source]
    stop_ids: frozenset[int]
    service: str


@functools.lru_cache(maxsize=4096)
def _plain_outcome(kind: int, service: str) -> Outcome:
    """That of almost every walk: the golden token was taken, and this is its row."""
    return Outcome(WalkStatus.OK, 1, 1, (kind,), (), None, service)


class StepTicket:
    """One step's walks. Rows go straight into ``out`` (int32 [rows, W], the caller's), until ``seal`` closes it.

    ``origins``: rows of ``out`` that came from a pool, by the pooled row they are: the same object means the same words.
    ``held`` is the link's set of sessions that hold: ``wait`` does not wait for them, ``seal`` brings the set up to date.
    """

    def __init__(self, walks: Sequence[Walk], out: Words, held: set[SessionId]) -> None:
        self._walks = {walk.session: walk for walk in walks}
        self._out = out
        self._held, self._awaited = held, self._walks.keys() - held
        self._outcomes: dict[SessionId, Outcome] = {}
        self.origins: dict[int, Hashable] = {}
        self._changed = threading.Condition()
        self._sealed = False
        self._sent = threading.Event()

    def wait_sent(self, timeout_s: float) -> bool:
        """True when the walks are on their way: until then the link has more need of the interpreter than whoever waits for
        rows."""
        return self._sent.wait(timeout_s)

    def wait(self, timeout_s: float, *, for_held: bool = False) -> bool:
        """True when every awaited answer is in, False when the time has passed. With ``for_held``, a step in which every walk held
        before waits for any of them (a loop with nothing else to do would spin otherwise)."""
        until_s = time.monotonic() + timeout_s
        with self._changed:
            while not self._is_done(for_held):
                left_s = until_s - time.monotonic()
                if left_s <= 0 or self._sealed:
                    return False
                self._changed.wait(left_s)
            return True

    def seal(self) -> Mapping[SessionId, Outcome]:
        """Closes the ticket: from now on nothing is written to its rows. One outcome a walk; HOLD where no answer came."""
        with self._changed:
            self._sealed = True
        holding = self._walks.keys() - self._outcomes.keys()
        self._held.difference_update(self._walks)
        self._held.update(holding)
        return {session: self._outcomes.get(session, HELD) for session in self._walks}

    @property
    def sessions(self) -> list[SessionId]:
        return list(self._walks)

    def _is_done(self, for_held: bool) -> bool:
        if for_held and not self._awaited:
            return bool(self._outcomes) or not self._walks
        return self._awaited <= self._outcomes.keys()

    # ---- the link's thread ---------------------------------------------------------------------------------------------------

    def deliver(self, answers: Sequence[Delivered]) -> None:
        """Writes answers that fit, unless the ticket is sealed."""
        with self._changed:
            if self._sealed:
                return
            for entry, sources, stop_ids, service in answers:
                walk = self._walks.get(entry.handle)
                if walk is None:
                    continue
                for at, source in enumerate(sources[: walk.num_rows]):
                    if isinstance(source, PooledRow):
                        self.origins[walk.row + at] = source
                if len(walk.path) < 2 and len(entry.rows) == 1:
                    write_row(entry.rows[0], sources[0], self._out[walk.row], stop_ids)
                else:
                    write_rows(entry, sources, self._out, walk.row, walk.num_rows, stop_ids)
                self._outcomes[entry.handle] = _outcome(entry, service)
            self._tell()

    def sent(self) -> None:
        """The walks went out, as far as there are services for them."""
        self._sent.set()

    def fail(self, session: SessionId, error: MaskstreamError) -> None:
        """Ends one walk with an error; its rows allow nothing."""
        with self._changed:
            if not self._sealed and session in self._walks:
                walk = self._walks[session]
                self._out[walk.row : walk.row + walk.num_rows] = 0
                self._outcomes[session] = Outcome(WalkStatus.FAILED, error=error)
                self._tell()

    def _tell(self) -> None:
        if self._is_done(for_held=True):
            self._changed.notify_all()


def _outcome(entry: StepAnswerEntry, service: str) -> Outcome:
    rows = entry.rows
    if entry.status == OK and entry.num_advanced == len(rows) == 1 and not entry.forced:
        return _plain_outcome(rows[0].kind, service)
    kinds = tuple([row.kind for row in rows])
    error = entry.error.exception() if entry.error else None
    return Outcome(STATUS[entry.status], entry.num_advanced, entry.num_guided, kinds, tuple(entry.forced), error, service)
