"""The sampler: parameters by slot, seeds, finish rules, and one launch for the whole batch.

For an engine with a forward of its own (``examples/own_engine.py``): ``SlotSampler`` in its process, ``SamplerBeside`` in a
process of its own on the same device. Light: nothing is imported until a name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_worker.sampler.beside import SamplerBeside
    from gpu_worker.sampler.slot_sampler import Sampled, SlotSampler

_HOMES = {"Sampled": "slot_sampler", "SamplerBeside": "beside", "SlotSampler": "slot_sampler"}

__all__ = ["Sampled", "SamplerBeside", "SlotSampler"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"gpu_worker.sampler has no {name!r}; it has {', '.join(_HOMES)}")
    return getattr(importlib.import_module(f"gpu_worker.sampler.{_HOMES[name]}"), name)
