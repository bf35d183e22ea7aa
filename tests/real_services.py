"""A grammar link with real grammar services as processes, and texts generated under their rows."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gpu_worker.checking.encoders import byte_encoder
from gpu_worker.grammar_link import GrammarLink, LinkSettings, Outcome, Walk, WalkStatus
from shared.bitmask import num_words, token_ids
from shared.guide import Guide
from shared.processes import Processes
from shared.protocol import Compiled
from shared.tokenizer import Vocabulary

SETTINGS = LinkSettings(replay_after_s=0.5, dead_after_s=1.5)
START_S = 60.0


class RealLink:
    """Leave it with ``close``. ``services`` maps the name of a service to its process."""

    def __init__(
        self, folder: Path, *, services: int = 1, vocabulary: Vocabulary | None = None, settings: LinkSettings = SETTINGS
    ) -> None:
        self.vocabulary = vocabulary or byte_encoder().vocabulary
        self.stop_ids = list(self.vocabulary.stop_ids)
        self.link = GrammarLink(settings=settings)
        self.link.start(self.vocabulary)
        self._processes = Processes(folder / "services.log")
        self.services: dict[str, subprocess.Popen[bytes]] = {}
        self.step_number = 0
        for _ in range(services):
            self.start_service()
        self.wait_for(services)

    def start_service(self, *flags: str) -> str:
        name = f"real-{len(self.services) + 1}-{time.monotonic_ns()}"
        self.services[name] = self._processes.start(
            "grammar_service", "--workers", self.link.address, "--metrics-port", "0", "--name", name, *flags
        )
        return name

    def wait_for(self, services: int) -> None:
        until_s = time.monotonic() + START_S
        while len(self.link.service_names) != services:
            assert time.monotonic() < until_s, f"{self.link.service_names} are ready, not {services}"
            time.sleep(0.02)

    def kill(self, name: str) -> None:
        process = self.services.pop(name)
        process.kill()
        process.wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        self.services[name].send_signal(number)

    def close(self) -> None:
        self._processes.stop_all()
        self.link.close()

    # ---- use -----------------------------------------------------------------------------------------------------------------

    def compile(self, guide: Guide) -> Compiled:
        return self.link.compile(guide).result(60)

    def open(self, compiled: Compiled, committed: tuple[int, ...] = ()) -> int:
        assert compiled.plan is not None
        return self.link.open(compiled.key, compiled.plan, self.stop_ids, committed)

    def rows(self, session: int, *, timeout_s: float = 30.0, **walk: object) -> tuple[Outcome, np.ndarray]:
        """One walk to its end, however often it holds."""
        asked = Walk(session, **walk)  # type: ignore[arg-type]
        out = np.zeros((asked.num_rows, num_words(self.vocabulary.size)), np.int32)
        until_s = time.monotonic() + timeout_s
        while True:
            self.step_number += 1
            ticket = self.link.submit(self.step_number, [asked], out)
            ticket.wait(0.1, for_held=True)
            outcome = ticket.seal()[session]
            if outcome.status is not WalkStatus.HOLD or time.monotonic() > until_s:
                return outcome, out
            asked = asked._replace(committed=())

    def allowed(self, row: np.ndarray) -> list[int]:
        return [int(i) for i in token_ids(row, self.vocabulary.size)]


class Texts:
    """Several texts at once, one step after the other, as the step loop does it: seeded, so that the tokens are a function of the
    rows alone."""

    def __init__(self, real: RealLink, compiled: list[Compiled], seed: int = 0) -> None:
        self.real = real
        self.sessions = [real.open(entry) for entry in compiled]
        self.dice = [random.Random(f"{seed}/{number}") for number in range(len(compiled))]
        self.tokens: list[list[int]] = [[] for _ in compiled]
        self.told = [0] * len(compiled)
        self.ended = [False] * len(compiled)
        self.errors: dict[int, Outcome] = {}
        self.out = np.zeros((len(compiled), num_words(real.vocabulary.size)), np.int32)

    def run(
        self, disturb: Callable[[int], None] = lambda step: None, *, max_tokens: int = 60, timeout_s: float = 90.0
    ) -> list[bytes]:
        until_s, step = time.monotonic() + timeout_s, 0
        while not all(self.ended):
            assert time.monotonic() < until_s, "the texts did not end"
            disturb(step)
            step += 1
            self._step(max_tokens)
        table = self.real.vocabulary.token_bytes
        return [b"".join(table[t] for t in tokens if t not in self.real.stop_ids) for tokens in self.tokens]

    def _step(self, max_tokens: int) -> None:
        live = [number for number, ended in enumerate(self.ended) if not ended]
        self.real.step_number += 1
        ticket = self.real.link.submit(self.real.step_number, [self._walk(number) for number in live], self.out)
        ticket.wait(0.1, for_held=True)
        outcomes = ticket.seal()
        for number in live:
            self._take(number, outcomes[self.sessions[number]], max_tokens)

    def _walk(self, number: int) -> Walk:
        tokens = self.tokens[number]
        base = max(len(tokens) - 1, 0)
        committed, self.told[number] = tokens[self.told[number] : base], base
        return Walk(self.sessions[number], number, committed, tokens[base:], accepted=1 if committed else -1)

    def _take(self, number: int, outcome: Outcome, max_tokens: int) -> None:
        if outcome.status is WalkStatus.HOLD:
            return
        if outcome.status is not WalkStatus.OK:
            self.errors[number] = outcome
            self._end(number)
            return
        token = self.dice[number].choice(self.real.allowed(self.out[number]))
        self.tokens[number].append(token)
        if token in self.real.stop_ids or len(self.tokens[number]) >= max_tokens:
            self._end(number)

    def _end(self, number: int) -> None:
        self.ended[number] = True
        self.real.link.close_session(self.sessions[number])
