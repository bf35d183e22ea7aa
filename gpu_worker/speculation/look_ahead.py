"""What each drafted position of a launch is sampled with: a text's parameters as they are if the drafts before it stand (R19)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.sampler.slot_params import SlotSamplingParams
from gpu_worker.sampler.token_state import TokenState
from gpu_worker.sampler.top_p_decay import TopPDecay
from gpu_worker.speculation.ahead import Ahead, AheadRows
from gpu_worker.speculation.progress import DraftProgress
from kernels.reference import Overlay, SampleRows, TokenList


class Row(Protocol):
    """A sequence as it is looked ahead for. ``state`` and ``top_p`` have seen its committed tokens."""

    slot: int
    state: TokenState
    top_p: TopPDecay | None
    progress: DraftProgress


def look_ahead(
    rows: Sequence[Row], params: SlotSamplingParams, positions: NDArray[np.int64], overlay: Overlay | None
) -> Ahead | None:
    """For a launch of ``rows`` at output ``positions`` int64 [slots] with the first positions' ``overlay``; None without drafts."""
    depth = np.ones(len(positions), np.int32)
    for row in rows:
        depth[row.slot] = row.progress.depth
    futures = [_Future(row) for row in rows if row.progress.depth > 1]
    if not futures:
        return None
    ahead: list[AheadRows] = []
    for position in range(1, int(depth.max())):
        futures = [future for future in futures if depth[future.slot] > position]
        for future in futures:
            future.push()
        ahead.append(AheadRows(_rows(params.rows(positions + position), futures), _overlay(overlay, futures, len(positions))))
    return Ahead(depth, tuple(ahead))


class _Future:
    """One text, one draft further at each ``push``."""

    def __init__(self, row: Row) -> None:
        self.slot, self._drafts = row.slot, row.progress.drafts
        self.seen: list[int] = []
        self.state, self.top_p = row.state.fork(), copy.copy(row.top_p)

    def push(self) -> None:
        token_id = self._drafts[len(self.seen)]
        self.seen.append(token_id)
        self.state.push(token_id)
        if self.top_p is not None:
            self.top_p.push(token_id)


def _rows(rows: SampleRows, futures: list[_Future]) -> SampleRows:
    for future in futures:
        if future.top_p is not None:
            rows.top_p[future.slot] = float(future.top_p.value)
    return rows


def _overlay(first: Overlay | None, futures: list[_Future], slots: int) -> Overlay | None:
    bans: list[list[int]] = [[] for _ in range(slots)]
    for future in futures:
        bans[future.slot] = sorted(future.state.banned())
    banned = TokenList.of(bans) if any(bans) else None
    if first is None:
        return Overlay(bans=banned) if banned is not None else None
    penalties = None if first.penalties is None else replace(first.penalties, prefix=_prefixes(futures, slots))
    return Overlay(first.bias, penalties, banned)


def _prefixes(futures: list[_Future], slots: int) -> torch.Tensor:
    """The drafts before this position, counted as if they were output."""
    prefixes = torch.full((slots, len(futures[0].seen) if futures else 0), -1, dtype=torch.int32)
    for future in futures:
        prefixes[future.slot] = torch.tensor(future.seen, dtype=torch.int32)
    return prefixes
