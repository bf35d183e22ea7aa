"""Drafts on the real engines: each draft length, each accepted count, terminal and refused drafts, resume and replay."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest

from grammar_service import engines
from grammar_service.engines.base import Matcher
from grammar_service.rows import RowStore
from grammar_service.sessions import Answer, Sessions
from grammar_service.stepper import Budget, Job, Stepper
from grammar_service.walks import walk
from shared import digest
from shared.protocol import Open, StepEntry, StepStatus
from tests.scripted import ids
from tests.vocabularies import tiny

VOCABULARY = tiny()
STOP = VOCABULARY.stop_ids[0]
PLAN = bytes(8)
GUIDES = {
    "regex": ("regex", r"([a-c][0-9]){2,4}(-[0-9]{1,3}){3,9}"),
    "json": ("json_schema", '{"type":"object","properties":{"a":{"type":"boolean"},"b":{"type":"integer"}},"required":["a","b"]}'),
}
every_engine = pytest.mark.parametrize("name", engines.NAMES)
every_guide = pytest.mark.parametrize("guide", GUIDES)


@functools.cache
def compiled(name: str, guide: str) -> Any:
    return loaded()[name].compile(*GUIDES[guide], {"max_whitespace": 2})


@functools.cache
def loaded() -> dict[str, Any]:
    return engines.load(VOCABULARY)


def fresh(name: str, guide: str, path: list[int]) -> tuple[Matcher, bool]:
    """A matcher of its own that was fed a path, and whether it took it."""
    matcher: Matcher = compiled(name, guide).create([STOP])
    return matcher, all(matcher.accept_token(token) for token in path)


def allowed(name: str, guide: str, path: list[int]) -> set[int]:
    matcher, taken = fresh(name, guide, path)
    assert taken
    words = np.zeros((1, (VOCABULARY.size + 31) // 32), dtype=np.int32)
    matcher.fill_next_token_bitmask(words, 0)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8)[0], bitorder="little")).tolist())


@functools.cache
def a_text(name: str, guide: str, seed: int) -> tuple[int, ...]:
    """A random text of the guide, stop token included."""
    rng, text = random.Random(seed), []
    while not text or text[-1] != STOP:
        choices = sorted(allowed(name, guide, text))
        text.append(STOP if STOP in choices else rng.choice(choices))
    return tuple(text)


class Walker:
    """One session, stepped as a worker does."""

    def __init__(self, name: str, guide: str, committed: tuple[int, ...] = ()) -> None:
        self.rows = RowStore(VOCABULARY.size, 1 << 20)
        self.sessions, self.stepper = Sessions(self.rows, walk), Stepper(loaded(), self.rows, Budget(60.0, 60.0))
        self.committed, self.told, self.number = list(committed), len(committed), 0
        message = Open(handle=1, epoch=0, plan_digest=PLAN, stop_ids=[STOP], committed=list(committed))
        self.session = self.sessions.open(message, lambda: compiled(name, guide).create([STOP]), 0.0)

    def step(self, path: tuple[int, ...], accepted: int = -1) -> Answer:
        self.number += 1
        told, self.told = self.told, len(self.committed)
        prefix = digest.chain(PLAN, self.committed)[-1]
        entry = StepEntry(1, 0, self.number, len(self.committed), prefix, self.committed[told:], list(path), [], accepted)
        outcome = self.sessions.step(entry, 0.0)
        if isinstance(outcome, Answer):
            return outcome
        assert outcome is not None and self.session is not None
        ((_, answer),) = [pair for part in self.stepper.run([Job(self.session, outcome)], {}) for pair in part]
        self.sessions.validate()
        return answer


@every_engine
@every_guide
@pytest.mark.parametrize("num_drafts", range(1, 6))
def test_each_accepted_count(name: str, guide: str, num_drafts: int) -> None:  # spec 42, 43, 45, 5
    """Golden token and K drafts, of which 0..K stand; then the next golden token goes another way where it can. Without roll-back
    the engine refuses it."""
    refused_without = 0
    for seed in range(3):
        text = list(a_text(name, guide, seed))
        for kept in range(num_drafts + 1):
            start = 1 if kept % 2 else 0
            walker = Walker(name, guide, tuple(text[:start]))
            path = text[start : start + num_drafts + 1]
            answer = walker.step(tuple(path))
            assert (answer.status, answer.num_advanced) == (StepStatus.OK, num_drafts + 1)
            assert [ids(row) for row in answer.rows] == [allowed(name, guide, text[: start + i + 1]) for i in range(num_drafts + 1)]
            walker.committed += path[: kept + 1]
            others = sorted(allowed(name, guide, walker.committed) - {text[start + kept + 1], STOP})
            golden = others[seed % len(others)] if others else text[start + kept + 1]
            after = walker.step((golden,), accepted=kept + 1)
            assert (after.status, [ids(row) for row in after.rows]) == (
                StepStatus.OK, [allowed(name, guide, [*walker.committed, golden])],
            )  # fmt: skip
            stuck, _ = fresh(name, guide, text[: start + num_drafts + 1])
            refused_without += kept < num_drafts and not stuck.accept_token(golden)
    assert refused_without >= num_drafts


@every_engine
@every_guide
def test_terminal_drafts_and_drafts_behind_the_end(name: str, guide: str) -> None:  # spec 37, 45, 17
    text = a_text(name, guide, 1)
    for behind in ((), (text[0],), (STOP,), (text[0], text[1])):
        walker = Walker(name, guide, text[:-4])
        answer = walker.step((*text[-4:], *behind))
        assert (answer.status, answer.num_advanced, len(answer.rows)) == (StepStatus.TERMINATED, 4, 3)
        walker.committed += text[-4:-2]  # the verifier took the first two only
        after = walker.step((text[-2],), accepted=2)
        assert (after.status, [ids(row) for row in after.rows]) == (StepStatus.OK, [allowed(name, guide, list(text[:-1]))])
        assert walker.step((text[-2], STOP), accepted=0).status is StepStatus.TERMINATED


@every_engine
@every_guide
def test_a_refused_draft_at_each_place(name: str, guide: str) -> None:  # spec 36, 32
    text = a_text(name, guide, 2)
    for place in range(6):
        wrong = next(t for t in range(256) if t not in allowed(name, guide, list(text[:place])))
        walker = Walker(name, guide)
        answer = walker.step((*text[:place], wrong, *text[place + 1 : 7]))
        assert answer.num_advanced == place == len(answer.rows)
        assert answer.status is (StepStatus.OK if place else StepStatus.REFUSED)
        walker.committed += text[:place]
        after = walker.step((text[place],), accepted=place or -1)
        assert (after.status, [ids(row) for row in after.rows]) == (
            StepStatus.OK, [allowed(name, guide, list(text[: place + 1]))],
        )  # fmt: skip


@every_engine
@every_guide
def test_resume_and_replay_at_each_length(name: str, guide: str) -> None:  # spec 50, R9, 30
    """A session that is opened with committed tokens answers as one that walked them; the grammar never begins anew."""
    text = a_text(name, guide, 0)
    walked = Walker(name, guide)
    for length in range(len(text) - 1):
        again = Walker(name, guide, text[:length])
        first = again.step(())
        path = text[length : length + 3]
        answer, replayed = walked.step(path, accepted=1 if length else -1), again.step(path, accepted=-1)
        assert [ids(row) for row in first.rows] == [allowed(name, guide, list(text[:length]))]
        assert (answer.status, answer.num_advanced, [ids(row) for row in answer.rows]) == (
            replayed.status, replayed.num_advanced, [ids(row) for row in replayed.rows],
        )  # fmt: skip
        walked.committed.append(text[length])
