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
    depth, drafting = np.ones(len(positions), np.int32), [row for row in rows if row.progress.depth > 1]
    for row in drafting:
        depth[row.slot] = row.progress.depth
    if not drafting:
        return None
    nodes = {row.slot: [_Future(row.slot, [], row.state, row.top_p)] for row in drafting}
    ahead: list[AheadRows] = []
    for node in range(1, int(depth.max())):
        futures, levels = [], np.zeros_like(positions)
        for row in drafting:
            if depth[row.slot] > node:
                tree, known = row.progress.tree, nodes[row.slot]
                known.append(known[tree.parent(node)].pushed(tree.tokens[node - 1]))
                futures.append(known[-1])
                levels[row.slot] = len(known[-1].seen)
        ahead.append(AheadRows(_rows(params.rows(positions + levels), futures), _overlay(overlay, futures, len(positions))))
    drawn = {row.slot: row.progress.tree.distributions for row in drafting if row.progress.tree.distributions}
    return Ahead(depth, tuple(ahead), drawn)


class _Future:
    """One text at a node of its drafts: ``seen`` are those on the way there."""

    def __init__(self, slot: int, seen: list[int], state: TokenState, top_p: TopPDecay | None) -> None:
        self.slot, self.seen, self.state, self.top_p = slot, seen, state, top_p

    def pushed(self, token_id: int) -> _Future:
        further = _Future(self.slot, [*self.seen, token_id], self.state.fork(), copy.copy(self.top_p))
        further.state.push(token_id)
        if further.top_p is not None:
            further.top_p.push(token_id)
        return further


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
    prefixes = torch.full((slots, max((len(future.seen) for future in futures), default=0)), -1, dtype=torch.int32)
    for future in futures:
        prefixes[future.slot, : len(future.seen)] = torch.tensor(future.seen, dtype=torch.int32)
    return prefixes
