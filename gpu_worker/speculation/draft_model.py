"""DraftModel: a second, smaller model that guesses for all texts of a step, a forward a guess.

Its content is kept by slot and position as the target's is: what fell is written over. A guess of a guided text stays in the
grammar. To be matched, a guess is drawn with the very bits that the target will use at its position: the closer both
distributions, the likelier the same token, and a model that is the target's twin is never wrong. To be rejected or not (spec 121),
it is drawn with bits of its own, and the distribution comes along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch

from gpu_worker.models.base import ModelRunner
from gpu_worker.sampler.slot_params import SlotSamplingParams
from gpu_worker.speculation.draft_rows import DraftRows, Guided
from gpu_worker.speculation.tree import DraftTree, merged
from kernels.reference import Distribution, Purpose, RowStatus, SampleInputs, sample
from shared.sampling_params import SamplingParams

FED = 2
"""Tokens of a text that one forward takes: where every draft stood, the last of them and the token after it are new."""


class DraftRunner(NamedTuple):
    """A runner and its vocabulary: ``d2t`` int32 [n] says that column i of its logits is target id i + d2t[i] (None: its ids are
    the target's). A runner that is as wide as the target gives those columns of its logits."""

    runner: ModelRunner
    d2t: torch.Tensor | None = None


class Drafted(Guided, Protocol):
    """A text as a draft model sees it; ``context`` is prompt and output so far."""

    epoch: int

    @property
    def context(self) -> list[int]: ...

    @property
    def guided(self) -> bool: ...

    @property
    def params(self) -> SamplingParams: ...


@dataclass(slots=True)
class _Known:
    """What a slot of the draft model holds: ``length`` committed tokens of the owner, then ``drafts``."""

    epoch: int = 0
    length: int = 0
    drafts: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Guess:
    """A text that is drafted for: up to ``most`` tokens in a row."""

    text: Drafted
    most: int
    draws: bool  # by rejection
    feed: list[int]
    start: int
    tokens: list[int] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)
    others: list[list[int]] = field(default_factory=list)  # what else might follow, a draft


class DraftModel:
    """Called by the step loop with no launch in flight. ``rejection``: sampled texts get their distributions."""

    def __init__(
        self, draft: DraftRunner, rows: DraftRows, params: SlotSamplingParams, vocab_size: int, *, rejection: bool, branches: int
    ) -> None:
        self._runner, self._d2t, self._rows, self._params = draft.runner, draft.d2t, rows, params
        self._vocab_size, self._rejection, self._branches = vocab_size, rejection, branches
        self._known = [_Known() for _ in range(draft.runner.max_slots)]
        wide = draft.d2t is not None and draft.runner.vocab_size != len(draft.d2t)
        self._columns = None if draft.d2t is None or not wide else torch.arange(len(draft.d2t)) + draft.d2t

    def draft(self, step: int, texts: Sequence[tuple[Drafted, int]]) -> list[DraftTree]:
        """Guesses for each text, at most so many tokens; guided texts have a token by now."""
        guesses = {text.slot: self._begin(text, most) for text, most in texts}
        going = dict(guesses)
        while going := {slot: guess for slot, guess in going.items() if len(guess.tokens) < guess.most}:
            guided = {slot: (guess.text, guess.tokens) for slot, guess in going.items() if guess.text.guided}
            ticket = self._rows.ask(step, guided)
            logits = self._forward(going)
            there = self._rows.take(ticket, guided)
            going = {slot: guess for slot, guess in going.items() if slot in there or not guess.text.guided}
            if going:
                going = self._draw(logits, going)
        return [self._tree(guesses[text.slot]) for text, _ in texts]

    # ---- the forward -------------------------------------------------------------------------------------------------------------

    def _begin(self, text: Drafted, most: int) -> _Guess:
        """Brings the slot to all but the last tokens of the text."""
        context, known = text.context, self._known[text.slot]
        if known.epoch != text.epoch:
            self._runner.reset(text.slot)
            known = self._known[text.slot] = _Known(text.epoch)
        start = known.length
        for token_id in known.drafts:
            if start >= len(context) - 1 or context[start] != token_id:
                break
            start += 1
        chunk, end = self._runner.prefill_chunk, len(context) - FED
        while start < end:
            self._runner.prefill(text.slot, context[start : min(start + chunk, end)], start)
            start = min(start + chunk, end)
        known.length, known.drafts = len(context), []
        draws = self._rejection and not text.params.is_greedy and text.params.logprobs is None and not text.params.is_ranked
        if self._branches > 1 and not draws:
            most = max(most // self._branches, 1)
        return _Guess(text, most, draws, context[start:], start)

    def _forward(self, guesses: dict[int, _Guess]) -> torch.Tensor:
        """Logits [slots, columns] behind the last token of each."""
        slots, width = self._runner.decode_shapes[-1]
        tokens = torch.zeros((slots, width), dtype=torch.int64)
        positions, lengths = torch.zeros(slots, dtype=torch.int64), torch.zeros(slots, dtype=torch.int64)
        for slot, guess in guesses.items():
            tokens[slot, : len(guess.feed)] = torch.tensor(guess.feed)
            positions[slot], lengths[slot] = guess.start, len(guess.feed)
            self._known[slot].drafts = list(guess.tokens)
        logits = self._runner.decode(tokens, positions, lengths)[torch.arange(slots), (lengths - 1).clamp(min=0)]
        return logits if self._columns is None else logits[:, self._columns]

    # ---- the draw ----------------------------------------------------------------------------------------------------------------

    def _draw(self, logits: torch.Tensor, guesses: dict[int, _Guess]) -> dict[int, _Guess]:
        """One more token each; gives those that got one."""
        inputs = self._inputs(logits, guesses)
        matched = [slot for slot, guess in guesses.items() if not guess.draws]
        if matched:
            self._draw_matched(inputs, guesses, matched)
        for slot, guess in guesses.items():
            if guess.draws:
                self._draw_own(inputs, slot, guess)
        going = {slot: guess for slot, guess in guesses.items() if guess.feed}
        for guess in going.values():
            guess.start = len(guess.text.context) + len(guess.tokens) - 1
        return going

    def _inputs(self, logits: torch.Tensor, guesses: dict[int, _Guess]) -> SampleInputs:
        slots = len(logits)
        position, status = np.zeros(slots, np.int64), torch.full((slots,), int(RowStatus.HOLD), dtype=torch.int32)
        for slot, guess in guesses.items():
            position[slot] = len(guess.text.tokens) + len(guess.tokens)
            status[slot] = int(RowStatus.GUIDED if guess.text.guided else RowStatus.UNGUIDED)
        index, words = torch.arange(slots, dtype=torch.int32), torch.from_numpy(self._rows.words)
        return SampleInputs(logits, self._params.rows(position), self._vocab_size, words, index, status, self._d2t)

    def _draw_matched(self, inputs: SampleInputs, guesses: dict[int, _Guess], slots: list[int]) -> None:
        status = torch.full_like(inputs.row_status, int(RowStatus.HOLD)) if inputs.row_status is not None else None
        if status is not None and inputs.row_status is not None:
            status[slots] = inputs.row_status[slots]
        told = self._branches if self._branches > 1 else 0
        result = sample(
            inputs.logits, inputs.rows, vocab_size=self._vocab_size, bitmask=inputs.bitmask, row_index=inputs.row_index,
            row_status=status, d2t=self._d2t, logprobs="processed" if told else None, num_logprobs=told,
        )  # fmt: skip
        for slot in slots:
            guess, token_id = guesses[slot], int(result.token[slot])
            guess.feed = [token_id] if token_id >= 0 else []
            guess.tokens += guess.feed
            if told and guess.feed and result.top_ids is not None:
                guess.others.append([i for i in result.top_ids[slot].tolist() if i not in (token_id, -1)][: told - 1])

    def _draw_own(self, inputs: SampleInputs, slot: int, guess: _Guess) -> None:
        """With the distribution that it was drawn from (spec 123)."""
        kept = inputs.live(slot).kept
        guess.feed = []
        if kept is not None:
            distribution = Distribution.of(kept, inputs.masks)
            guess.feed = [distribution.draw(inputs.bits(slot, Purpose.DRAFT))]
            guess.tokens += guess.feed
            guess.distributions.append(distribution)

    def _tree(self, guess: _Guess) -> DraftTree:
        """The chain, and beside each of its tokens what else was likely."""
        if not guess.others:
            return DraftTree(guess.tokens, distributions=guess.distributions)
        beside = [[*guess.tokens[:at], other] for at, others in enumerate(guess.others) for other in others]
        return merged([guess.tokens, *beside], len(guess.tokens) + len(beside))
