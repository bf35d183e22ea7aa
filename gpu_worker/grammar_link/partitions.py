"""Which connection may write which rows of the pool, and which generation is at each index. Pure."""

from __future__ import annotations

from gpu_worker.grammar_link.settings import LinkSettings
from shared.bitmask import SPARSE_MAX_IDS, num_words
from shared.protocol import PoolWrite, WireRow


class Partition:
    """The indices ``base`` to ``base + rows - 1``, written by one connection."""

    __slots__ = ("_generations", "base", "rows")

    def __init__(self, base: int, rows: int) -> None:
        self.base, self.rows = base, rows
        self._generations: dict[int, int] = {}

    def write(self, write: PoolWrite, frame_bytes: tuple[int, ...], vocab_size: int) -> bool:
        """Notes a write; False (nothing noted) where it cannot be right."""
        if not self.base <= write.index < self.base + self.rows or write.generation <= self._generations.get(write.index, -1):
            return False
        if not _content_fits(write, frame_bytes, vocab_size):
            return False
        self._generations[write.index] = write.generation
        return True

    def holds(self, row: WireRow) -> bool:
        """Whether a row of kind POOL refers to what was last written there."""
        return self._generations.get(row.value) == row.generation


def _content_fits(write: PoolWrite, frame_bytes: tuple[int, ...], vocab_size: int) -> bool:
    if not write.ids:
        return write.frame < len(frame_bytes) and frame_bytes[write.frame] == 4 * num_words(vocab_size)
    return ids_fit(write.ids, vocab_size)


def ids_fit(ids: bytes, vocab_size: int) -> bool:
    """Whether these are int32 ids below ``vocab_size``, one to SPARSE_MAX_IDS of them."""
    if not 0 < len(ids) <= 4 * SPARSE_MAX_IDS or len(ids) % 4:
        return False
    numbers = memoryview(ids).cast("i")
    return min(numbers) >= 0 and max(numbers) < vocab_size


class Partitions:
    """The whole pool: ``pool_services`` partitions of ``pool_rows``. One is given away again when its last reader has retired."""

    def __init__(self, settings: LinkSettings) -> None:
        self._rows = settings.pool_rows
        self._free = [number * self._rows for number in range(settings.pool_services)] if self._rows else []
        self._leaving: list[tuple[int, int]] = []

    def grant(self, retired_step: int) -> Partition | None:
        """A partition for a new connection; None where all are taken: its rows travel inline."""
        ended = [(base, step) for base, step in self._leaving if step <= retired_step]
        self._leaving = [left for left in self._leaving if left not in ended]
        self._free += [base for base, _ in ended]
        self._free.sort(reverse=True)
        return Partition(self._free.pop(), self._rows) if self._free else None

    def release(self, partition: Partition, step: int) -> None:
        """Its connection ended while step ``step`` was the last one that may have read from it."""
        self._leaving.append((partition.base, step))

    @property
    def num_unused(self) -> int:
        """Partitions that belong to no connection."""
        return len(self._free) + len(self._leaving)
