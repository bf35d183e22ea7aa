"""Compiled grammars by (vocabulary, plan), bounded in bytes, each client in its share; a session that still uses an
evicted one keeps it alive."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from grammar_service.engines.base import GrammarMatcherFactory
from shared import metrics
from shared.errors import AccountingError, CompileCrashed, CompileTimeout, MaskstreamError
from shared.protocol import Plan

ENTRY_BYTES = 1_000  # the key, the plan's fields and the table's own share


class CompiledGrammar(NamedTuple):
    """A plan with its factory; ``first_row_share`` is the allowed share of the vocabulary at the start."""

    plan: Plan
    factory: GrammarMatcherFactory
    first_row_share: float

    @property
    def num_bytes(self) -> int:
        """What it occupies: the engine's part and the plan's text."""
        return self.factory.memory_bytes + len(self.plan.text.encode("utf-8", "surrogatepass")) + ENTRY_BYTES


class NegativeCache:
    """Errors of guides that took too long or crashed, for ``life_s``: not tried again meanwhile. At most ``max_entries``."""

    def __init__(self, life_s: float, max_entries: int = 10_000) -> None:
        self._life_s = life_s
        self._max_entries = max_entries
        self._entries: OrderedDict[tuple[str, str], tuple[float, MaskstreamError]] = OrderedDict()

    def get(self, key: tuple[str, str], now_s: float) -> MaskstreamError | None:
        until_s, error = self._entries.get(key, (0.0, None))
        return error if now_s < until_s else None

    def put(self, key: tuple[str, str], error: MaskstreamError, now_s: float) -> None:
        """Keeps an error of a kind that says nothing better will come of a second try."""
        if isinstance(error, (CompileTimeout, CompileCrashed)) and self._life_s > 0:
            self._entries[key] = (now_s + self._life_s, error)
            self._entries.move_to_end(key)
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)


Key = tuple[str, bytes]
"""(vocabulary fingerprint, digest of the plan)."""
Spelling = tuple[str, str]
"""(vocabulary fingerprint, guide key): guides that led to the same plan."""
MAX_SPELLINGS = 32  # of one grammar; the oldest is forgotten, and compiled again if it comes back
SPELLING_BYTES = 400


class _Entry:
    __slots__ = ("client", "grammar", "num_bytes", "spellings")

    def __init__(self, grammar: CompiledGrammar, client: str) -> None:
        self.grammar = grammar
        self.client = client
        self.num_bytes = grammar.num_bytes
        self.spellings: OrderedDict[Spelling, None] = OrderedDict()


class GrammarCache:
    """Least recently used, at most ``max_bytes`` always, of which one client holds at most ``client_bytes`` (default: all).

    An entry counts for the client that asked for it last. Who is beyond their share drops their own oldest; beyond the whole it is
    the oldest of all. A grammar larger than a client's share is not kept, and drops nothing.
    """

    def __init__(self, max_bytes: int, client_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._client_bytes = max_bytes if client_bytes is None else min(client_bytes, max_bytes)
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._by_spelling: dict[Spelling, Key] = {}
        self._by_client: dict[str, OrderedDict[Key, None]] = {}
        self._bytes_of: dict[str, int] = {}
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key | None, client: str | None = None) -> CompiledGrammar | None:
        """The grammar of a plan; from now on it counts for ``client``, if one is named."""
        entry = self._entries.get(key) if key is not None else None
        if key is None or entry is None:
            metrics.cache_misses_total.inc()
            return None
        metrics.cache_hits_total.inc()
        self._entries.move_to_end(key)
        self._take_over(key, entry, entry.client if client is None else client)
        return entry.grammar

    def find(self, spelling: Spelling, client: str | None = None) -> CompiledGrammar | None:
        """The grammar that a guide led to."""
        return self.get(self._by_spelling.get(spelling), client)

    def put(self, key: Key, grammar: CompiledGrammar, client: str = "", spelling: Spelling | None = None) -> CompiledGrammar:
        """Files a grammar under its plan and its guide. The one to use: another spelling may have led to it before (spec 137)."""
        entry = self._entries.get(key) or self._add(key, grammar, client)
        if entry is None:
            return grammar
        if spelling is not None:
            self._spell(key, entry, spelling)
        self._make_room(entry.client)
        return entry.grammar

    def _add(self, key: Key, grammar: CompiledGrammar, client: str) -> _Entry | None:
        entry = _Entry(grammar, client)
        if entry.num_bytes > self._client_bytes:
            return None
        self._entries[key] = entry
        self._by_client.setdefault(client, OrderedDict())[key] = None
        self._grow(entry, entry.num_bytes)
        return entry

    def _spell(self, key: Key, entry: _Entry, spelling: Spelling) -> None:
        if spelling in entry.spellings:
            return
        entry.spellings[spelling] = None
        self._by_spelling[spelling] = key
        if len(entry.spellings) > MAX_SPELLINGS:
            del self._by_spelling[entry.spellings.popitem(last=False)[0]]
        else:
            entry.num_bytes += SPELLING_BYTES
            self._grow(entry, SPELLING_BYTES)

    def _grow(self, entry: _Entry, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._bytes_of[entry.client] = self._bytes_of.get(entry.client, 0) + num_bytes

    def _take_over(self, key: Key, entry: _Entry, client: str) -> None:
        if client != entry.client:
            self._leave(key, entry)
            entry.client = client
            self._bytes_of[client] = self._bytes_of.get(client, 0) + entry.num_bytes
        self._by_client.setdefault(client, OrderedDict())[key] = None
        self._by_client[client].move_to_end(key)
        self._make_room(client)

    def _make_room(self, client: str) -> None:
        while self._bytes_of.get(client, 0) > self._client_bytes:
            self._evict(next(iter(self._by_client[client])))
        while self.num_bytes > self._max_bytes:
            self._evict(next(iter(self._entries)))
        metrics.cache_bytes.set(self.num_bytes)

    def _evict(self, key: Key) -> None:
        metrics.cache_evictions_total.inc()
        self._drop(key)

    def forget_vocabulary(self, fingerprint: str) -> None:
        """Drops what was compiled for a vocabulary that is no longer held."""
        for key in [key for key in self._entries if key[0] == fingerprint]:
            self._drop(key)
        metrics.cache_bytes.set(self.num_bytes)

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key)
        for spelling in entry.spellings:
            del self._by_spelling[spelling]
        self._leave(key, entry)
        self.num_bytes -= entry.num_bytes

    def _leave(self, key: Key, entry: _Entry) -> None:
        self._bytes_of[entry.client] -= entry.num_bytes
        del self._by_client[entry.client][key]
        if not self._by_client[entry.client]:
            del self._by_client[entry.client], self._bytes_of[entry.client]

    def validate(self) -> None:
        """Raises AccountingError where the books disagree."""
        held = sum(entry.num_bytes for entry in self._entries.values())
        spelled = {spelling: key for key, entry in self._entries.items() for spelling in entry.spellings}
        clients = {client: sum(self._entries[key].num_bytes for key in keys) for client, keys in self._by_client.items()}
        if held != self.num_bytes or clients != self._bytes_of or spelled != self._by_spelling:
            raise AccountingError("the cache's books disagree")
        if held > self._max_bytes or any(num_bytes > self._client_bytes for num_bytes in clients.values()):
            raise AccountingError("the cache holds more than it may")
