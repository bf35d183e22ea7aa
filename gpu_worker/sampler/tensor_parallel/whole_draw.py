"""The draw of rows whose kept columns lie all over the vocabulary: each rank's mass is told, and the rank in whose part the target
falls finds the column there."""

from __future__ import annotations

import torch
from torch import Tensor

from gpu_worker.sampler.tensor_parallel import weights
from gpu_worker.sampler.tensor_parallel.group import Group

_TILE = 256


def draw_whole(mass: Tensor, column: Tensor, bits: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Column int64 [R] (-1: no mass) and kept mass [R] over all ranks, from the kept masses [R, width] of this rank's columns."""
    tiles = torch.nn.functional.pad(mass, (0, -mass.shape[1] % _TILE)).view(len(mass), -1, _TILE)
    running = tiles.sum(2).cumsum(1)
    by_rank = group.gather(running[:, -1].contiguous())
    total = by_rank.sum(0)
    target = weights.high64(bits, total) - by_rank[: group.rank].sum(0)
    mine = (target >= 0) & (target < running[:, -1])
    found = column[_locate(tiles, running, target).clamp(max=len(column) - 1)]
    return group.maximum(torch.where(mine, found, -1)), total


def _locate(tiles: Tensor, running: Tensor, target: Tensor) -> Tensor:
    """Where the running mass first exceeds the target, by way of the tile that holds it."""
    tile = (running <= target.unsqueeze(1)).sum(1).clamp(max=running.shape[1] - 1)
    at = tile.view(-1, 1, 1).expand(-1, 1, tiles.shape[2])
    inside = tiles.gather(1, at).squeeze(1).cumsum(1)
    before = running.gather(1, tile.unsqueeze(1)).squeeze(1) - inside[:, -1]
    return tile * tiles.shape[2] + (inside <= (target - before).unsqueeze(1)).sum(1)
