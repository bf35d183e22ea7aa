"""Which drafts of a launch stand, and the token after them, down a chain or a tree.

Match (every draft, unless it came with a distribution): each position is sampled as if it were the only one; a draft counts where
the token is the draft. A position has the random bits of its own output position, so the tokens are those of a text without drafts,
however many drafts there are and whatever they are (spec R18). Rejection: see ``rejection``. No row is sampled that no token leads
to.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.descriptor import Descriptor, LaunchResult, SlotAction
from gpu_worker.sampler.sampler import sample_inputs, sample_launch
from gpu_worker.speculation.ahead import Ahead
from gpu_worker.speculation.rejection import reject_row
from kernels.reference import SampleInputs

Slots = NDArray[np.int64]


class Verifier:
    """Turns the logits of a launch into tokens. ``width`` T: positions of a slot; row ``slot * T + j`` of the descriptor's bitmask
    [slots * T, W] is that of node j."""

    def __init__(self, width: int, vocab_size: int) -> None:
        self._width, self._vocab_size = width, vocab_size

    def verify(
        self, logits: torch.Tensor | None, tokens: torch.Tensor, lengths: torch.Tensor, descriptor: Descriptor,
        action: NDArray[np.int32], ahead: Ahead | None = None, parents: torch.Tensor | None = None,
    ) -> list[LaunchResult]:  # fmt: skip
        """One result an output position, as long as a slot goes on: between 1 and T, and a slot has a token in the first ones only;
        ``node`` says at which node of a slot it was sampled.

        ``logits`` [slots, T, V]; ``tokens`` int64 [slots, T], ``lengths`` int64 [slots] and ``parents`` int64 [slots, T] (None:
        chains) are what the model was fed: golden token and drafts. A row behind the first that allows nothing gives no token: the
        next step meets it as its first row, where it is judged. Raises what the sampler raises.
        """
        if logits is None or ahead is None:
            return [sample_launch(logits, self._here(descriptor, 0), action, self._vocab_size)]
        return _Descent(self, logits, tokens, lengths, descriptor, action, ahead, parents).results

    def _here(self, descriptor: Descriptor, node: int, ahead: Ahead | None = None) -> Descriptor:
        """The descriptor with the rows of one node of each slot."""
        bitmask = descriptor.bitmask[node :: self._width]
        if ahead is None or node == 0:
            return replace(descriptor, bitmask=bitmask)
        position = ahead.positions[node - 1]
        return replace(descriptor, bitmask=bitmask, rows=position.rows, overlay=position.overlay)

    def sample(
        self, logits: torch.Tensor, descriptor: Descriptor, action: NDArray[np.int32], node: int, ahead: Ahead
    ) -> tuple[LaunchResult, Descriptor]:
        """The tokens of the slots that stand at ``node``, those held by ``action`` excepted, and the node's descriptor."""
        here = self._here(descriptor, node, ahead)
        return sample_launch(logits[:, node:], here, action, self._vocab_size), here

    def inputs(self, logits: torch.Tensor, here: Descriptor, action: NDArray[np.int32], node: int) -> SampleInputs:
        """The rows at ``node`` before any draw."""
        return sample_inputs(logits[:, node], here, action, self._vocab_size)


class _Descent:
    """One launch, node by node: parents come before their children, so each slot goes down its tree in one pass."""

    def __init__(
        self, verifier: Verifier, logits: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor, descriptor: Descriptor,
        action: NDArray[np.int32], ahead: Ahead, parents: torch.Tensor | None,
    ) -> None:  # fmt: skip
        slots, width = tokens.shape
        self._verifier, self._logits, self._descriptor, self._ahead = verifier, logits, descriptor, ahead
        self._action, self._fed, self._lengths = action, tokens.numpy(), lengths.numpy()
        self._parents = np.tile(np.arange(-1, width - 1), (slots, 1)) if parents is None else parents.numpy()
        self._at, self._level, self._next = np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.full(slots, -1, np.int64)
        self._drawn = np.zeros(slots, np.bool_)
        self._drawn[list(ahead.drafted)] = True
        self.results: list[LaunchResult] = []
        self._visit(0, np.arange(slots))
        nodes = np.minimum(ahead.depth, self._lengths)
        for node in range(1, min(width, 1 + len(ahead.positions))):
            entering = np.flatnonzero((nodes > node) & (self._parents[:, node] == self._at) & self._leads_to(node))
            if entering.size:
                self._at[entering] = node
                self._level[entering] += 1
                self._visit(node, entering)

    def _leads_to(self, node: int) -> NDArray[np.bool_]:
        """Where the last token is the draft of ``node``, or rejection let that very draft stand."""
        matching: NDArray[np.bool_] = ~self._drawn & (self._fed[:, node] == self._next)
        chosen: NDArray[np.bool_] = self._drawn & (self._next == node)
        return matching | chosen

    def _visit(self, node: int, slots: Slots) -> None:
        action = np.full(len(self._action), SlotAction.IDLE, np.int32)
        action[slots] = self._action[slots]
        drawn = [int(slot) for slot in slots if self._drawn[slot] and action[slot] <= SlotAction.GUIDED]
        sampled = action.copy()
        sampled[drawn] = SlotAction.HOLD
        result, here = self._verifier.sample(self._logits, self._descriptor, sampled, node, self._ahead)
        self._next[slots] = result.token[slots]
        result.action[drawn] = action[drawn]
        if drawn:
            self._reject(result, self._verifier.inputs(self._logits, here, action, node), node, drawn)
        result.node[slots] = node
        self._place(result, slots)

    def _reject(self, result: LaunchResult, inputs: SampleInputs, node: int, slots: list[int]) -> None:
        for slot in slots:
            children = self._children(slot, node)
            drafted = [(int(self._fed[slot, child]), self._ahead.drafted[slot][child - 1]) for child in children]
            branch = reject_row(result, inputs, slot, drafted)
            self._next[slot] = -1 if branch is None else children[branch]

    def _children(self, slot: int, node: int) -> list[int]:
        length = int(self._lengths[slot])
        return [child for child in range(node + 1, length) if self._parents[slot, child] == node]

    def _place(self, result: LaunchResult, slots: Slots) -> None:
        """Nodes of one level belong to one output position."""
        for level in np.unique(self._level[slots]):
            here = slots[self._level[slots] == level]
            if level == len(self.results):
                self.results.append(LaunchResult.nothing(result.launch, len(self._action)))
            if len(here) == len(slots) and not (self.results[level].epoch != 0).any():
                self.results[level] = result
            else:
                self.results[level].take(result, here)


def accepted_tokens(results: list[LaunchResult], slot: int) -> list[int]:
    """The tokens of a slot, in order."""
    tokens = [int(result.token[slot]) for result in results]
    return tokens[: tokens.index(-1)] if -1 in tokens else tokens


def accepted_nodes(results: list[LaunchResult], slot: int) -> list[int]:
    """The nodes of a slot that its tokens were sampled at, the golden token's first: as many as tokens."""
    return [int(result.node[slot]) for result in results[: len(accepted_tokens(results, slot))]]
