"""Named ranges for a profiler (NVTX): receive, mask wait, copy, forward, sample, commit. Off until ``turn_on``: a range then costs
an attribute's look-up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

NAMES = ("receive", "mask wait", "copy", "forward", "sample", "commit")
_NONE: AbstractContextManager[None] = nullcontext()


def _off(name: str) -> AbstractContextManager[None]:
    return _NONE


_make: Callable[[str], AbstractContextManager[None]] = _off


def of(name: str) -> AbstractContextManager[None]:
    """The range of a part of the step, around what it encloses."""
    return _make(name)


def turn_on(make: Callable[[str], AbstractContextManager[None]] | None = None) -> None:
    """From now on ranges are told to NVTX, or to ``make``."""
    global _make
    if make is None:
        from torch.cuda import nvtx

        make = nvtx.range
    _make = make


def turn_off() -> None:
    global _make
    _make = _off
