"""The real step loop with drafts that are right, wrong, after the end, out of the grammar, and with rows that come too late: a real
grammar service walks them, and the text is the one without drafts."""

import queue
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_worker.config import WorkerSettings
from gpu_worker.engine import Engine
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.outcomes import Outcomes
from gpu_worker.pipeline import HostPipeline
from gpu_worker.request import Model, admit
from gpu_worker.requests import Requests
from gpu_worker.scheduler import Scheduler
from gpu_worker.speculation import Drafting, ReplayDrafter, merged
from shared.clock import MonotonicClock
from shared.gate import Gate
from shared.protocol import Done, Generate
from tests.real_services import RealLink

WIDTH, SLOTS, MOST = 5, 4, 40
GUIDES = [
    None,
    {"json": {"type": "object", "properties": {"yes": {"type": "boolean"}, "n": {"enum": [1, 22, 333]}}, "required": ["yes", "n"]}},
    {"regex": "(ab|cd){1,6}e?"},
    {"grammar": 'root ::= "x" [0-9]{1,5} "y" | "x" [0-9]{1,5}\n'},
    {"regex": "[ab]{2,9}c"},
]
GATES = {4: Gate(end="\n=", start="(", budget=6)}  # the marker closes inside a block of drafts
SAMPLINGS = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 1.5, "frequency_penalty": 0.5, "min_tokens": 3},
    {"temperature": 1.5, "repetition_penalty": 1.5, "bad_words": ["ba", "dab", "tr"]},
    {"temperature": 2.0, "top_p": 0.95, "top_p_decay": 0.6, "top_p_min": 0.1},
]


class Bytes:
    """A byte is a token."""

    def encode(self, text, *, add_special_tokens=True):
        return list(text.encode())


class Forest(ReplayDrafter):
    """Random trees in which what follows stands beside, before and behind other tokens."""

    def __init__(self, script, vocab_size, dice):
        super().__init__(script, vocab_size)
        self.rng = random.Random(dice)

    def draft(self, most, branches):
        right = self.propose(most)
        guesses = [right[: self.rng.randint(0, most)] + [self.rng.randrange(200) for _ in range(2)] for _ in range(branches)]
        return merged([*guesses, right], most)


class Scripted(Drafting):
    """Each text drafts from ``script``, wrong at some positions; what lies behind the end of the script is ``tail``."""

    def __init__(self):
        super().__init__("ngram", WIDTH - 1, 2)
        self.script, self.wrong, self.tail, self.dice = None, set(), [], None

    def begin(self, text):
        if self.script is not None and self.dice is not None:
            text.progress.drafter = Forest([*self.script, *self.tail], 200, self.dice)
        elif self.script is not None:
            text.progress.drafter = ReplayDrafter([*self.script, *self.tail], 200, self.wrong)


class Bench:
    def __init__(self, folder, hold_after_s):
        self.real = RealLink(folder, services=1)
        vocabulary = self.real.vocabulary
        shape = RunnerShape(max_slots=SLOTS, max_length=128, max_width=WIDTH, prefill_chunk=32)
        runner = SyntheticRunner(vocabulary, shape, SyntheticOptions(seed=5, mean_length=30))
        self.pipeline = HostPipeline(runner)
        self.replies = queue.SimpleQueue()
        clock = MonotonicClock()
        self.outcomes = Outcomes(lambda sent: [self.replies.put(m) for _, m in sent], clock, vocabulary.size)
        self.model = Model("bench", vocabulary, Bytes(), shape.max_length)
        chosen = WorkerSettings(max_slots=SLOTS, hold_after_s=hold_after_s, max_draft_tokens=WIDTH - 1, drafter="ngram")
        self.engine = Engine(
            chosen, self.pipeline, self.real.link, Scheduler(SLOTS, 32), Requests(vocabulary), self.outcomes, clock
        )
        self.engine._drafting = self.drafting = Scripted()
        self.engine.start()
        self.number, self.plain = 0, {}

    def close(self):
        self.engine.close()
        self.outcomes.close()
        self.pipeline.close()
        self.real.close()

    def run(self, guide, sampling, copies=1):
        """The endings of ``copies`` equal requests that run side by side, and beside a text without a guide: a step in which a text
        can go on does not wait for the rows of the others."""
        company = self.submit(0, 1, max_tokens=100, ignore_eos=True)
        ours = [self.submit(guide, sampling) for _ in range(copies)]
        endings = {ending.request_id: ending for ending in (self.replies.get(timeout=90) for _ in range(copies + 1))}
        assert all(isinstance(ending, Done) for ending in endings.values()), endings
        assert len(endings[company].choices[0].token_ids) == 100
        return [endings[number] for number in ours]

    def submit(self, guide, sampling, **params):
        self.number += 1
        message = Generate(
            request_id=str(self.number), prompt_token_ids=[70, 71], structured_outputs=GUIDES[guide], reasoning=GATES.get(guide),
            stream=False,
            sampling_params={"seed": 3, "max_tokens": MOST} | SAMPLINGS[sampling] | params,
        )  # fmt: skip
        now_s = MonotonicClock().now_s()
        self.engine.submit(admit(message, b"c", self.model, now_s=now_s, deadline_s=60.0, max_deadline_s=60.0))
        return message.request_id

    def without_drafts(self, guide, sampling):
        if (guide, sampling) not in self.plain:
            self.drafting.script = None
            self.plain[guide, sampling] = self.run(guide, sampling)[0].choices[0]
        return self.plain[guide, sampling]


@pytest.fixture(scope="module", params=[0.05, 0.0002], ids=["patient", "holding"])
def bench(request, tmp_path_factory):
    made = Bench(tmp_path_factory.mktemp("bench"), request.param)
    yield made
    made.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    guide=st.integers(0, 4), sampling=st.integers(0, 4), wrong=st.sets(st.integers(0, MOST), max_size=10),
    tail=st.lists(st.integers(0, 255), max_size=6), copies=st.integers(1, SLOTS - 1),
)  # fmt: skip
def test_any_drafts_give_the_same_text(bench, guide, sampling, wrong, tail, copies):  # spec 43 45 46 125 R6 R18 R19
    expected = bench.without_drafts(guide, sampling)
    bench.drafting.script, bench.drafting.wrong, bench.drafting.tail = expected.token_ids, wrong, tail
    bench.drafting.dice = None
    for ending in bench.run(guide, sampling, copies):
        assert ending.choices[0] == expected
        usage = ending.usage
        assert usage.drafts_verified >= usage.drafts_accepted <= len(expected.token_ids) - 1
        if not wrong and len(expected.token_ids) > 6:
            assert usage.drafts_accepted >= len(expected.token_ids) // 2


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(guide=st.integers(0, 4), sampling=st.integers(0, 4), dice=st.integers(0, 1 << 30), copies=st.integers(1, SLOTS - 1))
def test_any_trees_give_the_same_text(bench, guide, sampling, dice, copies):  # spec 48 125 R10 R18 R19
    expected = bench.without_drafts(guide, sampling)
    bench.drafting.script, bench.drafting.tail, bench.drafting.dice = expected.token_ids, [104, 105], dice
    for ending in bench.run(guide, sampling, copies):
        assert ending.choices[0] == expected
        usage = ending.usage
        assert usage.drafts_verified >= usage.drafts_accepted <= len(expected.token_ids) - 1
        assert usage.drafts_accepted > 0 or len(expected.token_ids) < 4


def test_steps_were_repeated(bench):
    """The impatient bench has shown what it is for: a held step repeats its drafts and its walk."""
    bench.drafting.script, bench.drafting.wrong, bench.drafting.tail = bench.without_drafts(1, 1).token_ids, {4, 9}, []
    bench.drafting.dice = None
    holds = sum(ending.usage.holds for _ in range(5) for ending in bench.run(1, 1, SLOTS - 1))
    assert holds > 0 or bench.engine._settings.hold_after_s > 0.01
