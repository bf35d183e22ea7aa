"""Logits from a prefix hash: a fixed noise vector turned by the hash, favourites that the hash picks, the wish to end."""

from __future__ import annotations

import numpy as np
import torch

from gpu_worker.models.prefix_hash import extend, positive
from shared.tokenizer import Vocabulary

NOISE = 1.5  # deviation of the noise; 128,256 such logits weigh as much as one of 12.9
FAVOURITES = (16.0, 15.0, 14.0, 13.0)
CLOSERS = {b'"': 13.0, b"}": 12.0, b"]": 12.0, b'"}': 12.0, b'"]': 12.0}  # so that guided strings and lists end
NEVER = -100.0  # special tokens and ids without a token
END = 20.0  # the stop tokens of a prefix that wants to end
DICE = 1_000_000
END_POSITION = 1024  # here a stop token is as likely as the first favourite


class LogitTable:
    """Writes float32 logits [rows, V] for int64 hashes [rows] and prefix lengths int64 [rows]; no random state."""

    def __init__(self, vocabulary: Vocabulary, seed: int, mean_length: int, device: torch.device, agreement: float = 1.0) -> None:
        self._others = round((1 - agreement) * DICE)  # of DICE prefixes, those that have the logits of another seed
        self._other = LogitTable(vocabulary, seed + 1, mean_length, device) if self._others else None
        size, noise = vocabulary.size, np.random.Generator(np.random.Philox(seed))
        vector = torch.from_numpy(noise.standard_normal(size, dtype=np.float32) * np.float32(NOISE)).to(device)
        # Every rotation of the vector as one strided view: a row is then a single copy.
        self._rotations = torch.cat([vector, vector]).as_strided((size, size), (1, 1))
        self._bias = torch.tensor(_bias(vocabulary), device=device)
        self._text_ids = torch.tensor(_text_ids(vocabulary), device=device)
        self._stop_ids = torch.tensor(vocabulary.stop_ids, device=device)
        self._favourites = torch.tensor(FAVOURITES, device=device)
        self._size, self._mean_length = size, mean_length

    def fill(self, out: torch.Tensor, hashes: torch.Tensor, prefix_lengths: torch.Tensor) -> None:
        torch.index_select(self._rotations, 0, positive(hashes) % self._size, out=out)
        out.add_(self._bias)
        ranks = torch.arange(len(FAVOURITES), device=out.device)
        picks = positive(extend(hashes[:, None].expand(-1, len(FAVOURITES)), ranks.expand(len(hashes), -1)))
        ids = self._text_ids[picks % len(self._text_ids)]
        # The greater of two wins, so that the order of equal picks does not matter.
        out.scatter_reduce_(1, ids, self._favourites.expand_as(ids), "amax")
        out[:, self._stop_ids] = self._stop_logits(hashes, prefix_lengths)[:, None]
        if self._other is not None:
            others = torch.nonzero(positive(extend(hashes, hashes + 1)) % DICE < self._others).flatten()
            replaced = torch.empty(len(others), self._size, device=out.device)
            self._other.fill(replaced, extend(hashes[others], others * 0), prefix_lengths[others])
            out[others] = replaced

    def _stop_logits(self, hashes: torch.Tensor, prefix_lengths: torch.Tensor) -> torch.Tensor:
        rising = (prefix_lengths / END_POSITION).clamp(max=1.0) * FAVOURITES[0]
        wants_to_end = positive(extend(hashes, hashes)) % self._mean_length == 0
        return torch.where(wants_to_end, END, rising)


def _bias(vocabulary: Vocabulary) -> list[float]:
    bias = [CLOSERS.get(text, 0.0) if text else NEVER for text in vocabulary.token_bytes]
    for token_id in vocabulary.special_ids:
        bias[token_id] = NEVER
    return bias


def _text_ids(vocabulary: Vocabulary) -> list[int]:
    hidden = {*vocabulary.special_ids, *vocabulary.stop_ids}
    return [i for i, text in enumerate(vocabulary.token_bytes) if text and i not in hidden]
