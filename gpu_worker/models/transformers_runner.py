"""A causal language model of the transformers library behind ModelRunner, with its KV cache by slot."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from gpu_worker.models.attention import NAME as ATTENTION
from gpu_worker.models.base import MIN_DECODE_ROWS, ModelRunner, RunnerShape
from gpu_worker.models.model_config import check_model_config, kv_shape
from gpu_worker.models.slot_cache import SlotCache
from gpu_worker.models.staging import Staging
from shared.errors import ConfigError


class TransformersRunner(ModelRunner):
    """Decoder-only models with full attention in every layer; logits in float32.

    Decode always runs [rows, T] with rows * T >= 4, prefill always [1, prefill_chunk]. A sequence that is prefilled again
    (prompt and generated tokens together) has keys that differ in the last bits from those that decode wrote.
    """

    def __init__(self, model: Any, shape: RunnerShape) -> None:
        check_model_config(model.config, shape)
        if model.config._attn_implementation != ATTENTION:
            raise ConfigError(f"the model must be loaded with attn_implementation={ATTENTION!r}", field="model")
        super().__init__(shape, int(model.config.vocab_size), model.device)
        self._model = model.eval()
        self._body = model.get_decoder()
        self._staging = Staging(shape.prefill_chunk + 2, model.device)
        self._cache_argument = cache_argument(model)
        self._rows = max(shape.max_slots, -(-MIN_DECODE_ROWS // shape.max_width))
        layers, kv_heads, head_dim = kv_shape(model.config)
        self.cache = SlotCache(
            layers=layers, slots=self._rows, kv_heads=kv_heads, max_length=shape.max_length, head_dim=head_dim,
            dtype=model.dtype, device=model.device,
        )  # fmt: skip

    @torch.inference_mode()
    def prefill(self, slot: int, token_ids: Sequence[int], start_position: int, *, last: bool = False) -> torch.Tensor | None:
        call, lengths = self._prefill_call(slot, token_ids, start_position)
        if not last:
            self._body(**call)
            return None
        logits: torch.Tensor = self._model(**call, logits_to_keep=lengths - 1).logits
        return logits[0, 0].float()

    @torch.inference_mode()
    def prefill_logits(self, slot: int, token_ids: Sequence[int], start_position: int) -> torch.Tensor:
        call, _ = self._prefill_call(slot, token_ids, start_position)
        logits: torch.Tensor = self._model(**call).logits
        return logits[0, : len(token_ids)].float()

    def _prefill_call(self, slot: int, token_ids: Sequence[int], start_position: int) -> tuple[dict[str, Any], torch.Tensor]:
        self.check_prefill(slot, token_ids, start_position)
        padding = [0] * (self.prefill_chunk - len(token_ids))
        staged = self._staging.put([*token_ids, *padding, start_position, len(token_ids)])
        tokens, first, lengths = staged[None, :-2], staged[-2:-1], staged[-1:]
        return self._call(slice(slot, slot + 1), tokens, first, lengths), lengths

    @torch.inference_mode()
    def decode(
        self, tokens: torch.Tensor, positions: torch.Tensor, lengths: torch.Tensor, parents: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.check_decode(tokens, positions, lengths)
        if parents is not None:
            self.check_parents(tokens, parents)
        idle = self._rows - self.max_slots
        if idle:
            tokens = torch.nn.functional.pad(tokens, (0, 0, 0, idle))
            parents = None if parents is None else torch.nn.functional.pad(parents, (0, 0, 0, idle))
            positions, lengths = (torch.nn.functional.pad(each, (0, idle)) for each in (positions, lengths))
        # An idle row's token may be any number; the embedding would refuse one outside the vocabulary.
        live = torch.arange(self.max_width, device=self.device) < lengths[:, None]
        call = self._call(slice(0, self._rows), torch.where(live, tokens, 0), positions, lengths, parents)
        logits: torch.Tensor = self._model(**call).logits
        return logits[: self.max_slots].float()

    def copy_slot(self, source: int, target: int, num_tokens: int) -> None:
        self.check_copy(source, target, num_tokens)
        self.cache.copy_slot(source, target, num_tokens)

    def reset(self, slot: int) -> None:
        self.check_slot(slot)
        self.cache.reset_slot(slot)

    def keep(self, slot: int, position: int, nodes: Sequence[int]) -> None:
        self.check_keep(slot, position, nodes)
        self.cache.keep(slot, position, torch.tensor(nodes, dtype=torch.int64, device=self.device))

    def _call(
        self, slots: slice, tokens: torch.Tensor, first: torch.Tensor, lengths: torch.Tensor, parents: torch.Tensor | None = None
    ) -> dict[str, Any]:
        visible = self.cache.visible_blocks(first, lengths) if self.device.type == "cpu" else None
        rows = self.cache.place(slots, first, lengths, tokens.shape[1], visible, parents)
        call = {"input_ids": tokens, "attention_mask": rows.mask, "position_ids": rows.positions, "use_cache": True}
        return {**call, self._cache_argument: self.cache}


def cache_argument(model: Any) -> str:
    """The name under which ``forward`` takes a cache: ``cache`` in newer releases, ``past_key_values`` before."""
    names = inspect.signature(model.forward).parameters
    for name in ("cache", "past_key_values"):
        if name in names:
            return name
    raise ConfigError(f"{type(model).__name__}.forward takes no cache", field="model")
