"""Beam search on the demo model, text for text that of another implementation (transformers).

Without penalties and bans the rules are the same: log-probabilities of the whole vocabulary, the score's length counts the end
token, at the greatest length the best continuations of the step end. With them the other implementation changes log-probabilities
and does not renormalise, ours changes logits and ranks by what is left, renormalised: no comparison is made there.
"""

from __future__ import annotations

import queue

import pytest
import torch

from gpu_worker.config import WorkerSettings
from gpu_worker.engine import Engine
from gpu_worker.grammar_link import GrammarLink
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.load import load_model
from gpu_worker.models.prepare import default_folder
from gpu_worker.outcomes import Outcomes
from gpu_worker.pipeline import HostPipeline
from gpu_worker.request import Model, admit
from gpu_worker.requests import Requests
from gpu_worker.scheduler import Scheduler
from shared.clock import MonotonicClock
from shared.protocol import Done, Generate
from tests.oracle_prompts import prompts_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
WIDTH, STEPS, NUM_PROMPTS = 3, 8, 4
COMMA = 28
CASES = [
    ({"length_penalty": 1.0, "early_stopping": 1}, {"early_stopping": True}),
    ({"length_penalty": 2.0, "early_stopping": 0}, {"early_stopping": False}),
    ({"length_penalty": -0.5, "early_stopping": 2}, {"early_stopping": "never"}),
]


@pytest.fixture(scope="module")
def loaded():
    shape = RunnerShape(max_slots=WIDTH * NUM_PROMPTS, max_length=64, prefill_chunk=8)
    return load_model(str(default_folder()), shape, device="cpu", threads=1, say=lambda text: None)


@pytest.fixture(scope="module")
def oracle():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(default_folder(), dtype=torch.float32, local_files_only=True).eval()


@pytest.fixture(scope="module")
def search(loaded):
    """Runs beam searches in the real step loop, all at once."""
    link, clock, replies = GrammarLink(), MonotonicClock(), queue.SimpleQueue()
    link.start(loaded.vocabulary)
    pipeline = HostPipeline(loaded.runner)
    outcomes = Outcomes(lambda sent: [replies.put(message) for _, message in sent], clock, loaded.vocabulary.size)
    slots = loaded.runner.max_slots
    settings = WorkerSettings(max_slots=slots)
    engine = Engine(settings, pipeline, link, Scheduler(slots, 8), Requests(loaded.vocabulary), outcomes, clock)
    model = Model("demo", loaded.vocabulary, loaded.chat, 64, max_slots=slots)
    engine.start()

    def run(prompts, **params):
        for number, prompt in enumerate(prompts):
            message = Generate(request_id=str(number), prompt_token_ids=prompt, stream=False, sampling_params=params)
            engine.submit(admit(message, b"c", model, now_s=clock.now_s(), deadline_s=300.0, max_deadline_s=300.0))
        endings = {ending.request_id: ending for ending in (replies.get(timeout=300) for _ in prompts)}
        assert all(isinstance(ending, Done) for ending in endings.values()), endings
        return [[choice.token_ids for choice in endings[str(number)].choices] for number in range(len(prompts))]

    yield run
    engine.close()
    outcomes.close()
    pipeline.close()
    link.close()


def theirs(oracle, prompts, **options):
    """Texts by prompt, best first; what pads the batch behind an end is cut."""
    with torch.inference_mode():
        ids = torch.tensor(prompts)
        out = oracle.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=WIDTH, num_return_sequences=WIDTH,
            max_new_tokens=STEPS, eos_token_id=COMMA, pad_token_id=COMMA, **options,
        )  # fmt: skip
    rows = [row[: row.index(COMMA) + 1] if COMMA in row else row for row in out[:, len(prompts[0]) :].tolist()]
    return [rows[at : at + WIDTH] for at in range(0, len(rows), WIDTH)]


# spec 107 108
@pytest.mark.parametrize(("params", "options"), CASES, ids=[str(options["early_stopping"]) for _, options in CASES])
def test_the_same_texts(loaded, oracle, search, params, options):
    """A comma ends a text, so that beams end early and the pool fills."""
    prompts = prompts_of(loaded.chat.encode, NUM_PROMPTS)
    found = search(prompts, use_beam_search=True, best_of=WIDTH, n=WIDTH, max_tokens=STEPS, end_id=COMMA, **params)
    expected = theirs(oracle, prompts, length_penalty=params["length_penalty"], **options)
    assert found == expected
    assert len({len(text) for texts in found for text in texts}) > 1


def test_beams_find_other_texts_than_greed(loaded, search):
    """The comparison above would say little where one beam gave the same."""
    prompts = prompts_of(loaded.chat.encode, 2)
    greedy, beams = (
        search(prompts, max_tokens=STEPS, end_id=COMMA, **params)
        for params in ({"temperature": 0}, {"use_beam_search": True, "best_of": WIDTH, "length_penalty": 2.0})
    )
    assert greedy != beams
