"""SlotOverlay: bias, penalties and bans of each slot, made into the overlay of a launch (in this order, spec 100)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch

from gpu_worker.sampler.penalties import SlotPenalties
from gpu_worker.sampler.token_state import TokenState
from kernels.reference import Overlay, TokenList
from shared.sampling_params import SamplingParams


class Row(Protocol):
    """A sequence as the overlay sees it. ``epoch`` names the owner of the slot; ``tokens`` are its committed output;
    ``plain``: it has neither bias, penalties nor bans of a step."""

    slot: int
    epoch: int
    tokens: list[int]
    state: TokenState
    params: SamplingParams
    prompt: list[int]
    plain: bool


class SlotOverlay:
    """Takes a slot over for a new owner by itself, the first time that it acts. The cost of a launch is what changed since the
    last one and the bans of the step."""

    def __init__(self, slots: int, vocab_size: int) -> None:
        self._owner = [0] * slots
        self._bias: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0, np.int32), np.empty(0, np.float32))] * slots
        self._bias_list: TokenList | None = None
        self._bias_changed = False
        self._penalties = SlotPenalties(slots, vocab_size)

    def overlay(self, rows: Iterable[Row]) -> Overlay | None:
        """The overlay of a launch in which ``rows`` act; None where nothing is to be changed."""
        bans: list[list[int]] = [[] for _ in self._owner]
        for row in rows:
            if self._owner[row.slot] != row.epoch:
                self._take_over(row)
            if not row.plain:
                self._penalties.catch_up(row.slot, row.tokens)
                bans[row.slot] = sorted(row.state.banned())
        made = Overlay(self._biases(), self._penalties.rows(), TokenList.of(bans) if any(bans) else None)
        return None if made.bias is None and made.penalties is None and made.bans is None else made

    def branch(self, parent: Row, child: Row) -> None:
        """The child's text is the parent's: it has the counts that the parent has, before either gets another token (spec 99)."""
        if self._owner[parent.slot] != parent.epoch:
            return  # nothing of it is counted yet: both will be taken over with all their tokens
        if self._owner[child.slot] != child.epoch:
            self._take_over(child)
        self._penalties.branch(parent.slot, child.slot)

    def _take_over(self, row: Row) -> None:
        slot, rules = row.slot, row.state.rules
        self._owner[slot] = row.epoch
        self._bias_changed |= bool(rules.bias_ids.size or self._bias[slot][0].size)
        self._bias[slot] = rules.bias_ids, rules.bias_values
        self._penalties.set(slot, row.params, row.prompt)

    def _biases(self) -> TokenList | None:
        if self._bias_changed:
            self._bias_changed = False
            self._bias_list = _compressed(self._bias) if any(ids.size for ids, _ in self._bias) else None
        return self._bias_list


def _compressed(rows: list[tuple[np.ndarray, np.ndarray]]) -> TokenList:
    start = np.cumsum([0, *(ids.size for ids, _ in rows)]).astype(np.int32)
    ids, values = (np.concatenate(part) for part in zip(*rows, strict=True))
    return TokenList(torch.from_numpy(start), torch.from_numpy(ids), torch.from_numpy(values))
