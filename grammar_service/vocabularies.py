"""Vocabularies that workers send, by fingerprint: assembled from chunks, made into engines off the loop, shared by all workers."""

from __future__ import annotations

import ctypes
import gc
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from grammar_service.engines.base import Engine
from grammar_service.gate_table import GateTables
from grammar_service.rows import RowStore
from shared.errors import BadRequest
from shared.protocol import VocabularyChunk, Welcome
from shared.tokenizer import CHUNK_BYTES

WINDOW = 4  # chunks asked for ahead of what has arrived


class Loaded(NamedTuple):
    """Engines, rows and reasoning gates over one vocabulary."""

    fingerprint: str
    vocab_size: int
    engines: dict[str, Engine]
    rows: RowStore | None  # None where no session is held (the processes that try guides)
    gates: GateTables | None = None  # None there too


class Assembly:
    """A vocabulary on its way from one link; another link takes over if that one goes."""

    def __init__(self, welcome: Welcome, max_bytes: int) -> None:
        chunks = -(-welcome.vocabulary_bytes // CHUNK_BYTES)
        if not 0 < welcome.vocabulary_bytes <= max_bytes or welcome.num_chunks != chunks:
            raise BadRequest(f"{welcome.vocabulary_bytes} bytes in {welcome.num_chunks} chunks", field="vocabulary_bytes")
        self.fingerprint = welcome.fingerprint
        self.num_bytes = welcome.vocabulary_bytes
        self.link: int | None = None
        self._chunks: list[bytes | None] = [None] * chunks
        self._asked = 0

    def ask(self, link: int) -> Iterator[int]:
        """Chunk numbers to ask of ``link`` now."""
        if self.link != link:
            self.link, self._asked = link, self._first_missing()
        limit = min(len(self._chunks), self._first_missing() + WINDOW)
        while self._asked < limit:
            yield self._asked
            self._asked += 1

    def take(self, message: VocabularyChunk) -> bytes | None:
        """Stores a chunk; the whole table once it is complete. Raises BadRequest for a chunk that cannot be one."""
        if not 0 <= message.chunk < len(self._chunks):
            raise BadRequest(f"there is no chunk {message.chunk}", field="chunk")
        self._chunks[message.chunk] = message.data
        if self._first_missing() < len(self._chunks):
            return None
        data = b"".join(chunk for chunk in self._chunks if chunk is not None)
        if len(data) != self.num_bytes:
            raise BadRequest(f"{len(data)} bytes arrived, {self.num_bytes} were announced", field="vocabulary_bytes")
        return data

    def _first_missing(self) -> int:
        return next((i for i, chunk in enumerate(self._chunks) if chunk is None), len(self._chunks))


class Vocabularies:
    """What is loaded, least recently welcomed dropped beyond ``limit``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()

    def get(self, fingerprint: str) -> Loaded | None:
        loaded = self._loaded.get(fingerprint)
        if loaded is not None:
            self._loaded.move_to_end(fingerprint)
        return loaded

    def put(self, loaded: Loaded) -> list[str]:
        """Adds one; the fingerprints dropped for it."""
        self._loaded[loaded.fingerprint] = loaded
        dropped = []
        while len(self._loaded) > self._limit:
            dropped.append(self._loaded.popitem(last=False)[0])
        return dropped

    def __len__(self) -> int:
        return len(self._loaded)


def give_back_memory() -> None:
    """Returns to the system what building a vocabulary's tables left free (about 30 MB with glibc)."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
    if trim is not None:
        trim(0)
