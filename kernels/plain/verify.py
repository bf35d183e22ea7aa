"""Speculative verification: which drafts of each request stand, and the token after them.

Request b has the target rows b * (n + 1) + node: node 0 follows the golden token, node j follows draft j (1..n).
Drafts form a chain, or a tree by `parents`. At a node the children are tried in ascending order:

- sample-and-match (no draft distributions: greedy, n-gram, forced and other one-hot drafters): the token that the target
  row samples is emitted; a child that equals it is entered. The longest path wins, the first one on ties.
- rejection: child i with distribution q, drawn from it, is accepted iff u * w_q * K_p < w_p * K_q * 2^64; otherwise
  p becomes the residual max(w_p * K_q - w_q * K_p, 0) (p itself where that has no mass) and the next child is tried.
  With no child left the token is drawn from p: purpose RESIDUAL after a rejection, BONUS at a leaf. u of child i has
  purpose ACCEPT and branch i; all bits belong to the offset of the node's own row. A draft that its q cannot have
  drawn is passed over and leaves p as it is.

Rows off the accepted path are never looked at. A dead or held row ends its request there and emits nothing for itself.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kernels.plain.distribution import Distribution
from kernels.plain.keep import draw
from kernels.plain.live import SampleInputs
from kernels.plain.philox import Purpose


@dataclass(slots=True)
class Drafts:
    """tokens i32[B, n]; lengths i32[B]: how many are real; parents i32[B, n], node of each draft's parent, or a chain.

    Draft j (0-based) is node j + 1; parents[b, j] must be a node <= j, else the draft is unreachable.
    """

    tokens: Tensor
    lengths: Tensor
    parents: Tensor | None = None

    def children(self, request: int) -> dict[int, list[int]]:
        """Node -> its child nodes, ascending."""
        tree: dict[int, list[int]] = {}
        for j in range(int(self.lengths[request])):
            parent = j if self.parents is None else int(self.parents[request, j])
            if 0 <= parent <= j:
                tree.setdefault(parent, []).append(j + 1)
        return tree


@dataclass(slots=True)
class VerifyResult:
    """tokens i32[B, n+1] emitted, padded -1; nodes i32[B, n+1], the accepted nodes in order, padded -1; i32[B]: emitted,
    accepted (emitted - 1, or emitted where the last row was dead or held), status (`SampleStatus` of that last row)."""

    tokens: Tensor
    nodes: Tensor
    emitted: Tensor
    accepted: Tensor
    status: Tensor


@dataclass(slots=True)
class Walk:
    """One request's way down: tokens emitted, nodes accepted, status of the row where it ended."""

    tokens: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    status: int = 0


def verify(target: SampleInputs, drafts: Drafts, draft: SampleInputs | None = None) -> VerifyResult:
    """Verify B requests; `draft` row b * n + j is the distribution that draft j was drawn from (None: one-hot drafts).

    Padded and held requests emit nothing. Raises ValueError where the row counts do not fit the drafts.
    """
    batch, most = drafts.tokens.shape
    if len(target.rows) != batch * (most + 1) or (draft is not None and len(draft.rows) != batch * most):
        raise ValueError(f"{batch} requests of {most} drafts need {batch * (most + 1)} target and {batch * most} draft rows")
    walks = [_Verifier(target, drafts, draft, b).walk() for b in range(batch)]
    return VerifyResult(
        tokens=_padded([w.tokens for w in walks], most + 1),
        nodes=_padded([w.nodes for w in walks], most + 1),
        emitted=_counts(w.tokens for w in walks),
        accepted=_counts(w.nodes for w in walks),
        status=torch.tensor([w.status for w in walks], dtype=torch.int32),
    )


def reject(
    p: Distribution, drafted: Iterable[tuple[int, Distribution]], bits: Callable[[Purpose, int], int]
) -> tuple[int, int | None]:
    """One node under rejection: the token emitted where the target says ``p``, and which of ``drafted`` it is (None: none).

    ``drafted``: tokens of the children, each with the distribution that it was drawn from; ``bits`` of a purpose and branch.
    """
    purpose = Purpose.BONUS
    for branch, (token, q) in enumerate(drafted):
        purpose = Purpose.RESIDUAL
        if q.weight(token) == 0:
            continue
        if p.accepts(q, token, bits(Purpose.ACCEPT, branch)):
            return token, branch
        p = p.residual(q)
    return p.draw(bits(purpose, 0)), None


class _Verifier:
    """The rows of one request."""

    def __init__(self, target: SampleInputs, drafts: Drafts, draft: SampleInputs | None, request: int) -> None:
        self.target, self.draft, self.request = target, draft, request
        self.tokens = drafts.tokens[request].tolist()
        self.children = drafts.children(request)

    def walk(self) -> Walk:
        return self._match(0) if self.draft is None else self._reject()

    def _row(self, node: int) -> int:
        return self.request * (len(self.tokens) + 1) + node

    def _match(self, node: int) -> Walk:
        row = self._row(node)
        live = self.target.live(row)
        if live.kept is None:
            return Walk(status=int(live.status))
        column = draw(live.kept, self.target.bits(row))
        token = int(self.target.masks.tokens(np.array([column]))[0])
        below = [(child, self._match(child)) for child in self.children.get(node, []) if self.tokens[child - 1] == token]
        if not below:
            return Walk([token], status=int(live.status))
        child, best = max(below, key=lambda entry: len(entry[1].nodes))  # max keeps the first of equals
        return Walk([token, *best.tokens], [child, *best.nodes], best.status)

    def _reject(self) -> Walk:
        walk, node = Walk(), 0
        while True:
            row = self._row(node)
            live = self.target.live(row)
            walk.status = int(live.status)
            if live.kept is None:
                return walk
            token, child = self._step(row, node, Distribution.of(live.kept, self.target.masks))
            walk.tokens.append(token)
            if child is None:
                return walk
            walk.nodes.append(child)
            node = child

    def _step(self, row: int, node: int, p: Distribution) -> tuple[int, int | None]:
        """The token emitted at a node and the child that it enters."""
        children = self.children.get(node, [])
        drafted = ((self.tokens[child - 1], self._drafted_from(child)) for child in children)
        token, branch = reject(p, drafted, lambda purpose, at: self.target.bits(row, purpose, at))
        return token, None if branch is None else children[branch]

    def _drafted_from(self, child: int) -> Distribution:
        if self.draft is None:
            raise ValueError("rejection needs the distributions of the drafts")
        kept = self.draft.live(self.request * len(self.tokens) + child - 1).kept
        return Distribution.empty() if kept is None else Distribution.of(kept, self.draft.masks)


def _padded(rows: list[list[int]], width: int) -> Tensor:
    out = np.full((len(rows), width), -1, dtype=np.int32)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(out)


def _counts(rows: Iterable[list[int]]) -> Tensor:
    return torch.tensor([len(row) for row in rows], dtype=torch.int32)
