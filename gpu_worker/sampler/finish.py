"""Finish rules: end id over length over stop words on one token (spec 114), and stop strings on text with hold-back (R23)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended. ``stop_reason``: ``eos``, ``grammar``, the stop string, the stop token id (of a stop sequence its last
    one); None for length."""

    reason: FinishReason
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class FinishRules:
    """What ends one sequence by token: end ids (none under ignore_eos), the length, stop token ids."""

    end_ids: frozenset[int]
    stop_token_ids: frozenset[int]
    max_tokens: int

    def check(self, token_id: int, num_tokens: int, *, stop_found: bool = False) -> Finish | None:
        """The reason at the token that makes the output ``num_tokens`` long, or None. Order: end id, length, stop id or stop
        sequence (``stop_found``: one ends here)."""
        if token_id in self.end_ids:
            return Finish("stop", "eos")
        if num_tokens >= self.max_tokens:
            return Finish("length")
        return Finish("stop", token_id) if stop_found or token_id in self.stop_token_ids else None


class StopStrings:
    """Streams text and ends it at the stop string that is complete first (the longest of those that end together), also one that
    crosses token borders: how the text was cut into tokens makes no difference.

    Text that could be the beginning of a stop string is held back until it is decided. A stop string that is complete while
    ``armed`` is False (before min_tokens) is text like any other.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, *, armed: bool = True) -> str:
        """Text that may be shown now. After ``found`` is set nothing more comes out."""
        if self.found is not None:
            return ""
        old, self._held = len(self._held), self._held + text
        if not self._stops:
            return self.flush()
        hits = self._hits(old) if armed else []
        if hits:
            _, at, stop = min(hits)
            return self._end(at, stop)
        keep = max(self._overlap(stop) for stop in self._stops)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return shown

    def _hits(self, old: int) -> list[tuple[int, int, str]]:
        """End, beginning and stop string of those that are complete beyond the first ``old`` characters held."""
        found = ((self._held.find(stop, max(old - len(stop) + 1, 0)), stop) for stop in self._stops)
        return [(at + len(stop), at, stop) for at, stop in found if at >= 0]

    def flush(self) -> str:
        """What was held back, where the sequence ends for another reason."""
        shown, self._held = self._held, ""
        return shown

    def _end(self, at: int, stop: str) -> str:
        self.found = stop
        shown = self._held[: at + (len(stop) if self._include_stop else 0)]
        self._held = ""
        return shown

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that begins ``stop``."""
        for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:length]):
                return length
        return 0
