"""Attention of few query tokens over whole slots: query heads that share a key head are folded into the query length.

The library's own ``sdpa`` copies keys and values once for each query head as soon as a row has more than one token, which cost
six times the step.
"""

from __future__ import annotations

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from shared.errors import ConfigError

NAME = "slot_sdpa"
_NOT_APPLIED = ("softcap", "s_aux", "position_bias")


def slot_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """query [B, H, T, D], key and value [B, G, L, D], mask bool [B, 1, T, L] -> [B, T, H, D]; H a multiple of G."""
    unmet = [name for name in _NOT_APPLIED if kwargs.get(name) is not None]
    if unmet:
        raise ConfigError(f"the model's attention needs {', '.join(unmet)}, which is not applied here", field="model")
    batch, heads, width, head_dim = query.shape
    groups, share = key.shape[1], heads // key.shape[1]
    folded = query.reshape(batch, groups, share * width, head_dim)
    mask = attention_mask.expand(batch, share, width, -1).reshape(batch, 1, share * width, -1)
    output = torch.nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(batch, heads, width, value.shape[-1]).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(NAME, slot_sdpa)
