"""Draft trees and golden tokens on the real engines, many in one step: each row is that of a fresh matcher which took its path."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_service import engines
from grammar_service.engines.base import Matcher
from grammar_service.golden import plain_ones
from grammar_service.rows import RowStore
from grammar_service.sessions import Answer, Sessions, full
from grammar_service.stepper import Budget, Job, Stepper
from grammar_service.walks import walk
from shared import digest
from shared.protocol import Open, StepEntry, StepStatus
from tests.scripted import ids
from tests.vocabularies import tiny

VOCABULARY = tiny()
STOPS = VOCABULARY.stop_ids[:1]
GUIDES = [
    ("regex", r"(a[bc]{0,3}|[0-9]{1,4}(ab)?)\)*"),
    ("json_schema", '{"type":"object","properties":{"a":{"type":"boolean"},"b":{"type":"integer"}},"required":["a"]}'),
    ("json_schema", '{"enum":[true,"true","tru",[1]]}'),
]  # fmt: skip
PLAN = bytes(8)


@functools.cache
def loaded() -> dict[str, Any]:
    return engines.load(VOCABULARY)


@functools.cache
def compiled(name: str, guide: int) -> Any:
    kind, text = GUIDES[guide]
    return loaded()[name].compile(kind, text, {"max_whitespace": 2})


def row_after(name: str, guide: int, path: list[int]) -> set[int] | None:
    """Ids that a matcher of its own allows after a path; None where it refuses a token of it."""
    matcher: Matcher = compiled(name, guide).create(STOPS)
    if not all(matcher.accept_token(token) for token in path):
        return None
    words = np.zeros((1, (VOCABULARY.size + 31) // 32), dtype=np.int32)
    matcher.fill_next_token_bitmask(words, 0)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8)[0], bitorder="little")).tolist())


def random_tree(rng: random.Random, name: str, guide: int) -> tuple[list[int], list[int]]:
    """(tokens, parents): mostly tokens that may follow, siblings distinct, parents anywhere before their children."""
    tokens: list[int] = []
    parents: list[int] = []
    for node in range(rng.randint(2, 10)):
        parent = rng.randint(max(-1, node - 4), node - 1) if node else -1
        taken = {tokens[other] for other in range(node) if parents[other] == parent}
        allowed = sorted((row_after(name, guide, path_to(parent, tokens, parents)) or set()) - taken)
        wanted = [*allowed, rng.choice([t for t in range(262) if t not in taken])] if rng.random() < 0.3 else allowed
        if wanted:
            tokens.append(rng.choice(wanted))
            parents.append(parent)
        elif not tokens:
            tokens, parents = [0], [-1]
        else:
            break
    return tokens, parents


def path_to(node: int, tokens: list[int], parents: list[int]) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, tokens[node])
        node = parents[node]
    return path


@pytest.mark.parametrize("name", engines.NAMES)
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=25, deadline=None)
def test_trees_of_many_sessions_have_the_rows_of_fresh_matchers(name: str, seed: int) -> None:  # spec 48, R10
    rng, rows = random.Random(seed), RowStore(VOCABULARY.size, 1 << 20)
    sessions, stepper = Sessions(rows, walk), Stepper(loaded(), rows, Budget(60.0, 60.0))
    trees, jobs = [], []
    for handle in range(6):
        guide = rng.randrange(len(GUIDES))
        message = Open(handle=handle, epoch=0, plan_digest=PLAN, stop_ids=STOPS)
        session = sessions.open(message, functools.partial(compiled(name, guide).create, STOPS), 0.0)
        tokens, parents = random_tree(rng, name, guide)
        outcome = sessions.step(StepEntry(handle, 0, 1, 0, PLAN, [], tokens, parents), 0.0)
        assert session is not None
        assert outcome is not None and not isinstance(outcome, Answer)
        trees.append((guide, tokens, parents))
        jobs.append(Job(session, outcome))
    for session, answer in [pair for part in stepper.run(jobs, {}) for pair in part]:
        guide, tokens, parents = trees[session.handle]
        wanted = [row_after(name, guide, path_to(node, tokens, parents)) or set() for node in range(len(tokens))]
        if answer.status is StepStatus.OK:
            assert [ids(row) for row in answer.rows] == wanted
        else:
            assert not any(wanted)
        assert session.tokens == []
    sessions.validate()


@pytest.mark.parametrize("name", engines.NAMES)
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=15, deadline=None)
def test_golden_tokens_of_many_sessions_have_the_rows_of_fresh_matchers(name: str, seed: int) -> None:  # spec 42, 43
    rng, rows = random.Random(seed), RowStore(VOCABULARY.size, 1 << 20)
    sessions, stepper = Sessions(rows, walk), Stepper(loaded(), rows, Budget(60.0, 60.0))
    guides = [rng.randrange(len(GUIDES)) for _ in range(6)]
    texts: list[list[int]] = [[] for _ in guides]
    for handle, guide in enumerate(guides):
        message = Open(handle=handle, epoch=0, plan_digest=PLAN, stop_ids=STOPS)
        sessions.open(message, functools.partial(compiled(name, guide).create, STOPS), 0.0)
    for number in range(1, 9):
        entries = []
        for handle, text in enumerate(texts):
            allowed = sorted(row_after(name, guides[handle], text) or ())
            if number > 1 and allowed:
                text.append(rng.choice(allowed) if rng.random() < 0.9 else rng.randrange(262))
            base = text[:-1]
            entries.append(
                StepEntry(
                    handle, 0, number, len(base), digest.chain(PLAN, base)[-1], base[-1:], text[-1:], [], min(len(base), 1) or -1
                )
            )
        plain, left = plain_ones(sessions, entries)
        advanced = stepper.advance(plain, left, 0.0)
        outcomes = [(entry, sessions.step(entry, 0.0)) for entry in left]
        jobs = [Job(session, walking) for entry, walking in outcomes
                if walking is not None and not isinstance(walking, Answer) and (session := sessions.get(entry.handle))]  # fmt: skip
        for session, outcome in [pair for part in stepper.run(jobs, advanced) for pair in part]:
            answer, wanted = full(outcome), row_after(name, guides[session.handle], texts[session.handle])
            if answer.status is StepStatus.OK:
                assert [ids(row) for row in answer.rows] == [wanted]
            else:
                assert not wanted
                texts[session.handle].pop()
        sessions.validate()
