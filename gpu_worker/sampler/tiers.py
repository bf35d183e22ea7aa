"""Which tier samples a request (R11): FAST is the one launch for all rows, FULL leaves it, alone. Pure."""

from __future__ import annotations

import enum

from gpu_worker.sampler.penalties import has_penalties
from shared.sampling_params import SamplingParams


class Tier(enum.Enum):
    """FAST takes all that works on a row by itself: guides, penalties, bias, bans, min_tokens, decay, log-probabilities, stop
    words, greedy rows. FULL is for beams, whose rows depend on each other, and for logits processors, which run on the host."""

    FAST = "fast"
    FULL = "full"


def tier_of(params: SamplingParams) -> Tier:
    """Decided by the request's own parameters: no request moves another (R11)."""
    return Tier.FULL if params.use_beam_search or params.logits_processors else Tier.FAST


def is_plain(params: SamplingParams) -> bool:
    """Whether a text needs no more of a step than parameters and a mask row: no overlay, no logits. Log-probabilities are asked for
    elsewhere too (ranking)."""
    if tier_of(params) is Tier.FULL or has_penalties(params) or params.logit_bias:
        return False
    if params.return_generation_logits or params.return_context_logits:
        return False
    return not (params.bad_words or params.no_repeat_ngram_size or params.min_tokens)
