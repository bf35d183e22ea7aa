"""DraftTree: what a step is fed behind the golden token, a chain or a tree of guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernels.reference import Distribution


@dataclass(slots=True)
class DraftTree:
    """``tokens[j]`` is node j + 1; ``parents[j] <= j`` is the node that it follows, 0 the golden token (empty: a chain).
    ``distributions[j]``: what token j was drawn from (empty: nothing is known of that, the drafts are one-hot)."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)

    def parent(self, node: int) -> int:
        """The node before ``node`` > 0."""
        return self.parents[node - 1] if self.parents else node - 1


def merged(guesses: Sequence[Sequence[int]], most: int) -> DraftTree:
    """Guesses side by side as one tree of at most ``most`` nodes: what they have in common is there once, so siblings differ. Each
    but the first gets the same share of the nodes, the first gets the rest."""
    share = most // max(len(guesses), 1)
    tree, children = DraftTree(), dict[tuple[int, int], int]()
    for number, guess in enumerate(guesses):
        node, left = 0, share if number else most - share * (len(guesses) - 1)
        for token_id in guess:
            known = children.get((node, token_id))
            if known is None:
                if left == 0:
                    break
                left -= 1
                tree.tokens.append(token_id)
                tree.parents.append(node)
                known = children[node, token_id] = len(tree.tokens)
            node = known
    if tree.parents == list(range(len(tree.tokens))):
        tree.parents.clear()
    return tree
