"""Walks through a reasoning gate: chains and trees of drafts, kept in part, asked again, rebuilt; the rows are the model's."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_service.rows import Row, RowStore
from grammar_service.sessions import Answer, Sessions
from grammar_service.walks import walk
from shared import digest
from shared.bitmask import token_ids
from shared.gate import Gate
from shared.protocol import Open, StepEntry, StepStatus
from tests.property.test_gate_matcher import EOS, GATES, STOPS, VOCABULARY, Model, gated
from tests.property.test_sessions_trees import chain_to

PLAN = b"gatedpln"
TOKENS = st.integers(0, EOS)


class Worker:
    """A session behind a gate and the worker's side of it: absolute entries over committed tokens."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.model = gate, Model(gate)
        self.store = RowStore(VOCABULARY.size, 1 << 20)
        self.tokens: list[int] = []
        self._number = self._told = self._epoch = 0
        self.reopen()

    def reopen(self) -> None:
        """Another service: everything is replayed."""
        self._epoch, self._told = self._epoch + 1, len(self.tokens)
        self._sessions = Sessions(self.store, walk)
        message = Open(handle=1, epoch=self._epoch, plan_digest=PLAN, stop_ids=sorted(STOPS), committed=list(self.tokens))
        assert self._sessions.open(message, lambda: gated(self.gate), 0.0) is not None

    def step(self, path: list[int], parents: list[int], accepted: int = -1) -> Answer:
        self._number += 1
        told, self._told = self._told, len(self.tokens)
        prefix = digest.chain(PLAN, self.tokens)[-1]
        entry = StepEntry(
            1, self._epoch, self._number, len(self.tokens), prefix, self.tokens[told:], path, parents=parents, accepted=accepted
        )
        answer = self._run(entry)
        assert self._run(entry) is answer  # held and asked again
        self._sessions.validate()
        return answer

    def _run(self, entry: StepEntry) -> Answer:
        outcome = self._sessions.step(entry, 0.0)
        assert outcome is not None
        if isinstance(outcome, Answer):
            return outcome
        words = np.zeros((1, 1), dtype=np.int32)
        try:
            matcher = next(outcome)
            while True:
                matcher.fill_next_token_bitmask(words, 0)
                matcher = outcome.send(self.store.intern(words[0]))
        except StopIteration as stop:
            answer: Answer = stop.value
            return answer


def ids(row: Row) -> set[int]:
    return set(token_ids(row.words, VOCABULARY.size).tolist())


def drafts(data: st.DataObject, model: Model, tokens: list[int]) -> tuple[list[int], list[int]]:
    """Golden token and drafts: mostly what is allowed, as a chain or a tree."""
    path: list[int] = []
    parents: list[int] = []
    for node in range(data.draw(st.integers(1, 7))):
        parent = node - 1 if data.draw(st.booleans()) else data.draw(st.integers(0, node - 1)) if node else -1
        chain = chain_to(parent, path, parents)
        taken = len(expected(model, tokens, chain)) == len(chain)
        allowed = sorted(model.allowed(tokens + chain)) if taken else []
        drawn = data.draw(st.sampled_from(allowed) if allowed and data.draw(st.integers(0, 9)) else TOKENS)
        if not any(parents[other] == parent and path[other] == drawn for other in range(node)):
            path.append(drawn)
            parents.append(parent)
        else:
            break
    return path, parents


def expected(model: Model, tokens: list[int], path: list[int]) -> list[set[int]]:
    """The rows after each token of a path, up to the first that is refused or that ends the text."""
    rows: list[set[int]] = []
    for at, token in enumerate(path):
        if token not in model.allowed(tokens + path[:at]):
            break
        row = model.allowed(tokens + path[: at + 1])
        if not row:
            break
        rows.append(row)
    return rows


@settings(max_examples=250, deadline=None)
@given(data=st.data(), gate=GATES)
def test_rows_of_drafts_through_a_gate(data: st.DataObject, gate: Gate) -> None:  # spec 12, 42-45, 48, R9, R10
    worker = Worker(gate)
    model, kept = worker.model, -1
    assert [ids(row) for row in worker.step([], []).rows] == [model.allowed([])]
    for _ in range(data.draw(st.integers(1, 6))):
        path, parents = drafts(data, model, worker.tokens)
        is_chain = parents == list(range(-1, len(path) - 1))
        answer = worker.step(path, [] if is_chain else parents, kept)
        kept = -1
        if is_chain:
            rows = expected(model, worker.tokens, path)
            assert [ids(row) for row in answer.rows] == rows
            assert (answer.status is StepStatus.OK) == bool(rows) or answer.status is StepStatus.TERMINATED
            if not rows or answer.status is StepStatus.TERMINATED:
                break
            kept = data.draw(st.integers(1, len(rows)))
            worker.tokens += path[:kept]
        elif answer.rows:
            for node in range(len(path)):
                chain = chain_to(node, path, parents)
                rows = expected(model, worker.tokens, chain)
                assert ids(answer.rows[node]) == (rows[-1] if len(rows) == len(chain) else set())
        if data.draw(st.integers(0, 3)) == 0:
            worker.reopen()
            kept = -1
