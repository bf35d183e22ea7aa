"""What the device tells of a beam: its best continuations under guide, overlay and bans, with their log-probabilities."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.reference import SampleResult

MAX_CANDIDATES = 256
"""Continuations told of a beam: as many as the kernel of the log-probabilities gives."""


class BeamRow(NamedTuple):
    """A beam's slot in a launch: how many continuations are wanted, and whether their raw log-probabilities are told too."""

    num_candidates: int
    raw: bool


class BeamScores(NamedTuple):
    """``told``: (token, log-probability of the allowed, renormalised distribution), best first; ``raw``: (log-probability, rank) of
    each in the model's own distribution, where asked for (spec 111, 112); ``status``: the sampler's bits for the row."""

    told: list[tuple[int, float]]
    raw: list[tuple[float, int]] | None
    status: int


def beam_scores(sampled: SampleResult, logits: torch.Tensor, slot: int, row: BeamRow, vocab_size: int) -> BeamScores:
    """Of ``sampled``, a launch with processed log-probabilities and at least ``row.num_candidates`` alternatives; ``logits`` [V']
    are the model's own for the slot."""
    if sampled.top_ids is None or sampled.top_logprobs is None:
        raise ValueError("beams are ranked by log-probabilities, which the launch did not give")
    ids, values = (part[slot, : row.num_candidates].tolist() for part in (sampled.top_ids, sampled.top_logprobs))
    told = [(token, value) for token, value in zip(ids, values, strict=True) if token >= 0]
    raw = raw_scores(logits[:vocab_size], [token for token, _ in told]) if row.raw else None
    return BeamScores(told, raw, int(sampled.status[slot]))


def raw_scores(logits: torch.Tensor, token_ids: list[int]) -> list[tuple[float, int]]:
    """Log-probability and rank of tokens in the softmax of logits [V]; NaN is left out, a +inf has all of it."""
    x = logits.to(torch.float64)
    x = torch.where(torch.isnan(x), -torch.inf, x)
    best = int(x.argmax())
    chosen = x[token_ids]
    ranks = [1 + int((x > value).sum()) for value in chosen]
    if torch.isposinf(x[best]):
        return [(0.0 if token == best else -torch.inf, rank) for token, rank in zip(token_ids, ranks, strict=True)]
    return list(zip((chosen - torch.logsumexp(x, 0)).tolist(), ranks, strict=True))
