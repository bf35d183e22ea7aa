"""SamplingRules: what a request's parameters forbid, prefer and end, in token ids; made once at admission."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpu_worker.sampler.token_words import TokenWords
from shared.bitmask import Words

NO_WORDS = TokenWords(())


@dataclass(frozen=True, slots=True, eq=False)
class SamplingRules:
    """``bias_ids`` int32 and ``bias_values`` float32 of equal length; ``allowed_words`` packed row of the allow-list or None;
    ``bad_ids``: bad words of one token; ``bad_words``: the longer ones; ``stops``: stop sequences; ``end_ids``: everything of one
    token that ends the text, banned before ``min_tokens``."""

    vocab_size: int
    bias_ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    bias_values: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    allowed_words: Words | None = None
    bad_ids: frozenset[int] = frozenset()
    bad_words: TokenWords = NO_WORDS
    ngram_size: int = 0
    stops: TokenWords = NO_WORDS
    end_ids: frozenset[int] = frozenset()
    min_tokens: int = 0

    @property
    def has_mask(self) -> bool:
        """Whether there are bans that hold from step to step: they are a packed row, not a list."""
        return self.allowed_words is not None or bool(self.bad_ids) or self.ngram_size == 1
