"""A model without weights: logits are a pure function of (seed, prefix), for load tests and for tests of exactness."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu_worker.models.base import ModelRunner, RunnerShape
from gpu_worker.models.prefix_hash import extend, extend_all, next_hash
from gpu_worker.models.staging import Staging
from gpu_worker.models.synthetic_table import LogitTable
from shared.errors import ConfigError
from shared.tokenizer import Vocabulary

BATCH_SIZES = (1, 4, 16, 64, 256)
"""Numbers of slots that have a forward of their own, beside all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticOptions:
    """How the model without weights behaves. Raises ConfigError for a value out of range."""

    seed: int = 0
    forward_ms: float = 0.0  # a forward takes at least this long
    mean_length: int = 64  # a prefix wants to end with probability 1 / mean_length
    agreement: float = 1.0  # share of the prefixes whose logits are those of the seed; the others have those of another seed

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("forward_ms", 0.0), ("mean_length", 1)):
            if not getattr(self, name) >= least:
                raise ConfigError(f"{name} has value {getattr(self, name)}; the least is {least}", field=name)
        if not 0 <= self.agreement <= 1:
            raise ConfigError(f"agreement has value {self.agreement}; it must be between 0 and 1", field="agreement")


class SyntheticRunner(ModelRunner):
    """Keeps one 64-bit hash of the prefix for each slot and position; the logits after a token follow from its hash alone,
    so they are bitwise the same in any slot, batch and width, after any roll-back or replay, however a prompt was cut."""

    def __init__(
        self, vocabulary: Vocabulary, shape: RunnerShape, options: SyntheticOptions | None = None, device: str = "cpu"
    ) -> None:
        super().__init__(shape, vocabulary.size, torch.device(device))
        self._options = options or SyntheticOptions()
        self._table = LogitTable(vocabulary, self._options.seed, self._options.mean_length, self.device, self._options.agreement)
        self._empty = next_hash(0, self._options.seed)
        # One column more: dead tokens are written there.
        self._hashes = torch.zeros(shape.max_slots, shape.max_length + 1, dtype=torch.int64, device=self.device)
        self._prefilled: dict[int, tuple[int, int]] = {}
        self._staging = Staging(shape.prefill_chunk, self.device)
        self._cycles = _cycles(self._options.forward_ms, self.device)
        self._slot_index = torch.arange(shape.max_slots, device=self.device)
        self._logits = torch.empty(shape.max_slots * shape.max_width, vocabulary.size, device=self.device)

    @property
    def decode_shapes(self) -> tuple[tuple[int, int], ...]:
        sizes = [size for size in BATCH_SIZES if size < self.max_slots]
        return tuple((size, width) for size in (*sizes, self.max_slots) for width in sorted({1, self.max_width}))

    @torch.inference_mode()
    def prefill(self, slot: int, token_ids: Sequence[int], start_position: int, *, last: bool = False) -> torch.Tensor | None:
        begun = time.perf_counter()
        hashes = self._write(slot, token_ids, start_position)
        out = self._logits_after(hashes[-1:], start_position + len(token_ids)) if last else None
        self._wait_until(begun)
        return None if out is None else out[0]

    @torch.inference_mode()
    def prefill_logits(self, slot: int, token_ids: Sequence[int], start_position: int) -> torch.Tensor:
        begun = time.perf_counter()
        out = self._logits_after(self._write(slot, token_ids, start_position), start_position + 1)
        self._wait_until(begun)
        return out

    def _write(self, slot: int, token_ids: Sequence[int], start_position: int) -> torch.Tensor:
        """Hashes int64 [n] after each of the tokens, which now are in the slot."""
        self.check_prefill(slot, token_ids, start_position)
        before = self._hash_before(slot, start_position)
        self._check_prefix(slot, start_position, before)
        known = extend_all(before, token_ids)
        self._prefilled[slot] = (start_position + len(token_ids), known[-1])
        hashes = self._staging.put(known)
        self._hashes[slot, start_position : start_position + len(token_ids)] = hashes
        return hashes

    def _logits_after(self, hashes: torch.Tensor, first_length: int) -> torch.Tensor:
        """Logits [n, V] of prefixes that are ``first_length`` long and one more each."""
        out = torch.empty(len(hashes), self.vocab_size, device=self.device)
        self._table.fill(out, hashes, torch.arange(first_length, first_length + len(hashes), device=self.device))
        return out

    @torch.inference_mode()
    def decode(
        self, tokens: torch.Tensor, positions: torch.Tensor, lengths: torch.Tensor, parents: torch.Tensor | None = None
    ) -> torch.Tensor:
        begun = time.perf_counter()
        self.check_decode(tokens, positions, lengths)
        if parents is not None:
            self.check_parents(tokens, parents)
        slots, width = tokens.shape
        index = self._slot_index[:slots]
        before = self._hashes[index, (positions - 1).clamp(0, self.max_length)]
        current = torch.where(positions > 0, before, self._empty)
        if self.device.type == "cpu":
            for slot in torch.nonzero(lengths).flatten().tolist():
                self._check_prefix(slot, int(positions[slot]), int(current[slot]))
        hashes = torch.empty((slots, width), dtype=torch.int64, device=self.device)
        ends = positions[:, None] + torch.arange(1, width + 1, device=self.device)
        for j in range(width):
            if parents is not None and j:
                current = hashes[index, parents[:, j]]
                ends[:, j] = ends[index, parents[:, j]] + 1
            current = extend(current, tokens[:, j])
            self._hashes[index, torch.where(lengths > j, positions + j, self.max_length)] = current
            hashes[:, j] = current
        out = self._logits[: slots * width]
        self._table.fill(out, hashes.flatten(), ends.flatten())
        self._wait_until(begun)
        return out.view(slots, width, self.vocab_size)

    def copy_slot(self, source: int, target: int, num_tokens: int) -> None:
        self.check_copy(source, target, num_tokens)
        self._hashes[target, :num_tokens] = self._hashes[source, :num_tokens]
        self._prefilled.pop(target, None)

    def keep(self, slot: int, position: int, nodes: Sequence[int]) -> None:
        self.check_keep(slot, position, nodes)
        columns = torch.tensor(nodes, dtype=torch.int64, device=self.device)
        self._hashes[slot, position : position + len(nodes)] = self._hashes[slot, position + columns]

    def reset(self, slot: int) -> None:
        self.check_slot(slot)
        self._hashes[slot].zero_()
        self._prefilled.pop(slot, None)

    def _hash_before(self, slot: int, position: int) -> int:
        """Hash of the prefix before ``position``: remembered from the chunk before, so that the device is not waited for."""
        if position == 0:
            return self._empty
        end, known = self._prefilled.get(slot, (0, 0))
        return known if end == position else int(self._hashes[slot, position - 1])

    def _check_prefix(self, slot: int, position: int, before: int) -> None:
        if before == 0:
            raise ValueError(f"slot {slot} holds no token at {position - 1}, before position {position}")

    def _wait_until(self, begun: float) -> None:
        if self._cycles:
            torch.cuda._sleep(self._cycles)
        if self.device.type != "cpu":
            return
        remaining = self._options.forward_ms / 1e3 - (time.perf_counter() - begun)
        if remaining > 0:
            time.sleep(remaining)


def _cycles(forward_ms: float, device: torch.device) -> int:
    """Device clock cycles of a forward, measured; 0 where the device needs none (the CPU sleeps)."""
    if not forward_ms or device.type != "cuda":
        return 0
    trial, (begin, end) = 10_000_000, (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(trial)
    begin.record()
    torch.cuda._sleep(trial)
    end.record()
    end.synchronize()
    return int(trial / begin.elapsed_time(end) * forward_ms)
