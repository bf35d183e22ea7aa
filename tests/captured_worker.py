"""The step loop over the captured step, on a device or an emulated one, with three real grammar services as processes."""

import queue
import signal
import time

from gpu_worker.config import WorkerSettings
from gpu_worker.engine import Engine
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.outcomes import Outcomes
from gpu_worker.request import Model, admit
from gpu_worker.requests import Requests
from gpu_worker.scheduler import Scheduler
from shared.clock import MonotonicClock
from shared.protocol import Done, Generate
from tests.real_services import RealLink


class Encoder:
    def encode(self, text, *, add_special_tokens=True):
        return list(text.encode())


GUIDES = [
    None,
    {"json": {"type": "object", "properties": {"yes": {"type": "boolean"}, "n": {"enum": [1, 22, 333]}}, "required": ["yes", "n"]}},
    {"regex": "(ab|cd){1,6}e?"},
    {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 9}},
]
SAMPLINGS = [
    {"temperature": 1.0}, {"temperature": 0}, {"temperature": 1.2, "frequency_penalty": 0.5, "logit_bias": {"97": 1.0}},
    {"temperature": 1.0, "logprobs": 2},
]  # fmt: skip


class Worker:
    """``make`` gives the pipeline of a synthetic model on ``device``. ``submit`` a request, its ending comes to ``replies``."""

    def __init__(self, folder, make, device, *, hold_after_s=0.05):
        self.real = RealLink(folder, services=3)
        self.clock, vocabulary = MonotonicClock(), self.real.vocabulary
        shape = RunnerShape(max_slots=16, max_length=256, max_width=4, prefill_chunk=32)
        runner = SyntheticRunner(vocabulary, shape, SyntheticOptions(seed=5, mean_length=40), device)
        runner.warm_up()
        self.pipeline, self.replies = make(runner), queue.SimpleQueue()
        self.outcomes = Outcomes(lambda sent: [self.replies.put(m) for _, m in sent], self.clock, vocabulary.size)
        settings = WorkerSettings(max_slots=16, max_draft_tokens=3, replay_after_s=0.5, hold_after_s=hold_after_s)
        requests, scheduler = Requests(vocabulary), Scheduler(16, 32)
        self.engine = Engine(settings, self.pipeline, self.real.link, scheduler, requests, self.outcomes, self.clock)
        self.model = Model("soak", vocabulary, Encoder(), 256)
        self.engine.start()

    def submit(self, number, guide, **params):
        message = Generate(
            request_id=str(number), prompt_token_ids=[70, 71], structured_outputs=guide, stream=False,
            verify=guide is not None, sampling_params={"seed": number, "max_tokens": 60, **params},
        )  # fmt: skip
        request = admit(message, b"c", self.model, now_s=self.clock.now_s(), deadline_s=60.0, max_deadline_s=60.0)
        self.engine.submit(request)

    def wait_for_steps(self, steps):
        """Until the device has done that many more."""
        until = self.pipeline._launched + steps
        while self.pipeline._launched < until:
            time.sleep(0.001)

    def close(self):
        self.engine.close()
        self.outcomes.close()
        self.pipeline.close()
        self.real.close()


def check_a_death(worker):
    """Twelve texts on three services, of which two are stopped and then killed with a launch on its flag: the texts are those that
    nobody disturbed. Returns how many sessions were rebuilt elsewhere."""
    try:
        texts, replays = [], 0
        for disturbed in (False, True):
            for number in range(1, 13):
                worker.submit(number, GUIDES[number % len(GUIDES)], temperature=1.0)
            if disturbed:
                worker.wait_for_steps(8)
            for name in sorted(worker.real.services)[: 2 * disturbed]:
                worker.real.signal(name, signal.SIGSTOP)
            time.sleep(0.1 * disturbed)
            for name in sorted(worker.real.services)[: 2 * disturbed]:
                worker.real.kill(name)
            endings = [worker.replies.get(timeout=60) for _ in range(12)]
            assert all(isinstance(ending, Done) for ending in endings), endings
            texts.append({ending.request_id: ending.choices[0].token_ids for ending in endings})
            replays += sum(ending.usage.replays for ending in endings)
        assert texts[0] == texts[1]
        return replays
    finally:
        worker.close()
