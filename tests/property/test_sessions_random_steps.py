"""Random entries against a model that knows the language: every answer is the model's, every state is consistent."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared import digest
from shared.protocol import Open, StepEntry, StepStatus
from tests.scripted import EOS, PLAN, Bench, Language, drive, ids, matcher

TOKENS = st.integers(0, 3)
WORDS = st.lists(st.lists(TOKENS, min_size=1, max_size=5).map(tuple), min_size=1, max_size=6)
PATH = st.lists(st.one_of(TOKENS, st.just(EOS)), max_size=5)


class Model:
    """What a walk must answer, straight from the list of words."""

    def __init__(self, language: Language) -> None:
        self.language = language

    def row(self, prefix: tuple[int, ...]) -> set[int]:
        if EOS in prefix:
            return set()
        ends = {EOS} if self.language.can_end(prefix) else set()
        return self.language.allowed(prefix) | ends

    def without_dead(self, prefix: tuple[int, ...], row: set[int]) -> set[int]:
        """The row once every token of it that leads to a dead state has been met (R6)."""
        return {token for token in row if token == EOS or self.row((*prefix, token))} or row

    def walk(self, base: tuple[int, ...], path: list[int]) -> tuple[StepStatus, int, list[set[int]]]:
        if not path:
            row = self.row(base)
            return (StepStatus.OK, 0, [row]) if row else (StepStatus.DEAD_END, 0, [])
        rows: list[set[int]] = []
        allowed = self.row(base)
        for position, token in enumerate(path):
            if token not in allowed:
                break
            base += (token,)
            if token == EOS:
                return StepStatus.TERMINATED, position + 1, rows
            row = self.row(base)
            if not row and position == 0:
                return StepStatus.DEAD_END, 0, []
            if not row:
                rows[-1] = rows[-1] - {token} or rows[-1]  # R6
                break
            rows.append(row)
            allowed = row
        return (StepStatus.OK, len(rows), rows) if rows else (StepStatus.REFUSED, 0, [])


class RandomSteps(RuleBasedStateMachine):  # spec 42-45, R6, R8, R9
    """One session; the worker's side may commit, hold, lose, repeat, reopen and ask for nonsense."""

    @initialize(words=WORDS, dead=WORDS)
    def start(self, words: list[tuple[int, ...]], dead: list[tuple[int, ...]]) -> None:
        language = Language(words, dead=dead)
        self.model = Model(language)
        self.bench = Bench(language)
        self.epoch = 0
        self.last: tuple[StepEntry, object] | None = None
        self.kept = -1
        self.walked: list[int] = []

    def _entry(self, path: list[int], *, committed: int, accepted: int) -> StepEntry:
        tokens = self.bench.tokens
        self.bench.number += 1
        prefix = digest.chain(PLAN, tokens)[-1]
        told = tokens[len(tokens) - committed :]
        return StepEntry(7, self.epoch, self.bench.number, len(tokens), prefix, told, path, [], accepted)

    def _check(self, entry: StepEntry) -> None:
        answer = self.bench.run(entry)
        status, advanced, rows = self.model.walk(tuple(self.bench.tokens), list(entry.path))
        if EOS in self.bench.tokens:
            status = StepStatus.REFUSED if entry.path else StepStatus.TERMINATED
        if answer.status is StepStatus.REFUSED and status is StepStatus.DEAD_END:
            status = StepStatus.REFUSED  # the dead token is forbidden already: an earlier walk met it
        assert (answer.status, answer.num_advanced, len(answer.rows)) == (status, advanced, len(rows))
        for depth, (row, wanted) in enumerate(zip(answer.rows, rows, strict=True)):
            prefix = (*self.bench.tokens, *entry.path[: depth + 1])
            assert ids(row) in (wanted, self.model.without_dead(prefix, wanted))
        self.last = (entry, answer)
        self.walked = list(entry.path[:advanced])

    @rule(path=PATH)
    def step(self, path: list[int]) -> None:
        self._check(self._entry(path, committed=0, accepted=-1))

    @precondition(lambda self: self.walked)
    @rule(data=st.data(), path=PATH)
    def commit_and_step(self, data: st.DataObject, path: list[int]) -> None:
        kept = data.draw(st.integers(1, len(self.walked)))
        beyond = data.draw(st.integers(0, 2)) if kept == len(self.walked) else 0
        self.bench.tokens += self.walked[:kept]
        self._check(self._entry(path, committed=kept, accepted=kept + beyond))

    @precondition(lambda self: self.walked)
    @rule(path=PATH)
    def lose_an_entry_and_step(self, path: list[int]) -> None:
        self.bench.tokens += self.walked
        lost = self._entry([], committed=len(self.walked), accepted=-1)
        assert lost.sequence_number == self.bench.number
        self._check(self._entry(path, committed=len(self.bench.tokens), accepted=-1))

    @precondition(lambda self: self.last is not None)
    @rule()
    def repeat(self) -> None:
        assert self.last is not None
        entry, answer = self.last
        assert drive(self.bench.sessions.step(entry, 0.0), self.bench.store) == answer

    @precondition(lambda self: self.last is not None)
    @rule(age=st.integers(1, 3))
    def late(self, age: int) -> None:
        assert self.last is not None
        entry = self.last[0]
        old = StepEntry(7, self.epoch, entry.sequence_number - age, 0, PLAN, [], [])
        assert self.bench.sessions.step(old, 0.0) is None

    @rule(path=PATH)
    def ask_with_a_wrong_digest(self, path: list[int]) -> None:
        self.bench.number += 1
        entry = StepEntry(7, self.epoch, self.bench.number, len(self.bench.tokens), b"otherwis", [], path)
        assert self.bench.run(entry).status is StepStatus.RESYNC
        self.last = None

    @rule()
    def reopen(self) -> None:
        self.epoch += 1
        message = Open(handle=7, epoch=self.epoch, plan_digest=PLAN, stop_ids=[EOS], committed=list(self.bench.tokens))
        assert self.bench.sessions.open(message, lambda: matcher(self.model.language), 0.0) is not None
        self.last, self.walked = None, []

    @rule(path=PATH, draft=st.booleans())
    def draft_walk(self, path: list[int], draft: bool) -> None:
        entry = self._entry(path, committed=0, accepted=-1)
        entry = StepEntry(*(getattr(entry, name) for name in entry.__struct_fields__[:9]), draft)
        answer = self.bench.run(entry)
        status, advanced, rows = self.model.walk(tuple(self.bench.tokens), path)
        if EOS not in self.bench.tokens:
            for depth, (row, wanted) in enumerate(zip(answer.rows, rows, strict=True)):
                prefix = (*self.bench.tokens, *path[: depth + 1])
                assert ids(row) in (wanted, self.model.without_dead(prefix, wanted))
            assert (answer.status, answer.num_advanced) in ((status, advanced), (StepStatus.DEAD_END, 1))
        self.last, self.walked = (entry, answer), []

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "bench"):
            self.bench.sessions.validate()
            assert self.bench.session.tokens[: len(self.bench.tokens)] == self.bench.tokens or self.bench.session.broken is None


TestRandomSteps = RandomSteps.TestCase
TestRandomSteps.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
