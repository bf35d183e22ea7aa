"""The public list of kernels. Light: neither torch nor CUDA is imported until a name is used.

Each name is a launcher on device tensors; its meaning on the CPU has the same name in `kernels.reference`. Launchers
check, then launch on the current stream; they allocate nothing, so they may be captured into a graph once
`load_all` has run. Where CUDA or NVRTC is missing they raise `KernelsUnavailable` with the reason.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "GpuInputs": "inputs",
    "KernelsUnavailable": "build",
    "all_variants": "catalog",
    "apply_bitmask": "bitmask",
    "beam_step": "beam",
    "finalize_beams": "beam",
    "finish_reasons": "finish",
    "load_all": "catalog",
    "logprobs_into": "logprobs",
    "match": "verify",
    "penalties_into": "penalties",
    "probabilities": "probability",
    "probability_into": "probability",
    "reject": "verify",
    "reparent_counts": "penalties",
    "reset_counts": "penalties",
    "sample_into": "sample",
    "shift_history": "finish",
    "update_counts": "penalties",
    "update_top_p_decay": "penalties",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"kernels has no {name!r}; it has {', '.join(_HOMES)}")
    return getattr(importlib.import_module(f"kernels.{_HOMES[name]}"), name)
