"""Which models of the transformers library a slot cache serves exactly; the rest is refused by name at the start."""

from __future__ import annotations

from typing import Any

from gpu_worker.models.base import RunnerShape
from shared.errors import ConfigError

# These scale by the longest sequence of the batch, so the logits of one row would depend on the others.
_BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


def check_model_config(config: Any, shape: RunnerShape) -> None:
    """Raises ConfigError naming the entry of ``config.json``, or the setting, that cannot be served."""
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError("is_encoder_decoder is true; only decoder-only models are served", field="model")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    if kinds:
        raise ConfigError(f"layer_types has {', '.join(sorted(kinds))}; only full_attention is served", field="model")
    rope = rope_type(config)
    if rope in _BATCH_DEPENDENT_ROPE:
        raise ConfigError(f"rope_type has value {rope!r}; its scaling depends on the batch", field="model")
    for name in ("max_position_embeddings", "sliding_window"):
        limit = getattr(config, name, None)
        if limit and shape.max_length > limit:
            raise ConfigError(f"max_length has value {shape.max_length}; {name} is {limit}", field="max_length")


def rope_type(config: Any) -> str:
    """The kind of position embedding, ``default`` where none is named."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return str(rope.get("rope_type") or rope.get("type") or "default")


def kv_shape(config: Any) -> tuple[int, int, int]:
    """Layers, key-value heads and head width of a model."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return config.num_hidden_layers, getattr(config, "num_key_value_heads", None) or heads, head_dim
