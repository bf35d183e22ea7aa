"""One step of beam search over B requests, each by itself.

Candidates are (beam, token) with raw cumulative log-probability cum + logprob, ranked by
(cum + diversity * beam) / generated_length ^ length_penalty (descending; then beam, token ascending), generated_length
counting the candidate; each operation in fp32, the power rounded to it. Of the best 2 * width, end ids among the first
`width` go to the pool of finished beams and later ones are dropped; the best others go on, up to `width`. The stored
cum stays raw; the pool keeps the `width` best by cum / length ^ length_penalty.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

F32 = NDArray[np.float32]
_NEG = float("-inf")


@dataclass(slots=True)
class BeamParams:
    """Per request, [B]: width i32 (beams after this step), length_penalty f32, diversity f32, early_stopping i32
    (1: done when the pool is full; 0: bounded by the current length; other: by max_length where the penalty is > 0),
    end_id i32 (-1: none), max_length i32 (generated tokens)."""

    width: Tensor
    length_penalty: Tensor
    diversity: Tensor
    early_stopping: Tensor
    end_id: Tensor
    max_length: Tensor


@dataclass(slots=True)
class BeamState:
    """Live beams and the pool of finished ones, changed in place; W = the widest width, L = the longest output.

    cum f32[B, W] (-inf: no such beam), tokens i32[B, W, L] padded -1, length i32[B]; pool_score, pool_cum f32[B, W] best
    first, padded -inf; pool_tokens i32[B, W, L]; pool_length i32[B, W]; done bool[B].
    """

    cum: Tensor
    tokens: Tensor
    length: Tensor
    pool_score: Tensor
    pool_cum: Tensor
    pool_tokens: Tensor
    pool_length: Tensor
    done: Tensor

    @classmethod
    def start(cls, requests: int, width: int, longest: int) -> "BeamState":
        """One live beam a request, beam 0, with nothing generated."""
        cum = torch.full((requests, width), _NEG)
        cum[:, 0] = 0.0
        tokens = torch.full((requests, width, longest), -1, dtype=torch.int32)
        pool = torch.full((requests, width), _NEG)
        return cls(
            cum,
            tokens,
            torch.zeros(requests, dtype=torch.int32),
            pool,
            pool.clone(),
            tokens.clone(),
            torch.zeros((requests, width), dtype=torch.int32),
            torch.zeros(requests, dtype=torch.bool),
        )


@dataclass(slots=True)
class BeamStep:
    """parent i32[B, W] and token i32[B, W] of the beams that go on, padded -1; done requests have none."""

    parent: Tensor
    token: Tensor


class Candidate(NamedTuple):
    beam: int
    token: int
    cum: float


def beam_step(logprobs: Tensor, state: BeamState, params: BeamParams) -> BeamStep:
    """Advance every request that is not done by one token; logprobs f32[B, W, V] (-inf or NaN: not allowed)."""
    shape = state.cum.shape
    step = BeamStep(torch.full(shape, -1, dtype=torch.int32), torch.full(shape, -1, dtype=torch.int32))
    for b in range(shape[0]):
        if not state.done[b]:
            _advance(b, logprobs[b].numpy(), state, params, step)
    return step


def finalize_beams(state: BeamState, params: BeamParams) -> None:
    """End of generation: live beams of requests that are not done join the pool."""
    for b in torch.nonzero(~state.done).flatten().tolist():
        length = int(state.length[b])
        for beam, cum in enumerate(state.cum[b].tolist()):
            if cum > _NEG:
                _finish(b, state, params, cum, state.tokens[b, beam, :length].tolist())
        state.done[b] = True


def _advance(b: int, logprobs: F32, state: BeamState, params: BeamParams, step: BeamStep) -> None:
    width, end_id = int(params.width[b]), int(params.end_id[b])
    best = _candidates(b, logprobs, state, params, 2 * width)
    position = int(state.length[b])
    for rank, c in enumerate(best):
        if c.token == end_id and rank < width:
            _finish(b, state, params, c.cum, [*state.tokens[b, c.beam, :position].tolist(), c.token])
    survivors = [c for c in best if c.token != end_id][:width]
    _move(b, state, step, survivors)
    state.done[b] = not survivors or _is_done(b, state, params)


def _candidates(b: int, logprobs: F32, state: BeamState, params: BeamParams, count: int) -> list[Candidate]:
    total = state.cum[b].numpy()[:, None] + logprobs
    bonus = params.diversity[b].numpy() * np.arange(total.shape[0], dtype=np.float32)
    rank = ((total + bonus[:, None]) / np.float32(_length_scale(int(state.length[b]) + 1, params, b))).ravel()
    allowed = np.flatnonzero(total.ravel() > _NEG)
    if allowed.size > count:
        least = np.partition(rank[allowed], allowed.size - count)[allowed.size - count]
        allowed = allowed[rank[allowed] >= least]
    best = allowed[np.argsort(-rank[allowed], kind="stable")[:count]]
    vocab_size = total.shape[1]
    return [Candidate(int(at) // vocab_size, int(at) % vocab_size, float(total.ravel()[at])) for at in best]


def _move(b: int, state: BeamState, step: BeamStep, survivors: list[Candidate]) -> None:
    position, before = int(state.length[b]), state.tokens[b].clone()
    state.cum[b] = _NEG
    state.tokens[b] = -1
    for beam, c in enumerate(survivors):
        step.parent[b, beam], step.token[b, beam] = c.beam, c.token
        state.cum[b, beam] = c.cum
        state.tokens[b, beam] = before[c.beam]
        state.tokens[b, beam, position] = c.token
    state.length[b] += 1


def _finish(b: int, state: BeamState, params: BeamParams, cum: float, tokens: list[int]) -> None:
    """Insert into the pool, best first, an equal score behind the older; the worst beyond `width` falls out."""
    score = cum / _length_scale(len(tokens), params, b)
    at = int((state.pool_score[b] >= score).sum())
    if at >= int(params.width[b]):
        return
    for pool in (state.pool_score, state.pool_cum, state.pool_tokens, state.pool_length):
        pool[b, at + 1 :] = pool[b, at:-1].clone()
    state.pool_score[b, at], state.pool_cum[b, at], state.pool_length[b, at] = score, cum, len(tokens)
    state.pool_tokens[b, at] = -1
    state.pool_tokens[b, at, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)


def _is_done(b: int, state: BeamState, params: BeamParams) -> bool:
    worst = float(state.pool_score[b, int(params.width[b]) - 1])
    if worst == _NEG:
        return False
    if int(params.early_stopping[b]) == 1:
        return True
    length = int(state.length[b])
    if int(params.early_stopping[b]) != 0 and float(params.length_penalty[b]) > 0:
        length = int(params.max_length[b])
    return float(state.cum[b].max()) / _length_scale(length, params, b) <= worst


def _length_scale(length: int, params: BeamParams, b: int) -> float:
    scale: float = float(max(length, 1)) ** float(params.length_penalty[b])
    return scale
