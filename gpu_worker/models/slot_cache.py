"""The KV cache by slot and position: static tensors that a forward writes at its rows' own positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache

VISIBLE_BLOCK = 512
"""Attention on the CPU goes over keys in blocks of 512 and a block that is masked out whole changes no bit of the result, so
blocks that no row has reached can be left out."""


@dataclass(frozen=True, slots=True)
class ForwardRows:
    """Where one forward reads and writes: B rows of T tokens.

    ``slots`` the slice of slots that the B rows are; ``write`` int64 [B, T], the cache index of each token's key and value
    (dead tokens share the spare index past the last position); ``positions`` int64 [B, T]; ``mask`` bool [B, 1, T, L], True
    where a token looks, for the first ``L`` = ``visible`` cache indices.
    """

    slots: slice
    visible: int
    write: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor


class SlotCache(Cache):
    """Keys and values [layers, slots, kv_heads, L, head_dim] in the model's dtype; L = max_length + 1.

    ``rows`` must be set before a forward. The class stands in for the library's cache, of which a forward with positions and a
    4-D mask calls only ``update``.
    """

    def __init__(
        self, *, layers: int, slots: int, kv_heads: int, max_length: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__(layers=[])
        shape = (layers, slots, kv_heads, max_length + 1, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self._spare = max_length
        self._columns = torch.arange(max_length + 1, device=device)
        self._slot_index = torch.arange(slots, device=device)[:, None]
        self._rows: ForwardRows | None = None

    @property
    def num_bytes(self) -> int:
        return 2 * self.keys.numel() * self.keys.element_size()

    def visible_blocks(self, first: torch.Tensor, lengths: torch.Tensor) -> int:
        """Cache indices that attention must go over, in whole blocks. Reads the tensors: for the CPU only."""
        reach = int(torch.where(lengths > 0, first + lengths, 1).max())
        return min(-(-reach // VISIBLE_BLOCK) * VISIBLE_BLOCK, self._spare + 1)

    def place(
        self, slots: slice, first: torch.Tensor, lengths: torch.Tensor, width: int, visible: int | None = None,
        parents: torch.Tensor | None = None,
    ) -> ForwardRows:  # fmt: skip
        """Rows for tokens at ``first`` [B] .. ``first + lengths`` [B]; all later calls of ``update`` go there.

        ``parents`` int64 [B, T] (None: chains): a token's position is one behind its parent's, and of the tokens of its row it sees
        its ancestors alone. A dead token looks at index 0 alone: a token that sees nothing would make NaN, which 0 * NaN would
        then spread.
        """
        step = torch.arange(width, device=self.keys.device)
        live = step < lengths[:, None]
        places = torch.where(live, first[:, None] + step, 0)
        write = torch.where(live, places, self._spare)
        columns = self._columns[:visible]
        if parents is None:
            positions, mask = places, (columns <= places[:, :, None])[:, None]
        else:
            above = ancestors(parents)
            positions = torch.where(live, first[:, None] + above.sum(2) - 1, 0)
            mask = torch.where(live[:, :, None], _tree_mask(columns, first, above), columns == 0)[:, None]
        self._rows = ForwardRows(slots, columns.shape[0], write, positions, mask)
        return self._rows

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes [B, kv_heads, T, head_dim] and returns the rows' keys and values, [B, kv_heads, L, head_dim]."""
        if self._rows is None:
            raise RuntimeError("place() comes before a forward")
        keys, values = self.keys[layer_idx, self._rows.slots], self.values[layer_idx, self._rows.slots]
        where = (self._slot_index[: keys.shape[0]], slice(None), self._rows.write)
        keys[where] = key_states.transpose(1, 2)
        values[where] = value_states.transpose(1, 2)
        return keys[:, :, : self._rows.visible], values[:, :, : self._rows.visible]

    def copy_slot(self, source: int, target: int, num_tokens: int) -> None:
        """The first ``num_tokens`` positions of one slot become those of another."""
        for part in (self.keys, self.values):
            part[:, target, :, :num_tokens] = part[:, source, :, :num_tokens]

    def keep(self, slot: int, first: int, nodes: torch.Tensor) -> None:
        """The entries at ``first`` + ``nodes`` int64 [n], ascending, become those from ``first`` on."""
        for part in (self.keys, self.values):
            part[:, slot, :, first : first + len(nodes)] = part[:, slot, :, first + nodes]

    def reset_slot(self, slot: int) -> None:
        """Zeroes a slot: nothing of one owner, NaN included, may reach the next."""
        self.keys[:, slot].zero_()
        self.values[:, slot].zero_()


def ancestors(parents: torch.Tensor) -> torch.Tensor:
    """bool [B, T, T] of ``parents`` int64 [B, T]: whether token j is i itself or above it, at [b, i, j]."""
    batch, width = parents.shape
    above = torch.eye(width, dtype=torch.bool, device=parents.device).repeat(batch, 1, 1)
    rows = torch.arange(batch, device=parents.device)
    for node in range(1, width):
        above[:, node] |= above[rows, parents[:, node]]
    return above


def _tree_mask(columns: torch.Tensor, first: torch.Tensor, above: torch.Tensor) -> torch.Tensor:
    """bool [B, T, L]: what was there before, and of the tokens from ``first`` [B] on the ancestors."""
    batch, width, _ = above.shape
    behind = columns - first[:, None]
    inside = ((behind >= 0) & (behind < width))[:, None]
    seen = above.gather(2, behind.clamp(0, width - 1)[:, None].expand(batch, width, -1))
    return (behind < 0)[:, None] | (inside & seen)
