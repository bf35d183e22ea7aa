"""Why and where a sequence ends: end ids over length over stop words on one token, the first finishing token wins."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.plain.overlay import TokenList

LEFT_PAD = -1


class FinishReason(IntEnum):
    """The number is the precedence on one token, the lowest non-zero wins."""

    NONE = 0
    END_ID = 1
    LENGTH = 2
    STOP_WORDS = 3


@dataclass(slots=True)
class StopWords:
    """Token sequences of B sequences: sequence b owns words row_start[b] .. row_start[b + 1], word w owns ids
    word_start[w] .. word_start[w + 1]; all i32. Empty words never match."""

    row_start: Tensor
    word_start: Tensor
    ids: Tensor

    @classmethod
    def of(cls, rows: list[list[list[int]]]) -> "StopWords":
        words = [word for row in rows for word in row]
        flat = TokenList.of(words)
        return cls(TokenList.of([[0] * len(row) for row in rows]).start, flat.start, flat.ids)

    def words(self, row: int) -> list[list[int]]:
        starts = self.word_start.tolist()
        return [self.ids[starts[w] : starts[w + 1]].tolist() for w in range(int(self.row_start[row]), int(self.row_start[row + 1]))]


@dataclass(slots=True)
class FinishResult:
    """reason i32[B] (`FinishReason`), kept i32[B]: tokens that stand, the finishing one included."""

    reason: Tensor
    kept: Tensor


def finish_reasons(
    tokens: Tensor,
    num_tokens: Tensor,
    length: Tensor,
    max_length: Tensor,
    *,
    end_ids: TokenList,
    stop_words: StopWords,
    history: Tensor,
) -> FinishResult:
    """Judge the step's tokens i32[B, m], of which num_tokens i32[B] are real.

    length i32[B]: tokens before them (prompt included); max_length i32[B]: min(context, prompt + max_tokens);
    history i32[B, L]: the L tokens before them, left-padded -1 (L + 1 at least the longest stop word).
    """
    judged = [
        _judge(
            tokens[b, : int(num_tokens[b])].tolist(),
            int(max_length[b]) - int(length[b]),
            set(end_ids.ids[end_ids.span(b)].tolist()),
            stop_words.words(b),
            history[b].tolist(),
        )
        for b in range(tokens.shape[0])
    ]
    return FinishResult(*(torch.tensor(column, dtype=torch.int32) for column in zip(*judged, strict=True)))


def _judge(tokens: list[int], room: int, end_ids: set[int], words: list[list[int]], history: list[int]) -> tuple[int, int]:
    for t, token in enumerate(tokens):
        if token in end_ids:
            return FinishReason.END_ID, t + 1
        if t + 1 >= room:
            return FinishReason.LENGTH, t + 1
        text = history + tokens[: t + 1]
        if any(word and text[-len(word) :] == word for word in words):
            return FinishReason.STOP_WORDS, t + 1
    return FinishReason.NONE, len(tokens)


def shift_history(history: Tensor, tokens: Tensor, num_tokens: Tensor) -> None:
    """In place: the window of i32[B, L] last tokens moves on by the first num_tokens of each row of tokens."""
    width = history.shape[1]
    for b, count in enumerate(num_tokens.tolist()):
        window: NDArray[np.int32] = np.concatenate([history[b].numpy(), tokens[b, :count].numpy()])
        history[b] = torch.from_numpy(window[window.size - width :])
