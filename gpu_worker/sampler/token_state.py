"""TokenState: what the bans of one sequence depend on; its committed tokens move it and nothing else (a held step does not)."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gpu_worker.sampler.ngrams import NgramIndex
from gpu_worker.sampler.rules import SamplingRules
from gpu_worker.sampler.token_words import START
from shared.bitmask import Words, clear_bit, num_words, unpack

Allowed = NDArray[np.bool_]


class TokenState:
    """``mask``: packed row (int32 [W]) of the bans that last, None where there are none; ``banned`` lists those of this step."""

    def __init__(self, rules: SamplingRules, prompt: list[int]) -> None:
        self.rules = rules
        self._num_tokens = 0
        self._bad_state = rules.bad_words.walk(prompt)
        self._stop_state = START
        self._ngrams = NgramIndex(rules.ngram_size, prompt) if rules.ngram_size > 1 else None
        self._seen = set(prompt) if rules.ngram_size == 1 else set()
        self._watches = bool(rules.bad_words or rules.stops or rules.ngram_size)
        self.mask = _mask(rules, self._seen) if rules.has_mask else None

    def push(self, token_id: int) -> None:
        """One more committed token."""
        self._num_tokens += 1
        if not self._watches:
            return
        self._bad_state = self.rules.bad_words.step(self._bad_state, token_id)
        self._stop_state = self.rules.stops.step(self._stop_state, token_id)
        if self._ngrams is not None:
            self._ngrams.push(token_id)
        if self.rules.ngram_size == 1:
            self._seen.add(token_id)
            if self.mask is not None:
                clear_bit(self.mask, token_id)

    def fork(self) -> TokenState:
        """A copy that drafts can be pushed on. Raises ValueError under no_repeat_ngram_size, whose index and mask are shared."""
        if self.rules.ngram_size:
            raise ValueError("bans of n-grams are not followed ahead")
        return copy.copy(self)

    def branch(self) -> TokenState:
        """A copy that goes its own way; with n-gram bans it costs as much as the text is long."""
        twin = copy.copy(self)
        if self._ngrams is not None:
            twin._ngrams = self._ngrams.branch()
        if self.rules.ngram_size == 1:
            twin._seen, twin.mask = set(self._seen), None if self.mask is None else self.mask.copy()
        return twin

    @property
    def stop_found(self) -> bool:
        """Whether a stop sequence ends with the last token (spec 116); it lies in the output alone."""
        return self.rules.stops.found(self._stop_state)

    def banned(self) -> set[int]:
        """The tokens banned at this step beside the mask."""
        found = set(self.rules.bad_words.completing(self._bad_state))
        if self._ngrams is not None:
            found.update(self._ngrams.banned())
        return found | self._too_early()

    def _too_early(self) -> frozenset[int]:
        """What would end the text before min_tokens (spec 103, with stop ids and stop sequences)."""
        if self._num_tokens >= self.rules.min_tokens:
            return frozenset()
        return self.rules.end_ids | self.rules.stops.completing(self._stop_state)

    def sources(self) -> dict[str, Allowed]:
        """What each parameter leaves, bool [V] by its name: for the one step in which they leave nothing together."""
        rules, found = self.rules, {}
        if rules.allowed_words is not None:
            found["allowed_token_ids"] = unpack(rules.allowed_words, rules.vocab_size)
        bans: dict[str, Iterable[int]] = {
            "bad_words": rules.bad_ids | rules.bad_words.completing(self._bad_state),
            "no_repeat_ngram_size": self._seen if self._ngrams is None else self._ngrams.banned(),
            "min_tokens": self._too_early(),
        }
        return found | {name: _all_but(ids, rules.vocab_size) for name, ids in bans.items() if ids}


def _mask(rules: SamplingRules, seen: Iterable[int]) -> Words:
    mask = np.full(num_words(rules.vocab_size), -1, np.int32) if rules.allowed_words is None else rules.allowed_words.copy()
    for token_id in (*rules.bad_ids, *seen):
        clear_bit(mask, token_id)
    return mask


def _all_but(ids: Iterable[int], vocab_size: int) -> Allowed:
    allowed = np.ones(vocab_size, np.bool_)
    allowed[list(ids)] = False
    return allowed
