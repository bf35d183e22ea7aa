"""Races of the step on the host pipeline: whatever comes late, twice or not at all, the texts are those of an undisturbed run.

A real step loop over a real link; the services are threads with a toy language, so that each race is made and not waited for.
"""

from __future__ import annotations

import queue
import time
from contextlib import ExitStack

import pytest

from gpu_worker.config import WorkerSettings
from gpu_worker.engine import Engine
from gpu_worker.grammar_link import GrammarLink, LinkSettings
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.outcomes import Outcomes
from gpu_worker.pipeline import HostPipeline
from gpu_worker.request import Model, admit
from gpu_worker.requests import Requests
from gpu_worker.scheduler import Scheduler
from shared.clock import MonotonicClock
from shared.protocol import Done, Generate
from tests.requests_of import ByteEncoder
from tests.toy_service import ToyService, vocabulary

pytestmark = pytest.mark.failure
SLOTS, TEXTS, LENGTH = 6, 6, 24


class Bench:
    def __init__(self, stack: ExitStack, *, services: int = 1, last_resort_s: float = 20.0, hold_after_s: float = 0.05) -> None:
        self.link = GrammarLink(settings=LinkSettings(ping_interval_s=0.1, replay_after_s=0.4, dead_after_s=1.0))
        self.link.start(vocabulary())
        stack.callback(self.link.close)
        self.services: list[ToyService] = []
        for number in range(services):
            self.services.append(ToyService(self.link.address, f"toy-{number}"))
            self.services[-1].start()
            stack.callback(self.services[-1].stop)
        wait_until(lambda: len(self.link.service_names) == services)
        shape = RunnerShape(max_slots=SLOTS, max_length=128, prefill_chunk=32)
        runner = SyntheticRunner(vocabulary(), shape, SyntheticOptions(seed=5, mean_length=30, forward_ms=3.0))
        self.pipeline = HostPipeline(runner, last_resort_s)
        stack.callback(self.pipeline.close)
        self.replies: queue.SimpleQueue[object] = queue.SimpleQueue()
        outcomes = Outcomes(lambda sent: [self.replies.put(m) for _, m in sent], MonotonicClock(), vocabulary().size)
        stack.callback(outcomes.close)
        settings = WorkerSettings(max_slots=SLOTS, hold_after_s=hold_after_s, last_resort_s=20.0)
        self.engine = Engine(
            settings, self.pipeline, self.link, Scheduler(SLOTS, 32), Requests(vocabulary()), outcomes, MonotonicClock()
        )
        self.engine.start()
        stack.callback(self.engine.close)

    def submit(self) -> None:
        model = Model("toy", vocabulary(), ByteEncoder(), 128)
        for number in range(TEXTS):
            params = {"seed": number, "temperature": 1.0, "max_tokens": LENGTH, "min_tokens": LENGTH}
            message = Generate(
                request_id=str(number), prompt_token_ids=[70, 71], sampling_params=params, stream=False,
                structured_outputs={"regex": f"toy{number}"},
            )  # fmt: skip
            now_s = MonotonicClock().now_s()
            self.engine.submit(admit(message, b"c", model, now_s=now_s, deadline_s=60.0, max_deadline_s=60.0))

    def endings(self) -> dict[str, Done]:
        found = {}
        for _ in range(TEXTS):
            ending = self.replies.get(timeout=60)
            assert isinstance(ending, Done), ending
            found[ending.request_id] = ending
        return found

    def run(self) -> dict[str, list[int]]:
        self.submit()
        return texts(self.endings())

    def working(self) -> list[ToyService]:
        """Services with sessions that were stepped."""
        return [
            service for service in self.services if any(len(session.history) > 1 for session in list(service.sessions.values()))
        ]


def texts(endings: dict[str, Done]) -> dict[str, list[int]]:
    return {number: ending.choices[0].token_ids for number, ending in endings.items()}


def wait_until(is_so, timeout_s: float = 20.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.002)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list[int]]:
    with ExitStack() as stack:
        return Bench(stack).run()


def test_a_text_is_as_long_as_asked(undisturbed: dict[str, list[int]]) -> None:
    assert {len(tokens) for tokens in undisturbed.values()} == {LENGTH} and len(undisturbed) == TEXTS


# spec R5 R12
def test_late_answer_after_the_watchdog(undisturbed: dict[str, list[int]]) -> None:
    """The watchdog lets a launch go before its rows have come, and they come before the step loop gives up on them: the launch has
    held, its seal is too late, the rows serve the repetition."""
    with ExitStack() as stack:
        bench = Bench(stack, last_resort_s=0.06, hold_after_s=0.3)
        bench.submit()
        for _ in range(3):
            wait_until(lambda: bench.working())
            bench.services[0].silence()
            time.sleep(0.15)
            bench.services[0].speak()
            time.sleep(0.05)
        endings = bench.endings()
        assert texts(endings) == undisturbed
        assert sum(ending.usage.holds for ending in endings.values()) > 0


# spec R9 133
def test_a_replay_that_arrives_with_the_first_answer(undisturbed: dict[str, list[int]]) -> None:
    """A silent service's sessions are replayed elsewhere, and it finds its voice at that very moment: both answer."""
    with ExitStack() as stack:
        bench = Bench(stack, services=2)
        for service in bench.services:
            service.copies = 2
        bench.submit()
        wait_until(lambda: bench.working())
        silent = bench.working()[0]
        other = next(service for service in bench.services if service is not silent)
        waiting = set(silent.sessions)
        silent.silence()
        wait_until(lambda: waiting & set(other.sessions))
        silent.speak()
        endings = bench.endings()
        assert texts(endings) == undisturbed
        assert sum(ending.usage.replays for ending in endings.values()) > 0


# spec R9 R12
def test_one_of_three_dies_while_the_step_waits(undisturbed: dict[str, list[int]]) -> None:
    with ExitStack() as stack:
        bench = Bench(stack, services=3, hold_after_s=0.2)
        bench.submit()
        wait_until(lambda: bench.working())
        victim = bench.working()[0]
        victim.silence()  # it has read nothing of the step that waits for it
        time.sleep(0.03)
        victim.stop()
        endings = bench.endings()
        assert texts(endings) == undisturbed
        assert sum(ending.usage.replays for ending in endings.values()) > 0
        wait_until(lambda: len(bench.link.service_names) == 2)


# spec 39 R12
def test_cancelled_while_two_launches_are_in_flight(undisturbed: dict[str, list[int]]) -> None:
    """Every other text is cancelled in the middle, its slot goes to another owner at once: no token lands in a wrong text."""
    with ExitStack() as stack:
        bench = Bench(stack)
        bench.submit()
        wait_until(lambda: bench.working())
        for number in range(0, TEXTS, 2):
            bench.engine.cancel(b"c", str(number))
        endings = bench.endings()
        cancelled = {number for number, ending in endings.items() if ending.choices[0].finish_reason == "cancelled"}
        assert cancelled == {"0", "2", "4"}
        for number, tokens in texts(endings).items():
            assert tokens == undisturbed[number][: len(tokens)]
        assert bench.run() == undisturbed
