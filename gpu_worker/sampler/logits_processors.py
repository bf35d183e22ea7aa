"""Logits processors: functions that the operator installs as entry points and that a request names. No code comes over the wire.

An entry point of the group ``maskstream.logits_processors`` names a callable ``(logits, contexts) -> logits``: ``logits`` float32
[R, V], a copy that may be changed in place; ``contexts`` one a row; the result has the same shape. It is called once a step for all
rows that name it, and for no others. What it does must depend on a row's own logits and context alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import NamedTuple

import torch

from shared.errors import BadRequest, ConfigError, MaskstreamError

GROUP = "maskstream.logits_processors"


class Context(NamedTuple):
    """The text of a row so far. Not to be changed."""

    prompt: Sequence[int]
    output: Sequence[int]


LogitsProcessor = Callable[[torch.Tensor, Sequence[Context]], torch.Tensor]


class NamedProcessor(NamedTuple):
    """A processor as a request asked for it."""

    name: str
    call: LogitsProcessor


class ProcessedRow(NamedTuple):
    """A slot, the processors of its request in order, and its text."""

    slot: int
    processors: Sequence[NamedProcessor]
    context: Context


def load_processors() -> dict[str, LogitsProcessor]:
    """Those that are installed, by name. Raises ConfigError for one that cannot be loaded."""
    found: dict[str, LogitsProcessor] = {}
    for point in entry_points(group=GROUP):
        try:
            found[point.name] = point.load()
        except Exception as error:
            raise ConfigError(f"the logits processor {point.name!r} ({point.value}) cannot be loaded: {error!r}") from error
    return found


def chosen(names: Sequence[str], installed: Mapping[str, LogitsProcessor]) -> list[NamedProcessor]:
    """Those that a request names. Raises BadRequest for one that is not installed."""
    for at, name in enumerate(names):
        if name not in installed:
            known = ", ".join(sorted(installed)) or "none"
            raise BadRequest(f"no such processor; this worker has: {known}", field=f"logits_processors[{at}]")
    return [NamedProcessor(name, installed[name]) for name in names]


def process(logits: torch.Tensor, rows: Sequence[ProcessedRow]) -> tuple[torch.Tensor, dict[int, MaskstreamError]]:
    """A copy of logits [slots, V] with ``rows`` processed, and the errors by slot. Every row goes through its processors in order;
    rows with the same one at the same place of their lists go together."""
    logits, failed = logits.clone(), dict[int, MaskstreamError]()
    for depth in range(max(len(row.processors) for row in rows)):
        left = [row for row in rows if depth < len(row.processors) and row.slot not in failed]
        for processor in dict.fromkeys(row.processors[depth] for row in left):
            batch = [row for row in left if row.processors[depth] == processor]
            slots = [row.slot for row in batch]
            try:
                changed = processor.call(logits[slots], [row.context for row in batch])
                logits[slots] = _checked(changed, (len(slots), logits.shape[1]))
            except Exception as error:  # a processor harms the requests that name it and no others
                text = f"the logits processor {processor.name!r} failed: {error!r}"
                failed |= {slot: MaskstreamError(text, field="logits_processors") for slot in slots}
    return logits, failed


def _checked(logits: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    if tuple(logits.shape) != shape:
        raise ValueError(f"it returned {list(logits.shape)}, not {list(shape)}")
    return logits
