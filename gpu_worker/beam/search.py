"""BeamSearch: which continuations go on, which texts are finished, and when it is over. Pure: numbers in, decisions out.

The rules are those of ``kernels.plain.beam`` for one request, in the same arithmetic (fp32, each operation rounded by itself), with
the end of a text left to the caller: an end token is one way to end, a stop string another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from shared.errors import AccountingError
from shared.sampling_params import SamplingParams

Text = TypeVar("Text")
NOTHING = float("-inf")


@dataclass(frozen=True, slots=True)
class BeamRules:
    """``widths[t]`` beams after output position t, the last for all that follow (spec 108, 109); ``early_stopping`` 1: over when
    the pool is full; 0: when no live beam can pass the worst finished text at its present length; 2: at the greatest length."""

    widths: tuple[int, ...]
    length_penalty: float
    diversity: float
    early_stopping: int
    max_tokens: int

    @classmethod
    def of(cls, params: SamplingParams, max_tokens: int) -> BeamRules:
        widths = tuple(params.beam_width_array) or (params.num_drawn,)
        return cls(widths, params.length_penalty, params.beam_search_diversity_rate, params.early_stopping, max_tokens)

    def width(self, position: int) -> int:
        return self.widths[min(position, len(self.widths) - 1)]

    def scale(self, length: int) -> float:
        return float(float(max(length, 1)) ** float(np.float32(self.length_penalty)))


class Candidate(NamedTuple):
    """A continuation: ``at`` is its place among those told of its beam; ``cum`` the raw cumulative log-probability."""

    beam: int
    at: int
    token: int
    cum: float


class Finished(NamedTuple, Generic[Text]):
    score: float
    cum: float
    text: Text


class BeamSearch(Generic[Text]):
    """``cums`` of the live beams by rank, ``pool`` the finished texts, best first (an equal score behind the older)."""

    def __init__(self, rules: BeamRules) -> None:
        self.rules = rules
        self.length = 0
        self.cums: list[float] = [0.0]
        self.pool: list[Finished[Text]] = []
        self.done = False

    @property
    def width(self) -> int:
        """Beams after the next step."""
        return self.rules.width(self.length)

    def rank(self, told: Sequence[Sequence[tuple[int, float]]], most: int) -> list[Candidate]:
        """The best ``most`` of all beams' continuations (token, log-probability), by (cum + diversity * beam) / length ^ penalty
        descending, then beam, then token (spec 107)."""
        scale, found = np.float32(self.rules.scale(self.length + 1)), list[tuple[float, Candidate]]()
        for beam, (cum, row) in enumerate(zip(self.cums, told, strict=True)):
            bonus = np.float32(self.rules.diversity) * np.float32(beam)
            for at, (token, logprob) in enumerate(row):
                total = np.float32(cum) + np.float32(logprob)
                if total > NOTHING:
                    found.append((float((total + bonus) / scale), Candidate(beam, at, token, float(total))))
        found.sort(key=lambda each: (-each[0], each[1].beam, each[1].token))
        return [candidate for _, candidate in found[:most]]

    def advance(self, ranked: Sequence[Candidate], ended: Sequence[Text | None]) -> list[int]:
        """Takes one token: ``ended[i]`` is the finished text where ranked[i] ends it. Ends among the first ``width`` go to the
        pool, later ones are dropped; the best others go on, up to ``width``: their indices, best first. ``done`` may be set."""
        if self.done:
            raise AccountingError("a beam search that is over takes no token")
        width, self.length = self.width, self.length + 1
        for candidate, text in zip(ranked[:width], ended, strict=False):
            if text is not None:
                self._finish(candidate.cum, text, self.length, width)
        alive = [at for at, text in enumerate(ended) if text is None][:width]
        self.cums = [ranked[at].cum for at in alive]
        self.done = not alive or self._is_over(width)
        return alive

    def _finish(self, cum: float, text: Text, length: int, width: int) -> None:
        score = float(np.float32(cum / self.rules.scale(length)))
        at = sum(other.score >= score for other in self.pool)
        self.pool.insert(at, Finished(score, cum, text))
        del self.pool[width:]

    def _is_over(self, width: int) -> bool:
        if len(self.pool) < width:
            return False
        rules, length = self.rules, self.length
        if rules.early_stopping == 1:
            return True
        if rules.early_stopping != 0 and rules.length_penalty > 0:
            length = rules.max_tokens
        return max(self.cums) / rules.scale(length) <= self.pool[width - 1].score

    def validate(self) -> None:
        """Raises AccountingError where the parts disagree."""
        scores = [finished.score for finished in self.pool]
        if scores != sorted(scores, reverse=True):
            raise AccountingError(f"the pool is not in order: {scores}")
        if max(len(self.cums), len(self.pool)) > max(self.rules.widths):
            raise AccountingError(f"{len(self.cums)} beams and {len(self.pool)} finished texts of {max(self.rules.widths)}")
        if not self.cums and not self.done:
            raise AccountingError("no beam is alive and the search goes on")
