"""SlotSampler: the sampler for an engine that has a forward of its own.

The engine admits a text to a slot, hands over logits and mask rows step by step, and gets tokens. On a CUDA device the kernels run
on the current stream, on the CPU their reference. Where texts end is the engine's business: ``max_tokens``, stop ids and everything
about text are not looked at, but that end and stop ids are banned before ``min_tokens``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gpu_worker.sampler.admission import Encode, make_rules
from gpu_worker.sampler.launch_rows import LaunchRows
from gpu_worker.sampler.penalties import SlotPenalties, has_penalties
from gpu_worker.sampler.seeds import SeedSource
from gpu_worker.sampler.slot_params import SlotSamplingParams
from gpu_worker.sampler.token_state import TokenState
from gpu_worker.sampler.top_p_decay import TopPDecay
from kernels.reference import Overlay, Penalties, RowStatus, SampleRows, SampleStatus, TokenList, sample
from kernels.sample import SampleOutput, sample_into
from shared.bitmask import Words, num_words
from shared.errors import BadRequest
from shared.sampling_params import SamplingParams, check

ELSEWHERE = (
    "n", "best_of", "use_beam_search", "logits_processors", "logprobs", "prompt_logprobs", "return_generation_logits", "stop",
    "thinking_token_budget",
)  # fmt: skip
"""Parameters that need more than a row of logits: refused by name unless neutral."""
_NEUTRAL = SamplingParams()


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step gave, in the order of its slots: a token id, -1 where the slot held or nothing was left, and why."""

    token_ids: list[int]
    statuses: list[SampleStatus]


@dataclass(slots=True, eq=False)
class _Text:
    """The owner of a slot."""

    params: SamplingParams
    state: TokenState
    top_p: TopPDecay | None
    guided: bool
    tokens: list[int] = field(default_factory=list)


class SlotSampler:
    """``slots`` texts at most, logits of up to ``vocab_size`` usable columns on ``device``. Used by one thread at a time.

    Random bits depend on a text's seed and output position alone: its tokens do not change with the batch, the slot or the device.
    ``encode`` makes tokens of bad words. A launch moves nothing; ``take`` commits its tokens.
    """

    def __init__(self, slots: int, vocab_size: int, device: torch.device | str = "cpu", *, encode: Encode | None = None) -> None:
        self._vocab_size, self._device, self._encode = vocab_size, torch.device(device), encode
        self._texts: dict[int, _Text] = {}
        self._slots, self._seeds = slots, SeedSource()
        self._params, self._penalties = SlotSamplingParams(slots), SlotPenalties(slots, vocab_size)
        self._rows = LaunchRows(slots, num_words(vocab_size), self._device)
        self._out = SampleOutput.empty(slots, self._device)
        self._launched: list[tuple[int, _Text]] = []

    def admit(
        self, slot: int, params: SamplingParams, *, prompt: Sequence[int] = (), end_ids: Iterable[int] = (), guided: bool = False
    ) -> None:
        """Gives a slot to a new text. Raises BadRequest naming the parameter that does not fit, ValueError for the slot."""
        if not 0 <= slot < self._slots:
            raise ValueError(f"slot {slot} is not in [0, {self._slots})")
        check(params)
        for name in ELSEWHERE:
            if getattr(params, name) != getattr(_NEUTRAL, name):
                raise BadRequest("more than a row of logits is needed for it; leave it at its neutral value", field=name)
        rules = make_rules(params, self._vocab_size, self._encode or _no_encoder, frozenset(end_ids))
        resolved = params.resolve()
        self._texts[slot] = _Text(params, TokenState(rules, list(prompt)), _decay(params, resolved.top_p), guided)
        self._params.set(slot, 1, resolved, *self._seeds.assign(params, 0, params.max_tokens))
        self._penalties.set(slot, params, prompt)

    def release(self, slot: int) -> None:
        """The slot has no text any more; one that had none stays so."""
        if self._texts.pop(slot, None) is not None:
            self._penalties.set(slot, _NEUTRAL, ())

    def sample(self, logits: Any, slots: Sequence[int], rows: Mapping[int, Words] | None = None) -> Sampled:
        """One step: ``launch`` and ``take``."""
        self.launch(logits, slots, rows)
        return self.take()

    def launch(self, logits: Any, slots: Sequence[int], rows: Mapping[int, Words] | None = None) -> Tensor:
        """Enqueues a step. ``logits`` [n, columns] f32, f16 or bf16: row i is that of ``slots[i]``; a tensor, or anything with
        DLPack or the CUDA array interface. ``rows``: packed mask row (int32 [ceil(V / 32)], bit 1 = allowed) by slot; a guided slot
        without one holds. Returns the tokens int32 [n] on the device, valid until the next launch."""
        tensor = _tensor(logits, self._device)
        if len(set(slots)) != len(slots) or tensor.ndim != 2 or tensor.shape[0] != len(slots):
            raise ValueError(f"logits {list(tensor.shape)} do not have one row for each of the slots {list(slots)}")
        if missing := [slot for slot in slots if slot not in self._texts]:
            raise ValueError(f"slot {missing[0]} has no text")
        self._launched = [(slot, self._texts[slot]) for slot in slots]
        for i, slot in enumerate(slots):
            self._write_row(i, self._texts[slot], (rows or {}).get(slot))
        self._rows.write(self._positions(), slots)
        made, status, masks = self._rows.bring(len(slots))
        self._run(tensor, made, status, masks, _moved(self._overlay(slots), self._device))
        return self._out.token[: len(slots)]

    def take(self) -> Sampled:
        """Waits for the tokens of the last launch and commits them."""
        count = len(self._launched)
        token_ids, bits = torch.stack((self._out.token[:count], self._out.status[:count])).cpu().tolist()
        for (slot, text), token_id in zip(self._launched, token_ids, strict=True):
            if token_id >= 0 and self._texts.get(slot) is text:  # else the slot has been given away since
                text.tokens.append(token_id)
                text.state.push(token_id)
                if text.top_p is not None:
                    text.top_p.push(token_id)
                    self._params.set_top_p(slot, float(text.top_p.value))
        self._launched = []
        return Sampled(token_ids, [SampleStatus(bit) for bit in bits])

    def _write_row(self, i: int, text: _Text, row: Words | None) -> None:
        """The row's mask and status: a guide's row, less the bans that last."""
        own, mask = text.state.mask, self._rows.masks[i].numpy()
        if text.guided and row is None:
            self._rows.statuses[i] = int(RowStatus.HOLD)
        elif row is None and own is None:
            self._rows.statuses[i] = int(RowStatus.UNGUIDED)
        else:
            if row is not None and (row.dtype != np.int32 or row.shape != mask.shape):
                raise ValueError(f"a mask row must be int32[{mask.size}], not {row.dtype}{list(row.shape)}")
            mask[:] = own if row is None else row if own is None else row & own
            self._rows.statuses[i] = int(RowStatus.GUIDED)

    def _positions(self) -> SampleRows:
        positions = np.zeros(self._slots, np.int64)
        for slot, text in self._texts.items():
            positions[slot] = len(text.tokens)
        return self._params.rows(positions)

    def _overlay(self, slots: Sequence[int]) -> Overlay | None:
        texts = [self._texts[slot] for slot in slots]
        ids = [text.state.rules.bias_ids.tolist() for text in texts]
        bias = TokenList.of(ids, [text.state.rules.bias_values.tolist() for text in texts]) if any(ids) else None
        bans = [sorted(text.state.banned()) for text in texts]
        overlay = Overlay(bias, self._penalties_of(slots, texts), TokenList.of(bans) if any(bans) else None)
        return None if overlay.bias is None and overlay.penalties is None and overlay.bans is None else overlay

    def _penalties_of(self, slots: Sequence[int], texts: Sequence[_Text]) -> Penalties | None:
        """Counts of the penalised slots alone, so that a device is sent no more of them than it reads."""
        for slot, text in zip(slots, texts, strict=True):
            self._penalties.catch_up(slot, text.tokens)
        state = self._penalties.rows()
        counted = [slot for slot, text in zip(slots, texts, strict=True) if has_penalties(text.params)]
        if state is None or not counted:
            return None
        index = torch.tensor(list(slots))
        place = torch.tensor([counted.index(slot) if slot in counted else -1 for slot in slots], dtype=torch.int32)
        repetition, presence, frequency = (part[index] for part in (state.repetition, state.presence, state.frequency))
        counts, seen = (torch.from_numpy(part.numpy()[counted]) for part in (state.counts, state.seen))
        return Penalties(repetition, presence, frequency, place, counts, seen)

    def _run(self, logits: Tensor, rows: SampleRows, status: Tensor, masks: Tensor, overlay: Overlay | None) -> None:
        size = self._vocab_size
        if self._device.type == "cuda":
            sample_into(self._out, logits, rows, vocab_size=size, bitmask=masks, row_status=status, overlay=overlay)
            return
        drawn = sample(logits, rows, vocab_size=size, bitmask=masks, row_status=status, overlay=overlay)
        self._out.token[: len(rows)], self._out.status[: len(rows)] = drawn.token, drawn.status


def _tensor(logits: Any, device: torch.device) -> Tensor:
    """The engine's logits as a tensor on the sampler's device, without a copy."""
    if not isinstance(logits, Tensor):
        by_address = hasattr(logits, "__cuda_array_interface__")
        logits = torch.as_tensor(logits, device=device) if by_address else from_dlpack(logits)
    if logits.device.type != device.type:
        raise ValueError(f"logits are on {logits.device}, the sampler is on {device}")
    tensor: Tensor = logits.detach()
    return tensor


def _moved(overlay: Overlay | None, device: torch.device) -> Overlay | None:
    if overlay is None or device.type == "cpu":
        return overlay
    return Overlay(_list_to(overlay.bias, device), _penalties_to(overlay.penalties, device), _list_to(overlay.bans, device))


def _list_to(tokens: TokenList | None, device: torch.device) -> TokenList | None:
    if tokens is None:
        return None
    return TokenList(tokens.start.to(device), tokens.ids.to(device), None if tokens.values is None else tokens.values.to(device))


def _penalties_to(state: Penalties | None, device: torch.device) -> Penalties | None:
    if state is None:
        return None
    parts = (state.repetition, state.presence, state.frequency, state.slot, state.counts, state.seen)
    return Penalties(*(part.to(device) for part in parts))


def _decay(params: SamplingParams, top_p: float) -> TopPDecay | None:
    if params.top_p_decay == 1 or params.is_greedy:
        return None
    return TopPDecay(top_p, params.top_p_decay, params.top_p_min, params.top_p_reset_id)


def _no_encoder(text: str) -> list[int]:
    raise BadRequest("words need the sampler's `encode`, which makes tokens of them")
