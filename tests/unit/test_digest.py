"""Digests: what they cover, and that they stay what they are."""

import pytest

from shared import digest

PLAN = bytes(8)


def test_a_chain_grows_token_by_token():
    whole = digest.chain(PLAN, [5, 6, 7])
    assert whole[0] == PLAN
    assert len(whole) == 4
    assert digest.chain(PLAN, [5, 6]) == whole[:3]  # rolling back is taking a prefix
    assert digest.extend(whole[2], 7) == whole[3]
    assert all(len(one) == digest.SIZE for one in whole)


@pytest.mark.parametrize("other", [[5, 6, 8], [6, 5, 7], [5, 6], [5, 6, 7, 0], []])
def test_other_tokens_have_another_digest(other):
    assert digest.chain(PLAN, other)[-1] != digest.chain(PLAN, [5, 6, 7])[-1]


def test_the_plan_counts():
    assert digest.chain(b"12345678", [5])[-1] != digest.chain(PLAN, [5])[-1]


def test_a_walk_covers_path_and_parents():
    walks = [([], []), ([1], []), ([1, 2], []), ([2, 1], []), ([1, 2], [-1, 0]), ([1, 2], [-1, -1]), ([0], []), ([0, 0], [])]
    assert len({digest.of_walk(PLAN, path, parents) for path, parents in walks}) == len(walks)


def test_path_and_parents_cannot_be_mistaken():  # the same words, cut elsewhere
    assert digest.of_walk(PLAN, [1, 0], []) != digest.of_walk(PLAN, [1], [0])


def test_both_sides_of_the_wire_agree_for_ever():
    assert digest.extend(PLAN, 1).hex() == "5771b81f7cb9a149"
    assert digest.of_walk(PLAN, [1, 2], [-1, 0]).hex() == "be20885324cae7da"
