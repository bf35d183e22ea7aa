"""The lane for sessions that were unanswered when their service died: replayed one by one, so that a killer is found alone.

A strike is one service that died while this guide alone was under suspicion: on the lane, or because nothing else was at work. A
guide fails by key at its second strike; an answer to its session on the lane clears it. Deaths with several guides at work only
send their sessions to the lane: services are killed for other reasons too, and no such kill may end an innocent text.
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
        self._strikes: dict[str, tuple[int, float]] = {}
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
        self._strikes = {key: entry for key, entry in self._strikes.items() if now_s < entry[1]}
        if not alone:
            return []
        failed = []
        for key in sorted(set(keys)):
            count, _ = self._strikes.get(key, (0, 0.0))
            self._strikes[key] = (count + 1, now_s + self._ttl_s)
            if count + 1 >= MAX_STRIKES:
                failed.append(key)
        return failed

    def clear(self, key: str) -> None:
        self._strikes.pop(key, None)

    def sessions(self) -> list[SessionId]:
        """Everything on the lane."""
        return [*self._queue, *([] if self.under_test is None else [self.under_test])]
