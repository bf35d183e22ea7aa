"""Drafting: which drafter a text gets, and how many drafts it may have in a step."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

from gpu_worker.sampler.tiers import Tier, tier_of
from gpu_worker.speculation.chained import ChainedDrafter
from gpu_worker.speculation.drafter import Drafter
from gpu_worker.speculation.forced import ForcedDrafter
from gpu_worker.speculation.ngram import NgramDrafter
from gpu_worker.speculation.progress import DraftProgress
from shared.errors import ConfigError
from shared.sampling_params import SamplingParams

DrafterName = Literal["none", "ngram", "forced", "ngram+forced"]


class Text(Protocol):
    """A sequence as drafting sees it. ``tokens`` are its committed output; at most ``max_tokens`` of them there will be."""

    tokens: list[int]
    progress: DraftProgress

    @property
    def prompt(self) -> list[int]: ...

    @property
    def guided(self) -> bool: ...

    @property
    def params(self) -> SamplingParams: ...

    @property
    def max_tokens(self) -> int: ...


class Drafting:
    """Off where ``max_drafts`` is 0 or the drafter is ``none``. Raises ConfigError for a name that is none."""

    def __init__(self, drafter: str, max_drafts: int) -> None:
        if drafter not in get_args(DrafterName):
            raise ConfigError(f"drafter has value {drafter!r}; one of {', '.join(get_args(DrafterName))}", field="drafter")
        self._name = drafter
        self.max_drafts = 0 if drafter == "none" else max_drafts

    def begin(self, text: Text) -> None:
        """Gives a text its drafter, where it can have one."""
        if self.max_drafts and may_draft(text.params) and not (self._name == "forced" and not text.guided):
            text.progress.drafter = make_drafter(self._name, text)

    def propose(self, text: Text) -> list[int]:
        """Drafts of the next step. None before the first token of a guided text: a walk begins with a token of its own."""
        most = min(self.max_drafts, text.max_tokens - len(text.tokens) - 1)
        if text.guided and not text.tokens:
            most = 0
        drafts = text.progress.propose(text.tokens, most)
        if not text.guided:
            text.progress.depth = 1 + len(drafts)
        return drafts


def make_drafter(name: str, text: Text) -> Drafter:
    """``ngram+forced``: what the grammar forces comes first, prompt lookup goes on behind it."""
    drafters: list[Drafter] = []
    if "forced" in name and text.guided:
        drafters.append(ForcedDrafter())
    if "ngram" in name:
        drafters.append(NgramDrafter(text.prompt))
    return drafters[0] if len(drafters) == 1 else ChainedDrafter(drafters)


def may_draft(params: SamplingParams) -> bool:
    """Bans of n-grams and logits processors are not followed ahead: such a text goes token by token."""
    return params.no_repeat_ngram_size == 0 and tier_of(params) is Tier.FAST
