"""Requests in progress: their sequences, and how the one ending of each comes about. Pure but for the reply callback's message."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from gpu_worker.beam.group import BeamGroup
from gpu_worker.clients import Key
from gpu_worker.request import Request
from gpu_worker.sampler.seeds import SeedSource
from gpu_worker.sequence import Sequence, make_sequence
from shared.errors import MaskstreamError
from shared.protocol import Compiled, Done, Failed, Plan, Usage, WireError
from shared.tokenizer import Vocabulary


@dataclass(slots=True, eq=False)
class RequestInProgress:
    """A request with its n sequences. ``compiled`` is the grammar service's word on its guide. ``finishing``: no sequence runs any
    more, the validator may still be at work."""

    request: Request
    sequences: list[Sequence]
    compiled: Compiled | None = None
    finishing: bool = False
    cancelled: bool = False

    @property
    def beams(self) -> BeamGroup | None:
        return self.sequences[0].beams

    def ended(self) -> bool:
        if self.beams is not None:
            return self.beams.search.done or self.cancelled
        return all(sequence.finish is not None for sequence in self.sequences) or self.cancelled

    def plan(self) -> Plan | None:
        """The plan of its guide, behind its reasoning gate: the gate is part of the digest, what is compiled is the same."""
        plan, gate = self.compiled.plan if self.compiled else None, self.request.gate
        return plan if plan is None or gate is None else msgspec.structs.replace(plan, gate=gate)

    @property
    def chosen(self) -> list[Sequence]:
        """The n sequences that are returned: all, or the best of more by cumulative log-probability (the lower number first where
        two are equal), best first (spec 129); of a beam search the n best of its pool, as many as there are."""
        if self.beams is not None:
            return self.beams.chosen()
        if not self.request.params.is_ranked:
            return self.sequences
        ranked = sorted(self.sequences, key=lambda sequence: -sequence.cumulative_logprob)
        return ranked[: self.request.params.n]

    def done(self, valid: list[bool | None]) -> Done:
        """The good ending (a cancelled request ends well too, with what it has); ``valid`` judges ``chosen``."""
        plan = self.compiled.plan if self.compiled else None
        services = sorted({service for sequence in self.sequences for service in sequence.services})
        return Done(
            request_id=self.request.request_id,
            choices=[s.choice(judged, rank) for rank, (s, judged) in enumerate(zip(self.chosen, valid, strict=True))],
            usage=self.usage(),
            guide_kind=self.request.guide_kind,
            engine=f"{plan.engine} {plan.engine_version}" if plan else "",
            warnings=[*(plan.warnings if plan else []), *self.request.warnings, *self._fewer()],
            services=services,
            prompt_logprobs=self.sequences[0].scores.entries if self.sequences[0].scores else None,
        )

    def _fewer(self) -> list[str]:
        """A language of few texts has no more beams than it has texts."""
        if self.beams is None or self.cancelled or len(self.chosen) == self.request.params.n:
            return []
        return [f"the beam search found {len(self.chosen)} of {self.request.params.n} texts"]

    def failed(self, error: MaskstreamError) -> Failed:
        """The bad ending, with what the first choice had."""
        first = self.chosen[0] if self.beams is not None and self.chosen else self.sequences[0]
        return Failed(request_id=self.request.request_id, error=WireError.of(error), token_ids=first.tokens, text=first.cut())

    def usage(self) -> Usage:
        texts = self.sequences if self.beams is None else self.chosen
        started = [s.first_token_s for s in texts if s.first_token_s]
        first_s = min(started, default=0.0)
        last_s = max((s.last_token_s for s in texts), default=0.0)
        new_tokens = [len(s.tokens) - len(self.request.output_token_ids) for s in texts]
        steps = max(max(new_tokens, default=0) - 1, 1)
        return Usage(
            prompt_tokens=len(self.request.prompt_token_ids),
            completion_tokens=sum(len(s.tokens) for s in texts),
            time_to_first_token_ms=1e3 * (first_s - self.request.received_s) if first_s else 0.0,
            ms_per_token=1e3 * (last_s - first_s) / steps if first_s else 0.0,
            compile_ms=self.compiled.compile_ms if self.compiled else 0.0,
            rows=_sum_rows(self.sequences),
            replays=sum(s.replays for s in self.sequences),
            holds=sum(s.holds for s in self.sequences),
            drafts_accepted=sum(s.progress.counters.accepted for s in self.sequences),
            drafts_verified=sum(s.progress.counters.verified for s in self.sequences),
            drafts_rewound=sum(s.progress.counters.rewound for s in self.sequences),
        )


def _sum_rows(sequences: list[Sequence]) -> dict[str, int]:
    total: dict[str, int] = {}
    for sequence in sequences:
        for kind, count in sequence.rows.items():
            total[kind] = total.get(kind, 0) + count
    return total


@dataclass(slots=True)
class Requests:
    """All requests in progress by key; makes their sequences, with epochs that are never used twice."""

    vocabulary: Vocabulary
    by_key: dict[Key, RequestInProgress] = field(default_factory=dict)
    _seeds: SeedSource = field(default_factory=SeedSource)
    _next_epoch: int = 1

    def begin(self, request: Request) -> RequestInProgress:
        sequences = [self._sequence(request, child) for child in range(request.params.num_drawn)]
        if request.params.use_beam_search:
            BeamGroup(sequences)
        state = RequestInProgress(request, sequences)
        self.by_key[request.key] = state
        return state

    def _sequence(self, request: Request, child: int) -> Sequence:
        seed, first_offset = self._seeds.assign(request.params, child, request.max_tokens)
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return make_sequence(request, child, epoch, seed, first_offset, self.vocabulary)

    def end(self, state: RequestInProgress) -> None:
        self.by_key.pop(state.request.key, None)

    def expired(self, now_s: float) -> list[RequestInProgress]:
        """Requests past their deadline that still run."""
        return [s for s in self.by_key.values() if now_s >= s.request.deadline_s and not s.finishing]

    def next_deadline_s(self) -> float:
        return min((s.request.deadline_s for s in self.by_key.values()), default=float("inf"))
