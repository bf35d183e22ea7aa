"""The lane for sessions that were unanswered when their service died: replayed one by one, so that a killer is found alone.

A strike is one dead service that a guide may have killed. A guide fails by key at its second strike, if one of them fell on the
lane, where nothing else was under suspicion; an answer to its session on the lane clears it.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_worker.grammar_link.walks import SessionId

MAX_STRIKES = 2


class Quarantine:
    """Queue of suspects, the one under test, and strikes by guide key."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._queue: dict[SessionId, None] = {}
        self._strikes: dict[str, tuple[int, bool, float]] = {}
        self.under_test: SessionId | None = None

    def __contains__(self, session: SessionId) -> bool:
        return session in self._queue or session == self.under_test

    def add(self, session: SessionId) -> None:
        if session not in self:
            self._queue[session] = None

    def discard(self, session: SessionId) -> None:
        self._queue.pop(session, None)
        if self.under_test == session:
            self.under_test = None

    def next(self) -> SessionId | None:
        """The next suspect to test, which is then under test; None while one is, or where none is left."""
        if self.under_test is not None or not self._queue:
            return None
        self.under_test = next(iter(self._queue))
        del self._queue[self.under_test]
        return self.under_test

    def put_back(self) -> None:
        """The one under test could not be placed: it is first in the queue again."""
        if self.under_test is not None:
            self._queue = {self.under_test: None, **self._queue}
            self.under_test = None

    def strike(self, keys: Iterable[str], now_s: float, *, alone: bool) -> list[str]:
        """A service died under these guides (``alone``: on the lane). Gives the keys that fail by it."""
        self._strikes = {key: entry for key, entry in self._strikes.items() if now_s < entry[2]}
        failed = []
        for key in sorted(set(keys)):
            count, was_alone, _ = self._strikes.get(key, (0, False, 0.0))
            self._strikes[key] = (count + 1, was_alone or alone, now_s + self._ttl_s)
            if count + 1 >= MAX_STRIKES and (was_alone or alone):
                failed.append(key)
        return failed

    def clear(self, key: str) -> None:
        self._strikes.pop(key, None)

    def sessions(self) -> list[SessionId]:
        """Everything on the lane."""
        return [*self._queue, *([] if self.under_test is None else [self.under_test])]
