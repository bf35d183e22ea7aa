"""Compiled grammars by (vocabulary, plan), bounded in bytes; a session that still uses an evicted one keeps it alive."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from grammar_service.engines.base import GrammarMatcherFactory
from shared import metrics
from shared.errors import CompileCrashed, CompileTimeout, MaskstreamError
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


class GrammarCache:
    """Least recently used, at most ``max_bytes`` always (a grammar larger than that is not kept)."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Key, CompiledGrammar] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> CompiledGrammar | None:
        entry = self._entries.get(key)
        if entry is None:
            metrics.cache_misses_total.inc()
            return None
        metrics.cache_hits_total.inc()
        self._entries.move_to_end(key)
        return entry

    def put(self, key: Key, grammar: CompiledGrammar) -> None:
        self._drop(key)
        self._entries[key] = grammar
        self.num_bytes += grammar.num_bytes
        while self.num_bytes > self._max_bytes:
            metrics.cache_evictions_total.inc()
            self._drop(next(iter(self._entries)))
        metrics.cache_bytes.set(self.num_bytes)

    def forget_vocabulary(self, fingerprint: str) -> None:
        """Drops what was compiled for a vocabulary that is no longer held."""
        for key in [key for key in self._entries if key[0] == fingerprint]:
            self._drop(key)
        metrics.cache_bytes.set(self.num_bytes)

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry.num_bytes
