"""The real step loop with beam searches on the synthetic model, a real grammar service behind it, and the search it must equal."""

from __future__ import annotations

import queue
import time

import numpy as np
import torch

from gpu_worker.config import WorkerSettings
from gpu_worker.engine import Engine
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.outcomes import Outcomes
from gpu_worker.pipeline import HostPipeline
from gpu_worker.request import Model, admit
from gpu_worker.requests import Requests
from gpu_worker.scheduler import Scheduler
from kernels.reference import BeamParams, BeamState, beam_step, finalize_beams
from shared.clock import MonotonicClock
from shared.protocol import Generate
from tests.real_services import RealLink

SLOTS, MAX_LENGTH, SEED = 12, 96, 5
PROMPT = [70, 71]


def odd(logits, contexts):
    """A processor that forbids even tokens after an even one."""
    for row, context in zip(logits, contexts, strict=True):
        if not [*context.prompt, *context.output][-1] % 2:
            row[::2] = -torch.inf
    return logits


class Bytes:
    """A byte is a token."""

    def encode(self, text, *, add_special_tokens=True):
        return list(text.encode())


class Bench:
    """``guides`` need services; ``settings`` are the worker's. Leave it with ``close``."""

    def __init__(self, folder, *, services=1, slots=SLOTS, forward_ms=0.0, **settings):
        self.real = RealLink(folder, services=services)
        self.vocabulary = self.real.vocabulary
        shape = RunnerShape(max_slots=slots, max_length=MAX_LENGTH, prefill_chunk=32)
        self.runner = SyntheticRunner(self.vocabulary, shape, SyntheticOptions(seed=SEED, mean_length=12, forward_ms=forward_ms))
        self.pipeline = HostPipeline(self.runner)
        self.replies = queue.SimpleQueue()
        clock = MonotonicClock()
        self.outcomes = Outcomes(lambda sent: [self.replies.put(m) for _, m in sent], clock, self.vocabulary.size)
        self.model = Model(
            "bench", self.vocabulary, Bytes(), shape.max_length, processors={"odd": odd}, max_slots=slots
        )  # fmt: skip
        chosen = WorkerSettings(max_slots=slots, **settings)
        self.engine = Engine(
            chosen, self.pipeline, self.real.link, Scheduler(slots, 32), Requests(self.vocabulary), self.outcomes, clock
        )
        self._watch()
        self.engine.start()
        self.number = 0

    def _watch(self):
        """Every group's books are checked after every step."""
        commit = self.engine._beam_steps.commit

        def checked(group, *arguments):
            error = commit(group, *arguments)
            group.validate()
            self.engine.scheduler.validate()
            return error

        self.engine._beam_steps.commit = checked

    def close(self):
        self.engine.close()
        self.outcomes.close()
        self.pipeline.close()
        self.real.close()

    def submit(self, guide=None, prompt=PROMPT, reasoning=None, **params):
        self.number += 1
        message = Generate(
            request_id=str(self.number), prompt_token_ids=list(prompt), structured_outputs=guide, reasoning=reasoning, stream=False,
            sampling_params=params,
        )  # fmt: skip
        now_s = MonotonicClock().now_s()
        self.engine.submit(admit(message, b"c", self.model, now_s=now_s, deadline_s=60.0, max_deadline_s=60.0))
        return message.request_id

    def wait(self, count=1):
        """Endings of that many requests, by their ids."""
        return {ending.request_id: ending for ending in (self.replies.get(timeout=90) for _ in range(count))}

    def until_begun(self, num_tokens):
        """Waits until some text has that many tokens."""
        end_s = time.monotonic() + 60
        while not any(len(s.tokens) >= num_tokens for state in list(self.engine.requests.by_key.values()) for s in state.sequences):
            assert time.monotonic() < end_s
            time.sleep(0.002)

    def beams(self, guide=None, **params):
        """The ending of one beam search."""
        request_id = self.submit(guide, use_beam_search=True, **params)
        return self.wait()[request_id]


def logits_after(vocabulary, prefix):
    """Float32 [V] of the synthetic model, from a runner of its own."""
    shape = RunnerShape(max_slots=1, max_length=MAX_LENGTH, prefill_chunk=MAX_LENGTH)
    runner = SyntheticRunner(vocabulary, shape, SyntheticOptions(seed=SEED, mean_length=12))
    return runner.prefill(0, list(prefix), 0, last=True).clone()


def expected(vocabulary, *, width, max_tokens, allowed=None, change=None, widths=(), length_penalty=1.0, diversity=0.0,
             early_stopping=1, prompt=PROMPT, end_id=None):  # fmt: skip
    """Texts of the pool with their cumulative log-probabilities, best first, by the reference kernel over whole rows: ``allowed``
    maps an output to the ids that may follow, ``change`` an output and its logits to other logits."""
    end_id = vocabulary.stop_ids[0] if end_id is None else end_id
    state = BeamState.start(1, width, max_tokens)
    for position in range(max_tokens):
        rows = torch.full((width, vocabulary.size), -torch.inf)
        for beam, cum in enumerate(state.cum[0].tolist()):
            output = state.tokens[0, beam, :position].tolist()
            if cum > -np.inf:
                rows[beam] = _row(logits_after(vocabulary, [*prompt, *output]), output, allowed, change)
        step = widths[min(position, len(widths) - 1)] if widths else width
        numbers = (step, length_penalty, diversity, early_stopping, end_id, max_tokens)
        kinds = (torch.int32, torch.float32, torch.float32, torch.int32, torch.int32, torch.int32)
        params = BeamParams(*(torch.full((1,), number, dtype=kind) for number, kind in zip(numbers, kinds, strict=True)))
        beam_step(rows[None], state, params)
        if state.done[0] and position < max_tokens - 1:
            break
    else:
        state.done[:] = False  # the greatest length ends every text
    finalize_beams(state, params)
    rows = zip(state.pool_tokens[0], state.pool_length[0].tolist(), state.pool_cum[0].tolist(), strict=True)
    return [(tokens[:length].tolist(), cum) for tokens, length, cum in rows if length]


def _row(logits, output, allowed, change):
    logits = logits if change is None else change(output, logits)
    if allowed is not None:
        banned = torch.ones(len(logits), dtype=torch.bool)
        banned[list(allowed(output))] = False
        logits = logits.masked_fill(banned, -torch.inf)
    return torch.log_softmax(logits.double(), 0).float() if torch.isfinite(logits).any() else logits


def texts_of(ending):
    return [choice.token_ids for choice in ending.choices]
