"""A tree's rows are those of the chains from its root to its nodes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.protocol import StepStatus
from tests.scripted import Bench, Language, ids

TOKENS = st.integers(0, 3)
WORDS = st.lists(st.lists(TOKENS, min_size=1, max_size=5).map(tuple), min_size=1, max_size=6)


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """(tokens, parents) with one root and distinct siblings."""
    tokens, parents = [draw(TOKENS)], [-1]
    for node in range(1, draw(st.integers(1, 8))):
        parent = draw(st.integers(0, node - 1))
        taken = {tokens[other] for other in range(node) if parents[other] == parent}
        if len(taken) < 4:
            tokens.append(draw(TOKENS.filter(lambda token: token not in taken)))  # noqa: B023 - drawn at once
            parents.append(parent)
        else:
            return tokens, parents
    return tokens, parents


def chain_to(node: int, tokens: list[int], parents: list[int]) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, tokens[node])
        node = parents[node]
    return path


@given(words=WORDS, tree=trees())
@settings(max_examples=200, deadline=None)
def test_each_node_has_the_row_of_its_chain(
    words: list[tuple[int, ...]], tree: tuple[list[int], list[int]]
) -> None:  # spec 48, R10
    tokens, parents = tree
    answer = Bench(Language(words)).step(*tokens, parents=parents)
    for node in range(len(tokens)):
        path = chain_to(node, tokens, parents)
        chain = Bench(Language(words)).step(*path)
        whole = len(chain.rows) == len(path)
        if answer.status is StepStatus.OK:
            assert ids(answer.rows[node]) == (ids(chain.rows[-1]) if whole else set())
        else:
            assert chain.status is not StepStatus.OK or node > 0
