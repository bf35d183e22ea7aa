"""Sealer: a launch's descriptor into the memory that the device reads, its result out of it. NumPy alone: no tensor is made in a
step.

What does not fit its list (bias, bans) fails the request that it belongs to, by name; the counts of new owners that do not fit wait
for the next launch.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.descriptor import Descriptor, LaunchResult, SlotAction
from gpu_worker.row_cache import RowCache
from gpu_worker.step_buffers import StepShape
from kernels.block import Block
from kernels.reference import Overlay, SampleRows, TokenList
from kernels.step import ASK_PROCESSED, ASK_RAW, StepSizes
from shared import metrics
from shared.errors import MaskstreamError

_PARAMETERS = ("temperature", "top_p", "min_p", "top_k", "seed", "offset")


@dataclass(slots=True)
class Sealed:
    """What the host remembers of a launch: its shape, how many alternatives it tells, whose counts began anew, whose logits are
    kept where, what failed, which places of the row cache a slot fills."""

    shape: StepShape
    num_logprobs: int | None = None
    fresh: dict[int, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)
    filled: list[tuple[int, Hashable, int]] = field(default_factory=list)


class Sealer:
    """``write`` for each launch in order, ``read`` for each that has ended."""

    def __init__(self, sizes: StepSizes) -> None:
        self._sizes = sizes
        self._cache = RowCache(sizes.cached)
        self._counted = np.zeros(sizes.slots, np.int64)  # whose counts the device has

    def forget(self, slot: int) -> None:
        """The slot has no owner: its counts are nobody's."""
        self._counted[slot] = 0

    def write(self, block: Block, descriptor: Descriptor, shape: StepShape) -> Sealed:
        """All but the launch number. Raises RuntimeError for an overlay in a step that has none."""
        sealed = Sealed(shape, descriptor.num_logprobs)
        action = block["action"]
        action[:], block["epoch"][:] = descriptor.action, descriptor.epoch
        block["depth"][:] = 1 if descriptor.ahead is None else descriptor.ahead.depth
        if descriptor.rows is not None:
            for at, rows in enumerate(_by_position(descriptor)[: shape.width]):
                for name in _PARAMETERS:
                    block[name][at] = getattr(rows, name).numpy()
        bits = descriptor.bitmask.numpy()
        if bits.ctypes.data != block["rows"].ctypes.data:
            block["rows"][: len(bits)] = bits
        acting = action <= SlotAction.GUIDED
        if shape.full:
            self._features(block, descriptor, sealed, acting)
        elif self._wants_more(descriptor, acting):
            raise RuntimeError("a launch without overlays was given one")
        for slot in sealed.errors:
            action[slot] = SlotAction.HOLD
        copied = self._place_rows(block, descriptor, sealed)
        metrics.gpu_copied_bytes_total.inc(copied * self._sizes.words * 4)
        return sealed

    def _place_rows(self, block: Block, descriptor: Descriptor, sealed: Sealed) -> int:
        """Rows that are on the device already are not copied; returns how many are."""
        copied, most, origins = 0, self._sizes.most, descriptor.origins if self._sizes.cached else None
        cached, fill = block["cached"], block["fill"]
        depths = np.minimum(block["depth"], sealed.shape.width).tolist()
        for slot in np.flatnonzero(block["action"] == SlotAction.GUIDED).tolist():
            for row in range(slot * most, slot * most + depths[slot]):
                origin = None if origins is None else origins[row]
                if origin is None:
                    cached[row], copied = -1, copied + 1
                    continue
                index, new = self._cache.place(origin)
                cached[row], fill[row] = index, new
                if new:
                    copied += 1
                    sealed.filled.append((slot, origin, index))
        return copied

    def _wants_more(self, descriptor: Descriptor, acting: NDArray[np.bool_]) -> bool:
        overlay = descriptor.overlay
        if any(acting[slot] for slot in descriptor.return_logits):
            return True
        if overlay is None:
            return False
        listed = any(each is not None and (np.diff(each.start.numpy())[acting] > 0).any() for each in (overlay.bias, overlay.bans))
        return listed or (overlay.penalties is not None and bool((overlay.penalties.slot.numpy()[acting] >= 0).any()))

    # ---- overlays and log-probabilities ----

    def _features(self, block: Block, descriptor: Descriptor, sealed: Sealed, acting: NDArray[np.bool_]) -> None:
        asks = np.zeros(self._sizes.slots, np.int32)
        if descriptor.num_logprobs is not None:
            asks[:] = ASK_RAW
            if descriptor.processed is not None:
                asks[descriptor.processed] = ASK_PROCESSED
            if descriptor.asking is not None:
                asks[~descriptor.asking] = 0
        block["asks"][:] = asks
        self._keep(block, descriptor, sealed, acting)
        self._bias(block, descriptor.overlay, sealed, acting)
        self._bans(block, descriptor, sealed, acting)
        self._penalties(block, descriptor, sealed, acting)

    def _keep(self, block: Block, descriptor: Descriptor, sealed: Sealed, acting: NDArray[np.bool_]) -> None:
        """The first rows of logits that are to be told find a place; the others hold until one is free."""
        block["keep"][:] = -1
        for slot in descriptor.return_logits:
            if acting[slot] and len(sealed.kept) < self._sizes.kept:
                block["keep"][slot] = sealed.kept[slot] = len(sealed.kept)
                block["depth"][slot] = 1
            elif acting[slot]:
                block["action"][slot] = SlotAction.HOLD

    def _bias(self, block: Block, overlay: Overlay | None, sealed: Sealed, acting: NDArray[np.bool_]) -> None:
        bias, shape = None if overlay is None else overlay.bias, sealed.shape
        counts = np.zeros(shape.active, np.int64)
        if bias is not None and bias.values is not None:
            start = bias.start.numpy()
            used = min(int(start[-1]), self._sizes.listed)
            block["bias_from"][:] = start[:-1]
            block["bias_ids"][:used], block["bias_values"][:used] = bias.ids.numpy()[:used], bias.values.numpy()[:used]
            counts = np.where(acting, np.diff(start), 0)[: shape.active]
            counts = self._fitting(counts * shape.width, "logit_bias", sealed, start[1 : shape.active + 1]) // shape.width
        _write_starts(block["bias_start"], np.repeat(counts, shape.width))

    def _bans(self, block: Block, descriptor: Descriptor, sealed: Sealed, acting: NDArray[np.bool_]) -> None:
        shape, used = sealed.shape, 0
        counts = np.zeros((shape.active, shape.width), np.int64)
        begins = np.zeros((shape.active, shape.width), np.int64)
        for at, bans in enumerate(_bans_by_position(descriptor)[: shape.width]):
            if bans is None:
                continue
            start = bans.start.numpy()
            counts[:, at] = np.where(acting, np.diff(start), 0)[: shape.active]
            begins[:, at] = used + start[:-1][: shape.active]
            room = min(int(start[-1]), self._sizes.listed - used)
            block["ban_ids"][used : used + room] = bans.ids.numpy()[:room]
            used += int(start[-1])
            if used > self._sizes.listed:
                break
        ends = (begins + counts).max(axis=1, initial=0)
        fitting = self._fitting(counts.sum(axis=1), "bad_words, no_repeat_ngram_size and stop_token_sequences", sealed, ends)
        counts[fitting == 0] = 0
        block["ban_from"][: counts.size] = begins.ravel()
        _write_starts(block["ban_start"], counts.ravel())

    def _fitting(self, counts: NDArray[np.int64], name: str, sealed: Sealed, ends: NDArray[Any]) -> NDArray[np.int64]:
        """The counts of those slots for which the list has room; the requests of the others fail."""
        room = (np.cumsum(counts) <= self._sizes.listed) & (ends <= self._sizes.listed)
        for slot in np.flatnonzero(~room & (counts > 0)):
            text = f"more entries than the {self._sizes.listed} that the device holds for all slots together"
            sealed.errors[int(slot)] = MaskstreamError(text, field=name)
        return np.where(room, counts, 0)

    def _penalties(self, block: Block, descriptor: Descriptor, sealed: Sealed, acting: NDArray[np.bool_]) -> None:
        p = None if descriptor.overlay is None else descriptor.overlay.penalties
        block["fresh"][:] = 0
        if p is None:
            block["penalised"][:] = -1
            return
        for name in ("repetition", "presence", "frequency"):
            block[name][:] = getattr(p, name).numpy()
        block["penalised"][:] = np.where(p.slot.numpy() >= 0, np.arange(self._sizes.slots), -1)
        new = np.flatnonzero(acting & (p.slot.numpy() >= 0) & (self._counted != descriptor.epoch))
        starts, used = np.zeros(self._sizes.slots + 1, np.int64), 0
        for slot in new.tolist():
            row = int(p.slot[slot])
            ids, entries = _counts_of(p.counts[row].numpy(), p.seen[row].numpy())
            if used + len(ids) > self._sizes.listed:
                block["action"][slot] = SlotAction.HOLD  # there is room for it in a launch of its own
                continue
            block["fresh_ids"][used : used + len(ids)], block["fresh_counts"][used : used + len(ids)] = ids, entries
            block["fresh"][slot], sealed.fresh[slot], starts[slot + 1] = 1, int(descriptor.epoch[slot]), len(ids)
            used += len(ids)
        block["fresh_start"][:] = np.cumsum(starts)

    # ---- results ----

    def read(self, number: int, block: Block, sealed: Sealed) -> LaunchResult:
        """The result of a launch that has ended."""
        active, width = sealed.shape.active, sealed.shape.width
        action = block["action"].copy()
        action[active:] = SlotAction.IDLE
        epoch = block["epoch"].copy()
        for slot, owner in sealed.fresh.items():
            if action[slot] <= SlotAction.GUIDED and epoch[slot] == owner:
                self._counted[slot] = owner
        for slot, origin, index in sealed.filled:
            if action[slot] == SlotAction.GUIDED:
                self._cache.filled(origin, index)
        positions = [self._position(number, block, sealed, at, action, epoch) for at in range(width)]
        first, *ahead = positions
        first.ahead = [each for each in ahead if (each.token >= 0).any()]
        first.slot_errors.update(sealed.errors)
        first.wait_s = int(block["waited_ns"][0]) * 1e-9
        return first

    def _position(
        self, number: int, block: Block, sealed: Sealed, at: int, action: NDArray[np.int32], epoch: NDArray[np.int64]
    ) -> LaunchResult:
        token, status = block["token"][at].copy(), block["status"][at].copy()
        token[sealed.shape.active :] = -1
        result = LaunchResult(number, token, status, epoch, action)
        if sealed.shape.full and sealed.num_logprobs is not None:
            result.logprob, result.rank = block["logprob"][at].copy(), block["rank"][at].copy()
            result.top_ids = block["top_ids"][at, :, : sealed.num_logprobs].copy()
            result.top_logprobs = block["top_logprobs"][at, :, : sealed.num_logprobs].copy()
        return result


def _by_position(descriptor: Descriptor) -> list[SampleRows]:
    first = [] if descriptor.rows is None else [descriptor.rows]
    return first + ([] if descriptor.ahead is None else [each.rows for each in descriptor.ahead.positions])


def _bans_by_position(descriptor: Descriptor) -> list[TokenList | None]:
    overlays = [descriptor.overlay, *(() if descriptor.ahead is None else (each.overlay for each in descriptor.ahead.positions))]
    return [None if overlay is None else overlay.bans for overlay in overlays]


def _write_starts(out: NDArray[Any], counts: NDArray[np.int64]) -> None:
    out[0] = 0
    np.cumsum(counts, out=out[1 : counts.size + 1])


def _counts_of(counts: NDArray[Any], seen: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids with a state, and count + 2^16 * seen of each."""
    bits = np.unpackbits(seen.view(np.uint8), bitorder="little")[: counts.size].astype(np.int64)
    entries = counts.astype(np.int64) + (bits << 16)
    ids = np.flatnonzero(entries)
    return ids, entries[ids]
