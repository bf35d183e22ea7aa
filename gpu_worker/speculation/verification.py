"""Sample and match: each position of a launch is sampled as if it were the only one; the next counts where the token is the draft.

Position j of a slot has the random bits of its own output position, so the tokens are those of a text without drafts, however many
drafts there are and whatever they are (spec R18). No row is sampled that no token leads to.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.descriptor import Descriptor, LaunchResult, SlotAction
from gpu_worker.sampler.sampler import sample_launch
from gpu_worker.speculation.ahead import Ahead


class Verifier:
    """Turns the logits of a launch into tokens. ``width`` T: positions of a slot; row ``slot * T + j`` of the descriptor's bitmask
    [slots * T, W] is that of position j."""

    def __init__(self, width: int, vocab_size: int) -> None:
        self._width, self._vocab_size = width, vocab_size

    def verify(
        self, logits: torch.Tensor | None, tokens: torch.Tensor, lengths: torch.Tensor, descriptor: Descriptor,
        action: NDArray[np.int32], ahead: Ahead | None = None,
    ) -> list[LaunchResult]:  # fmt: skip
        """One result a position, as long as a slot goes on: between 1 and T, and a slot has a token in the first ones only.

        ``logits`` [slots, T, V]; ``tokens`` int64 [slots, T] and ``lengths`` int64 [slots] are what the model was fed: golden token
        and drafts. A row behind the first that allows nothing gives no token: the next step meets it as its first row, where it is
        judged. Raises what the sampler raises.
        """
        results = [self._sample(logits, descriptor, action, 0)]
        if logits is None or ahead is None:
            return results
        fed, depth = tokens.numpy(), np.minimum(ahead.depth, lengths.numpy())
        for position, rows in enumerate(ahead.positions[: self._width - 1], 1):
            matched = (depth > position) & (results[-1].token == fed[:, position])
            if not matched.any():
                break
            there = replace(descriptor, rows=rows.rows, overlay=rows.overlay)
            results.append(self._sample(logits, there, np.where(matched, action, SlotAction.IDLE).astype(np.int32), position))
        return results

    def _sample(
        self, logits: torch.Tensor | None, descriptor: Descriptor, action: NDArray[np.int32], position: int
    ) -> LaunchResult:
        here = replace(descriptor, bitmask=descriptor.bitmask[position :: self._width])
        return sample_launch(None if logits is None else logits[:, position:], here, action, self._vocab_size)


def accepted_tokens(results: list[LaunchResult], slot: int) -> list[int]:
    """The tokens of a slot, in order."""
    tokens = [int(result.token[slot]) for result in results]
    return tokens[: tokens.index(-1)] if -1 in tokens else tokens
