"""Log-probabilities as replies carry them, and raw ones of given tokens: of a prompt, of rows that a processor changed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels import reference
from kernels.reference import SampleResult, SampleRows
from shared.bitmask import pack
from shared.protocol import TokenLogprob

MIN_LOGPROB = -9999.0
"""Replies carry finite numbers: minus infinity is floored here."""


def score(logits: torch.Tensor, token_ids: Sequence[int], num_logprobs: int, vocab_size: int) -> SampleResult:
    """Log-probability, rank and the top ``num_logprobs`` of one token a row of logits [R, V] by the sampler's own rules: a mask
    that leaves one token chooses it, and raw log-probabilities do not look at masks (spec 111, 112)."""
    bitmask = torch.stack([torch.from_numpy(pack([token_id], vocab_size)) for token_id in token_ids])
    rows = SampleRows.uniform(len(token_ids), temperature=0.0)
    return reference.sample(logits, rows, vocab_size=vocab_size, bitmask=bitmask, logprobs="raw", num_logprobs=num_logprobs)


def entry(token_id: int, logprob: float, rank: int, top: Sequence[tuple[int, float]]) -> TokenLogprob:
    """One token of a reply; ``top`` padded with ids of -1."""
    finite = [(i, max(value, MIN_LOGPROB)) for i, value in top if i >= 0]
    return TokenLogprob(token_id, max(logprob, MIN_LOGPROB), rank, finite)


class PromptScores:
    """Raw log-probabilities of a prompt's tokens, from the second on. The device fills it as it writes the prompt, before the
    launch that samples the first token; nobody reads it earlier."""

    def __init__(self, prompt: list[int], num_logprobs: int, vocab_size: int) -> None:
        self._prompt, self._num_logprobs, self._vocab_size = prompt, num_logprobs, vocab_size
        self._entries: list[TokenLogprob] = []

    @property
    def missing(self) -> bool:
        return len(self._entries) < len(self._prompt) - 1

    @property
    def entries(self) -> list[TokenLogprob] | None:
        """One for each token after the first, None while some are missing."""
        return None if self.missing else self._entries

    def targets(self, start_position: int, num_tokens: int, num_pending: int = 0) -> tuple[int, list[int]]:
        """Of ``num_tokens`` tokens written from ``start_position`` on: how many are there already (or ``num_pending``: will be),
        and the tokens that the others are scored for (none where there is nothing to score)."""
        known = len(self._entries) + num_pending
        done = known - start_position
        return done, [] if done < 0 else self._prompt[known + 1 : start_position + 1 + num_tokens]

    def add(self, start_position: int, logits: torch.Tensor) -> None:
        """``logits`` float32 [n, V] of the tokens from ``start_position`` on; what is there already is left alone."""
        done, targets = self.targets(start_position, len(logits))
        if not targets:
            return
        scored = score(logits[done : done + len(targets)], targets, self._num_logprobs, self._vocab_size)
        if scored.logprob is None or scored.rank is None or scored.top_ids is None or scored.top_logprobs is None:
            raise RuntimeError("the sampler gave no log-probabilities")
        self.add_scored(targets, scored.logprob, scored.rank, scored.top_ids, scored.top_logprobs)

    def add_scored(
        self, targets: Sequence[int], logprob: torch.Tensor, rank: torch.Tensor, top_ids: torch.Tensor, top_logprobs: torch.Tensor
    ) -> None:
        """The next tokens with what was found for them, [n] and [n, at least the number that was asked for]."""
        n = self._num_logprobs
        columns = (logprob.tolist(), rank.tolist(), top_ids[:, :n].tolist(), top_logprobs[:, :n].tolist())
        for token_id, value, place, ids, values in zip(targets, *columns, strict=True):
            self._entries.append(entry(token_id, value, place, list(zip(ids, values, strict=True))))
