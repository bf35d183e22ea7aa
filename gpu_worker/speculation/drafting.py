"""Drafting: which drafter a text gets, and how many drafts it may have in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

from gpu_worker.sampler.tiers import Tier, tier_of
from gpu_worker.speculation.chained import ChainedDrafter
from gpu_worker.speculation.draft_model import Drafted, DraftModel
from gpu_worker.speculation.drafter import Drafter
from gpu_worker.speculation.forced import ForcedDrafter
from gpu_worker.speculation.model_drafter import ModelDrafter
from gpu_worker.speculation.ngram import NgramDrafter
from gpu_worker.speculation.progress import DraftProgress
from gpu_worker.speculation.tree import DraftTree
from shared.errors import ConfigError
from shared.sampling_params import SamplingParams

DrafterName = Literal["none", "ngram", "forced", "ngram+forced", "model"]


class Text(Drafted, Protocol):
    """A sequence as drafting sees it. ``tokens`` are its committed output; at most ``max_tokens`` of them there will be."""

    progress: DraftProgress

    @property
    def prompt(self) -> list[int]: ...

    @property
    def max_tokens(self) -> int: ...


class Drafting:
    """Off where ``max_drafts`` is 0 or the drafter is ``none``; ``branches``: guesses side by side, 1: chains. Raises ConfigError
    for a name that is none."""

    def __init__(self, drafter: str, max_drafts: int, branches: int = 1, model: DraftModel | None = None) -> None:
        if drafter not in get_args(DrafterName):
            raise ConfigError(f"drafter has value {drafter!r}; one of {', '.join(get_args(DrafterName))}", field="drafter")
        self._name, self._branches, self._model = drafter, branches, model
        self.max_drafts = 0 if drafter == "none" else max_drafts

    def begin(self, text: Text) -> None:
        """Gives a text its drafter, where it can have one."""
        if self.max_drafts and may_draft(text.params) and not (self._name == "forced" and not text.guided):
            text.progress.drafter = make_drafter(self._name, text)

    def propose_all(self, step: int, texts: Sequence[Text]) -> list[DraftTree]:
        """Drafts of the step for each text. The draft model guesses for all of them together."""
        if self._model is not None:
            asking = [(text, self._most(text)) for text in texts if text.progress.is_new(text.tokens)]
            asking = [(text, most) for text, most in asking if most > 0 and isinstance(text.progress.drafter, ModelDrafter)]
            for (text, _), tree in zip(asking, self._model.draft(step, asking) if asking else (), strict=True):
                if isinstance(text.progress.drafter, ModelDrafter):
                    text.progress.drafter.offer(tree)
        return [self.propose(text) for text in texts]

    def _most(self, text: Text) -> int:
        most = min(self.max_drafts, text.max_tokens - len(text.tokens) - 1)
        return 0 if text.guided and not text.tokens else most

    def propose(self, text: Text) -> DraftTree:
        """Drafts of the next step. None before the first token of a guided text: a walk begins with a token of its own."""
        tree = text.progress.propose(text.tokens, self._most(text), self._branches)
        if not text.guided:
            text.progress.depth = 1 + len(tree.tokens)
        return tree


def make_drafter(name: str, text: Text) -> Drafter:
    """``ngram+forced``: what the grammar forces comes first, prompt lookup goes on behind it."""
    if name == "model":
        return ModelDrafter()
    drafters: list[Drafter] = []
    if "forced" in name and text.guided:
        drafters.append(ForcedDrafter())
    if "ngram" in name:
        drafters.append(NgramDrafter(text.prompt))
    return drafters[0] if len(drafters) == 1 else ChainedDrafter(drafters)


def may_draft(params: SamplingParams) -> bool:
    """Bans of n-grams and logits processors are not followed ahead: such a text goes token by token."""
    return params.no_repeat_ngram_size == 0 and tier_of(params) is Tier.FAST
