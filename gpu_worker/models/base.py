"""ModelRunner: what the step loop asks of a model. Shapes are fixed for the life of a runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from shared.errors import ConfigError

MIN_DECODE_ROWS = 4
"""Matrix products with fewer rows take other kernels, whose sums differ in the last bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerShape:
    """The fixed sizes of a runner. Raises ConfigError for a size below 1 or a chunk longer than the sequence."""

    max_slots: int = 8  # sequences at once
    max_length: int = 1024  # tokens of a sequence, prompt included
    max_width: int = 1  # T: tokens of a row in one forward, K drafts + the golden token
    prefill_chunk: int = 64  # prompt tokens of one prefill call

    def __post_init__(self) -> None:
        for name in ("max_slots", "max_length", "max_width", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} has value {getattr(self, name)}; it must be at least 1", field=name)
        for name in ("max_width", "prefill_chunk"):
            if getattr(self, name) > self.max_length:
                text = f"{name} has value {getattr(self, name)}; max_length ({self.max_length}) is less"
                raise ConfigError(text, field=name)


class ModelRunner(ABC):
    """Logits of up to ``max_slots`` sequences, one slot each.

    The content of a slot is kept by position: writing at a position replaces what was there, and a token sees the positions
    up to its own, so rolling back is writing again. A row that repeats its input gets bitwise the same logits, and the logits
    of a row do not depend on the other rows. All calls come from one thread, in order; wrong input raises ValueError before
    anything is written.
    """

    def __init__(self, shape: RunnerShape, vocab_size: int, device: torch.device) -> None:
        self.shape = shape
        self.vocab_size = vocab_size  # V: width of the logits, padding included
        self.device = device

    @property
    def max_slots(self) -> int:
        return self.shape.max_slots

    @property
    def max_length(self) -> int:
        return self.shape.max_length

    @property
    def max_width(self) -> int:
        return self.shape.max_width

    @property
    def prefill_chunk(self) -> int:
        return self.shape.prefill_chunk

    @property
    def decode_shapes(self) -> tuple[tuple[int, int], ...]:
        """(slots, positions) that ``decode`` takes, ascending, whose logits are bitwise those of every other. Products of matrices
        sum in another order when their shape changes, so a model that has some takes the one shape it was made for."""
        return ((self.max_slots, self.max_width),)

    @abstractmethod
    def prefill(self, slot: int, token_ids: Sequence[int], start_position: int, *, last: bool = False) -> torch.Tensor | None:
        """Writes at most ``prefill_chunk`` tokens from ``start_position``; with ``last`` returns logits [V] of the last one."""

    def prefill_logits(self, slot: int, token_ids: Sequence[int], start_position: int) -> torch.Tensor:
        """Writes what ``prefill`` writes and returns the logits float32 [n, V] of every token of it."""
        self.check_prefill(slot, token_ids, start_position)
        rows = [self.prefill(slot, [token], start_position + at, last=True) for at, token in enumerate(token_ids)]
        return torch.stack([row for row in rows if row is not None])

    @abstractmethod
    def decode(
        self, tokens: torch.Tensor, positions: torch.Tensor, lengths: torch.Tensor, parents: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits float32 [B, T, V] of one forward over the first B slots, one of ``decode_shapes``; valid until the next call of
        this runner.

        ``tokens`` int64 [B, T]; ``positions`` int64 [B], of the first token of each row; ``lengths`` int64 [B], live tokens of each
        row, 0 for a slot that takes no part (its content stays). Logits past a row's length are meaningless. Never waits for the
        device.

        ``parents`` int64 [B, T] (None: each token follows the one before): ``parents[b, j] < j`` is the token that token j > 0
        follows. It sees the slot's content and its own ancestors; where it is kept is told by its column, so ``keep`` comes after.
        """

    @abstractmethod
    def keep(self, slot: int, position: int, nodes: Sequence[int]) -> None:
        """Of the tokens that the last decode wrote to a slot from ``position`` on, those in the columns ``nodes`` (ascending, a
        path of its tree from the first) become the content from ``position`` on."""

    @abstractmethod
    def copy_slot(self, source: int, target: int, num_tokens: int) -> None:
        """Makes the first ``num_tokens`` positions of ``target`` those of ``source``, bit by bit; what lies behind may be
        anything."""

    @abstractmethod
    def reset(self, slot: int) -> None:
        """Forgets the content of a slot."""

    def warm_up(self) -> None:
        """Runs each shape once, so that the first request pays for no set-up. Empties every slot."""
        for last in (False, True):
            self.prefill(0, [0] * self.prefill_chunk, 0, last=last)
        for slots, width in self.decode_shapes:
            zeros = torch.zeros(slots, dtype=torch.int64, device=self.device)
            tokens = torch.zeros(slots, width, dtype=torch.int64, device=self.device)
            for length in (0, width):
                self.decode(tokens, zeros, zeros + length)
        for slot in range(self.max_slots):
            self.reset(slot)

    def check_slot(self, slot: int) -> None:
        """Raises ValueError for a slot that is not there."""
        if not 0 <= slot < self.max_slots:
            raise ValueError(f"slot {slot} is outside [0, {self.max_slots})")

    def check_copy(self, source: int, target: int, num_tokens: int) -> None:
        """Raises ValueError where a copy does not fit."""
        self.check_slot(source)
        self.check_slot(target)
        if source == target or not 0 <= num_tokens <= self.max_length:
            raise ValueError(f"{num_tokens} positions cannot be copied from slot {source} to slot {target}")

    def check_prefill(self, slot: int, token_ids: Sequence[int], start_position: int) -> None:
        """Raises ValueError where a prefill does not fit."""
        end = start_position + len(token_ids)
        self.check_slot(slot)
        if not 1 <= len(token_ids) <= self.prefill_chunk:
            raise ValueError(f"a prefill takes 1 to {self.prefill_chunk} tokens, not {len(token_ids)}")
        if start_position < 0 or end > self.max_length:
            raise ValueError(f"positions [{start_position}, {end}) are outside [0, {self.max_length})")
        if min(token_ids) < 0 or max(token_ids) >= self.vocab_size:
            raise ValueError(f"a token id is outside [0, {self.vocab_size})")

    def check_keep(self, slot: int, position: int, nodes: Sequence[int]) -> None:
        """Raises ValueError where a path does not fit."""
        self.check_slot(slot)
        if any(low >= high for low, high in pairwise(nodes)) or (nodes and not 0 <= nodes[0] <= nodes[-1] < self.max_width):
            raise ValueError(f"columns {list(nodes)} are no path in a forward {self.max_width} wide")
        if not 0 <= position <= self.max_length - (nodes[-1] + 1 if nodes else 0):
            raise ValueError(f"columns {list(nodes)} at {position} leave [0, {self.max_length})")

    def check_parents(self, tokens: torch.Tensor, parents: torch.Tensor) -> None:
        """Raises ValueError where ``parents`` are no trees; values are looked at on the CPU only."""
        if parents.shape != tokens.shape or parents.dtype != torch.int64 or parents.device.type != self.device.type:
            raise ValueError(f"parents must be torch.int64 {list(tokens.shape)} on {self.device}, not {parents.dtype}")
        columns = torch.arange(tokens.shape[1], device=self.device)
        if self.device.type == "cpu" and bool(((parents >= columns) | (parents < 0))[:, 1:].any()):
            raise ValueError("the parent of a token must stand before it")

    def check_decode(self, tokens: torch.Tensor, positions: torch.Tensor, lengths: torch.Tensor) -> None:
        """Raises ValueError where a decode does not fit; values are looked at only where that costs no wait (CPU)."""
        slots, width = tokens.shape if tokens.ndim == 2 and tuple(tokens.shape) in self.decode_shapes else self.decode_shapes[-1]
        for name, tensor, shape in (
            ("tokens", tokens, (slots, width)), ("positions", positions, (slots,)), ("lengths", lengths, (slots,)),
        ):  # fmt: skip
            if tuple(tensor.shape) != shape or tensor.dtype != torch.int64 or tensor.device.type != self.device.type:
                got = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
                raise ValueError(f"{name} must be torch.int64 {list(shape)} on {self.device}, not {got}")
        if self.device.type == "cpu":
            self._check_values(tokens, positions, lengths)

    def _check_values(self, tokens: torch.Tensor, positions: torch.Tensor, lengths: torch.Tensor) -> None:
        rows = zip(tokens.tolist(), positions.tolist(), lengths.tolist(), strict=True)
        for slot, (row, position, length) in enumerate(rows):
            if not 0 <= length <= len(row):
                raise ValueError(f"slot {slot}: length {length} is outside [0, {len(row)}]")
            if length and not 0 <= position <= self.max_length - length:
                raise ValueError(f"slot {slot}: {length} tokens at {position} leave [0, {self.max_length})")
            if any(not 0 <= token < self.vocab_size for token in row[:length]):
                raise ValueError(f"slot {slot}: a token id is outside [0, {self.vocab_size})")
