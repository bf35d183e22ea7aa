"""Raw log-probabilities of given tokens: of a prompt, and of rows whose logits were changed before they were sampled."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels import reference
from kernels.reference import SampleResult, SampleRows
from shared.bitmask import pack


def score(logits: torch.Tensor, token_ids: Sequence[int], num_logprobs: int, vocab_size: int) -> SampleResult:
    """Log-probability, rank and the top ``num_logprobs`` of one token a row of logits [R, V] by the sampler's own rules: a mask
    that leaves one token chooses it, and raw log-probabilities do not look at masks (spec 111, 112)."""
    bitmask = torch.stack([torch.from_numpy(pack([token_id], vocab_size)) for token_id in token_ids])
    rows = SampleRows.uniform(len(token_ids), temperature=0.0)
    return reference.sample(logits, rows, vocab_size=vocab_size, bitmask=bitmask, logprobs="raw", num_logprobs=num_logprobs)
