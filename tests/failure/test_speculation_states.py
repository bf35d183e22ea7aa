"""Random drafts, random acceptance, killed and stopped services, both engines: after each step the session is where a fresh matcher
is that was fed the committed tokens: the link takes no row of another digest, and each row is that matcher's."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_worker.grammar_link import Outcome, WalkStatus
from grammar_service import engines
from grammar_service.engines.base import Matcher
from shared.bitmask import num_words
from shared.guide import Guide
from shared.protocol import Compiled, Plan
from tests.property.test_speculation_trees import path_to
from tests.real_services import RealLink

pytestmark = [pytest.mark.failure, pytest.mark.timeout(240)]
SCHEMA = (
    '{"type":"object","properties":{"on":{"type":"boolean"},"n":{"type":"integer"},"s":{"enum":["xy","xyz"]}},"required":["on"]}'
)
GUIDES = [Guide(kind="regex", text="(ab|cd){2,9}e?"), Guide(kind="json_schema", text=SCHEMA)]
STEPS = 8


@pytest.fixture
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealLink]:
    made = RealLink(tmp_path_factory.mktemp("states"), services=2)
    yield made
    made.close()


class Fresh:
    """Rows of matchers that were fed a text from its start."""

    def __init__(self, real: RealLink) -> None:
        self._real, self._engines = real, engines.load(real.vocabulary)
        self._factories: dict[bytes, Any] = {}

    def factory(self, plan: Plan) -> Any:
        if plan.digest not in self._factories:
            self._factories[plan.digest] = self._engines[plan.engine].compile(plan.grammar_kind, plan.text, plan.options)
        return self._factories[plan.digest]

    def row(self, compiled: Compiled, tokens: list[int]) -> np.ndarray:
        """Zeros where a token is refused or nothing may follow."""
        assert compiled.plan is not None
        words = np.zeros((1, num_words(self._real.vocabulary.size)), np.int32)
        matcher: Matcher = self.factory(compiled.plan).create(self._real.stop_ids)
        if all(matcher.accept_token(token) for token in tokens) and not matcher.is_terminated():
            matcher.fill_next_token_bitmask(words, 0)
        return words[0]


@pytest.fixture
def fresh(real: RealLink) -> Fresh:
    return Fresh(real)


class Text:
    """One text, step by step: a walk of golden token and drafts, its rows judged, a path of it kept."""

    def __init__(self, real: RealLink, fresh: Fresh, compiled: Compiled, dice: random.Random) -> None:
        self.real, self.fresh, self.compiled, self.dice = real, fresh, compiled, dice
        self.session, self.told = real.open(compiled), 0
        self.tokens: list[int] = []
        outcome, rows = real.rows(self.session)
        assert outcome.status is WalkStatus.OK
        self.pick(rows[0])

    def pick(self, row: np.ndarray) -> None:
        self.tokens.append(self.dice.choice(self.real.allowed(row)))

    @property
    def ended(self) -> bool:
        return self.tokens[-1] in self.real.stop_ids

    def drafts(self, tree: bool) -> tuple[list[int], list[int]]:
        """Mostly tokens that may follow; parents are nodes, 0 the golden token."""
        tokens: list[int] = []
        parents: list[int] = []
        for _ in range(self.dice.randint(0, 6)):
            parent = self.dice.randint(0, len(tokens)) if tree else len(tokens)
            allowed = self.real.allowed(self.fresh.row(self.compiled, self.tokens + path_to(parent, tokens, parents)))
            token = self.dice.choice(allowed) if allowed and self.dice.random() < 0.85 else self.dice.randrange(256)
            if (token, parent) not in zip(tokens, parents, strict=True):
                tokens.append(token)
                parents.append(parent)
        return tokens, parents

    def step(self) -> None:
        tree = self.dice.random() < 0.5
        tokens, parents = self.drafts(tree)
        base = len(self.tokens) - 1
        committed, self.told = self.tokens[self.told : base], base
        walk: dict[str, Any] = {"parents": [-1, *parents]} if tree and tokens else {}
        outcome, rows = self.real.rows(
            self.session, committed=committed, path=[self.tokens[-1], *tokens], accepted=len(committed) or -1, **walk
        )
        assert outcome.status is WalkStatus.OK or (outcome.status is WalkStatus.TERMINATED and outcome.num_guided), outcome
        self.judge(outcome, rows, tokens, parents)
        alive = [node for node in range(outcome.num_guided) if rows[node].any()]
        kept = self.dice.choice(alive)
        self.tokens += path_to(kept, tokens, parents)
        self.pick(rows[kept])

    def judge(self, outcome: Outcome, rows: np.ndarray, tokens: list[int], parents: list[int]) -> None:
        for node in range(1 + len(tokens)):
            wanted = self.fresh.row(self.compiled, self.tokens + path_to(node, tokens, parents))
            if node < outcome.num_guided:
                assert (rows[node] == wanted).all(), (node, self.tokens, tokens, parents)
            else:
                assert not rows[node].any()  # nothing is allowed where nothing was said


def disturb(real: RealLink, dice: random.Random) -> None:
    """A kill, a silence, or nothing."""
    kind, name = dice.random(), dice.choice(sorted(real.services))
    if kind < 0.04 and len(real.link.service_names) > 1:
        real.kill(name)
        real.start_service()
    elif kind < 0.12:
        real.signal(name, signal.SIGSTOP)
        process = real.services[name]
        threading.Timer(dice.uniform(0.05, 0.8), lambda: process.poll() is None and process.send_signal(signal.SIGCONT)).start()


@pytest.mark.parametrize("engine", engines.NAMES)
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_session_is_where_a_fresh_matcher_is(real: RealLink, fresh: Fresh, engine: str, seed: int) -> None:  # spec 43 48 R9 R10
    dice = random.Random(seed)
    texts = [Text(real, fresh, real.compile(Guide(kind=g.kind, text=g.text, engine=engine)), dice) for g in GUIDES]
    for _ in range(STEPS):
        disturb(real, dice)
        for text in texts:
            if not text.ended:
                text.step()
    for text in texts:
        real.link.close_session(text.session)
