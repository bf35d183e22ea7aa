"""ContextLogits: the model's logits at every token of a prompt, kept for the reply that asked for them (spec 126, 127)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gpu_worker.sampler.logprobs import PromptScores
from shared.protocol import MAX_FRAME_BYTES

MAX_ROWS = 64
FRAME_OVERHEAD = 4096


def row_bytes(vocab_size: int) -> int:
    """Float32 little-endian [V]."""
    return 4 * vocab_size


def rows_a_piece(vocab_size: int) -> int:
    """Rows of logits that fit in one frame, 0 where not one does."""
    return min(MAX_ROWS, (MAX_FRAME_BYTES - FRAME_OVERHEAD) // row_bytes(vocab_size))


class ContextLogits:
    """``rows`` of the tokens so far. The device fills it as it writes the prompt, before the launch that samples the first token;
    nobody reads it earlier. That launch gives the last row itself, where the text begins with it. ``scores`` hears the same
    logits."""

    def __init__(self, num_tokens: int, scores: PromptScores | None) -> None:
        self._num_tokens, self._scores = num_tokens, scores
        self._rows: list[bytes] = []
        self.told = False

    @property
    def missing(self) -> bool:
        """Whether a prefill may still add to it (the last token's row may come from the first launch)."""
        return len(self._rows) < self._num_tokens

    def add(self, start_position: int, logits: torch.Tensor) -> None:
        """``logits`` float32 [n, V] of the tokens from ``start_position`` on; what is there already is left alone."""
        if self._scores is not None and self._scores.missing:
            self._scores.add(start_position, logits)
        done = len(self._rows) - start_position
        if done >= 0:
            self._rows += [_bytes_of(row) for row in logits[done : self._num_tokens - start_position]]

    def pieces(self, last: bytes | None, vocab_size: int) -> Iterator[list[bytes]]:
        """All rows in order, as many at a time as a frame takes; ``last`` is that of the prompt's last token where the first launch
        gave it. They are told once."""
        rows = self._rows if last is None else [*self._rows, last]
        rows, self._rows, self.told = rows[: self._num_tokens], [], True
        many = rows_a_piece(vocab_size)
        for start in range(0, len(rows), many):
            yield rows[start : start + many]


def _bytes_of(row: torch.Tensor) -> bytes:
    found: bytes = row.to(torch.float32).cpu().numpy().astype("<f4", copy=False).tobytes()
    return found
