"""Who has which unfinished requests: the front door's pure bookkeeping. Exactly one terminal reply a request."""

from __future__ import annotations

from shared.errors import BadRequest, Overloaded

Key = tuple[bytes, str]
"""(routing id of the connection, request id)"""


class Clients:
    """Counts and names of unfinished requests by connection."""

    def __init__(self, max_requests: int, max_requests_per_client: int) -> None:
        self._max_requests = max_requests
        self._max_per_client = max_requests_per_client
        self._open: dict[bytes, set[str]] = {}
        self._total = 0

    def add(self, client: bytes, request_id: str) -> None:
        """Takes a request in. Raises BadRequest for an id in use, Overloaded where there is no room."""
        mine = self._open.get(client, set())
        if request_id in mine:
            raise BadRequest(f"{request_id!r} is in use by an unfinished request", field="request_id")
        if len(mine) >= self._max_per_client:
            raise Overloaded(f"{len(mine)} unfinished requests of this connection; {self._max_per_client} are allowed")
        if self._total >= self._max_requests:
            raise Overloaded(f"{self._total} unfinished requests; this worker takes {self._max_requests}")
        self._open.setdefault(client, set()).add(request_id)
        self._total += 1

    def finish(self, client: bytes, request_id: str) -> bool:
        """Ends a request; False where it is not open (a second ending is never sent)."""
        mine = self._open.get(client)
        if mine is None or request_id not in mine:
            return False
        mine.discard(request_id)
        self._total -= 1
        if not mine:
            del self._open[client]
        return True

    def drop(self, client: bytes) -> list[str]:
        """Forgets a connection; returns what it had open."""
        mine = sorted(self._open.pop(client, set()))
        self._total -= len(mine)
        return mine

    def of(self, client: bytes) -> list[str]:
        return sorted(self._open.get(client, set()))

    def connections(self) -> list[bytes]:
        """Connections that have open requests."""
        return list(self._open)

    def is_open(self, client: bytes, request_id: str) -> bool:
        return request_id in self._open.get(client, set())

    @property
    def total(self) -> int:
        return self._total

    def validate(self) -> None:
        """Raises RuntimeError where the counts disagree."""
        if self._total != sum(map(len, self._open.values())) or any(not mine for mine in self._open.values()):
            raise RuntimeError(f"client counts disagree: {self._total} against {self._open}")
