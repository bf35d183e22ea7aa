"""Rows for the positions of a text that is being drafted: walks of the target's own session, taken back by its next walk (spec 47).

Each row is asked for before the draft model's forward of that position and fetched after it: grammar work runs under the forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from gpu_worker.grammar_link import GrammarLink, StepTicket, Walk, WalkStatus
from shared.bitmask import Words, num_words


class Guided(Protocol):
    """A guided text: ``slot`` names its rows, ``session`` its matcher; ``told`` of its output tokens the grammar link has heard."""

    slot: int
    session: int | None
    tokens: list[int]
    told: int


def tell(text: Guided) -> list[int]:
    """Output tokens that the link has not heard, up to the golden token; now they count as told."""
    base = max(len(text.tokens) - 1, 0)
    committed, text.told = text.tokens[text.told : base], base
    return committed


class DraftRows:
    """``words`` int32 [slots, W]: the row after what each slot has drafted so far."""

    def __init__(self, link: GrammarLink, num_slots: int, vocab_size: int, width: int, wait_s: float) -> None:
        self._link, self._width, self._wait_s = link, width, wait_s
        self._buffer = np.zeros((num_slots * width, num_words(vocab_size)), np.int32)
        self.words: Words = np.zeros((num_slots, num_words(vocab_size)), np.int32)

    def ask(self, step: int, texts: Mapping[int, tuple[Guided, list[int]]]) -> StepTicket | None:
        """Walks golden token and drafts of each guided text, by slot. At most ``width`` tokens each."""
        walks = [self._walk(text, drafts) for text, drafts in texts.values() if text.session is not None]
        return self._link.submit(step, walks, self._buffer) if walks else None

    def _walk(self, text: Guided, drafts: list[int]) -> Walk:
        committed = tell(text)
        return Walk(
            text.session or 0, row=text.slot * self._width, committed=committed, path=[text.tokens[-1], *drafts],
            accepted=len(committed) or -1, draft_walk=True,
        )  # fmt: skip

    def take(self, ticket: StepTicket | None, texts: Mapping[int, tuple[Guided, list[int]]]) -> set[int]:
        """The slots whose row came; the others have nothing to go on with: late, refused, at the end or dead. Which of these, the
        target's walk will find."""
        if ticket is None:
            return set()
        ticket.wait(self._wait_s)
        outcomes, there = ticket.seal(), set()
        for slot, (text, drafts) in texts.items():
            outcome = outcomes.get(text.session or 0)
            if outcome is not None and outcome.status is WalkStatus.OK and outcome.num_guided == 1 + len(drafts):
                self.words[slot] = self._buffer[slot * self._width + len(drafts)]
                there.add(slot)
        return there
