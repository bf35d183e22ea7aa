"""A sequence: one of the n texts of a request, its slot, session, tokens and text. Pure: token in, delta or finish out."""

from __future__ import annotations

import copy
import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_worker.reasoning import Split, split
from gpu_worker.request import Request
from gpu_worker.sampler.context_logits import ContextLogits
from gpu_worker.sampler.finish import Finish, FinishRules, StopStrings
from gpu_worker.sampler.logprobs import PromptScores
from gpu_worker.sampler.tiers import is_plain
from gpu_worker.sampler.token_state import TokenState
from gpu_worker.sampler.top_p_decay import TopPDecay
from gpu_worker.speculation.progress import DraftProgress
from shared.bitmask import Words
from shared.gate import Gate
from shared.protocol import Choice, Delta, Plan, TokenLogprob
from shared.sampling_params import SamplingParams
from shared.tokenizer import Detokenizer, Vocabulary, decode

if TYPE_CHECKING:
    from gpu_worker.beam.group import BeamGroup

TEXT = (
    "tokens", "text", "logprobs", "cumulative_logprob", "state", "detokenizer", "stops", "finish", "told", "first_token_s",
    "last_token_s",
)  # fmt: skip
"""What a sequence holds of its text: all that goes along where a text goes on in another slot."""


class Phase(enum.Enum):
    """Where a sequence is. A guided one is decoded only when its session is open."""

    WAITING = "waiting"  # no slot
    PREFILL = "prefill"  # has a slot, prompt tokens are still to be written
    READY = "ready"  # prompt written; waits for its plan
    DECODING = "decoding"
    SPARE = "spare"  # has a slot for a beam that is not there
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Sequence:
    """``epoch`` names this owner of its slot (never 0, never reused). ``told`` counts output tokens that the grammar link has as
    committed. ``row_ready``: the row of the current position is in the buffer of ``row_launch``; ``guide_row``: what the guide
    alone allows there. ``prefix``: the prompt's text, where it is shown before the output's; ``scores``: its log-probabilities,
    where they were asked for. ``num_logprobs``: alternatives wanted beside the sampled token, None: not even its own (texts that
    are ranked need their own, spec 129). ``plain``: parameters and a mask row are all that its steps need. ``progress``: the drafts
    of the step. ``state`` and ``top_p`` move by committed tokens only. ``beams``: the beam search that it belongs to; ``spare``: it
    holds none of its texts. Times in seconds."""

    request: Request
    child: int
    epoch: int
    seed: int
    first_offset: int
    rules: FinishRules
    vocabulary: Vocabulary
    detokenizer: Detokenizer
    stops: StopStrings
    state: TokenState
    top_p: TopPDecay | None
    prefix: str = ""
    scores: PromptScores | None = None
    context_logits: ContextLogits | None = None
    beams: BeamGroup | None = None
    spare: bool = False
    phase: Phase = Phase.WAITING
    slot: int = -1
    prefilled: int = 0
    first_launch: int = 0
    plan: Plan | None = None
    session: int | None = None
    told: int = 0
    row_ready: bool = False
    row_launch: int = 0
    guide_row: Words | None = None
    held_since_s: float | None = None
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    deltas: int = 0
    finish: Finish | None = None
    progress: DraftProgress = field(default_factory=DraftProgress)
    rows: Counter[str] = field(default_factory=Counter)
    holds: int = 0
    replays: int = 0
    services: list[str] = field(default_factory=list)
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    params: SamplingParams = field(init=False)
    prompt: list[int] = field(init=False)
    guided: bool = field(init=False)
    num_logprobs: int | None = field(init=False)
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        """What a request says once and a step asks often."""
        self.params, self.prompt, self.guided = self.request.params, self.request.prompt_token_ids, self.request.guide is not None
        ranked = self.params.logprobs is None and self.params.is_ranked
        self.num_logprobs = 0 if ranked else self.params.logprobs
        self.plain = self.num_logprobs is None and is_plain(self.params)

    @property
    def max_tokens(self) -> int:
        return self.request.max_tokens

    @property
    def context(self) -> list[int]:
        """Prompt and output so far: what the model has to have seen."""
        return self.request.prompt_token_ids + self.tokens

    @property
    def placed_together(self) -> list[Sequence]:
        """The sequences that get and lose their slots with this one."""
        return [self] if self.beams is None else self.beams.sequences

    @property
    def golden_token(self) -> int:
        return self.tokens[-1] if self.tokens else self.request.prompt_token_ids[-1]

    @property
    def to_prefill(self) -> int:
        """Tokens to write before the golden token is fed."""
        return len(self.request.prompt_token_ids) + len(self.tokens) - 1

    def take(self, token_id: int, logprob: TokenLogprob | None, now_s: float, *, logits: bytes | None = None) -> Delta:
        """Commits a sampled token; ``finish`` is set where it is the last. Returns the piece that may be shown."""
        self._commit(token_id)
        self.row_ready, self.held_since_s = False, None
        self.first_token_s = self.first_token_s or now_s
        self.last_token_s = now_s
        if logprob is not None:
            self.logprobs.append(logprob)
            self.cumulative_logprob += logprob.logprob
        self.finish = self.rules.check(token_id, len(self.tokens), stop_found=self.state.stop_found)
        return self._delta(self._push([token_id]), [token_id], [logprob] if logprob else None, logits)

    @property
    def wants_logits(self) -> bool:
        """Whether the next launch is to tell this row's logits: for the token's piece, or as those of the prompt's last token."""
        return self.params.return_generation_logits or (self.context_logits is not None and not self.tokens)

    def context_pieces(self, last: bytes | None) -> list[Delta]:
        """The prompt's logits, told before the first token that is sampled here."""
        if self.context_logits is None or self.context_logits.told:
            return []
        pieces = self.context_logits.pieces(last if not self.tokens else None, self.vocabulary.size)
        return [self._delta("", [], None, None, context_logits=rows) for rows in pieces]

    def branch(self) -> Sequence:
        """A copy whose text goes its own way. Its slot and session are this one's still."""
        twin = copy.copy(self)
        twin.tokens, twin.logprobs = list(self.tokens), list(self.logprobs)
        twin.state, twin.detokenizer, twin.stops = self.state.branch(), self.detokenizer.branch(), copy.copy(self.stops)
        return twin

    def become(self, other: Sequence) -> None:
        """Takes over a text."""
        for name in TEXT:
            setattr(self, name, getattr(other, name))

    def continue_from(self, token_ids: list[int]) -> Finish | None:
        """Tokens that were generated elsewhere (spec 59, 60): their stop checks come before scheduling. Nothing is sent."""
        for at, token_id in enumerate(token_ids):
            self._commit(token_id)
            self.finish = self.rules.check(token_id, at + 1, stop_found=self.state.stop_found)
            self._push([token_id])
            if self.finish is not None:
                break
        return self.finish

    def _commit(self, token_id: int) -> None:
        self.tokens.append(token_id)
        self.state.push(token_id)
        if self.top_p is not None:
            self.top_p.push(token_id)

    def _push(self, token_ids: list[int]) -> str:
        """Text of these tokens that may be shown. The end token is not text; a stop string found ends the sequence (spec 114: after
        end id and length)."""
        ended = self.finish is not None
        hidden = self.finish is not None and self.finish.stop_reason == "eos" and not self.request.params.include_stop
        armed = len(self.tokens) >= self.params.min_tokens
        piece = self.stops.push("" if hidden else self.detokenizer.push(token_ids), armed=armed)
        if ended:
            piece += self.stops.push(self.detokenizer.flush()) + self.stops.flush()
        elif self.stops.found is not None:
            self.finish = Finish("stop", self.stops.found)
        self.text += piece
        return piece if self.request.params.detokenize else ""

    def _delta(
        self, text: str, token_ids: list[int], logprobs: list[TokenLogprob] | None, logits: bytes | None,
        context_logits: list[bytes] | None = None,
    ) -> Delta:  # fmt: skip
        number, self.deltas = self.deltas, self.deltas + 1
        text = text if number else self.prefix + text
        return Delta(
            request_id=self.request.request_id, choice=self.child, sequence_number=number, text=text, token_ids=token_ids,
            logprobs=logprobs, logits=None if logits is None else [logits], context_logits=context_logits,
        )  # fmt: skip

    def cut(self) -> str:
        """The text so far with what was held back, where the sequence is cut short; empty without ``detokenize``."""
        self.text += self.stops.push(self.detokenizer.flush()) + self.stops.flush()
        return self.prefix + self.text if self.request.params.detokenize else ""

    def answer(self) -> str | None:
        """The guided part of the text; None while a reasoning gate is open."""
        if self.request.gate is None:
            return self.text
        found = self._split(self.request.gate)
        return None if found is None else self.text[found.chars :]

    def _split(self, gate: Gate) -> Split | None:
        return split(gate, self.tokens, self.vocabulary, skip_special_tokens=self.params.skip_special_tokens)

    def _reasoning(self) -> dict[str, Any]:
        """What a choice says of it."""
        if self.request.gate is None:
            return {}
        whole = len(self.prefix + self.text)
        found = self._split(self.request.gate) or Split(len(self.tokens), whole)
        start = min(len(self.prefix) + found.chars, whole) if self.params.detokenize else None
        return {"reasoning_tokens": found.tokens, "answer_start": start}

    def _called(self) -> dict[str, Any]:
        """What a choice says of its tool calls."""
        if self.request.tools is None or not self.params.detokenize:
            return {}
        found = self.request.tools.calls(self.answer() or "")
        return {"content": found.content, "tool_calls": found.calls}

    def choice(self, valid: bool | None, rank: int | None = None) -> Choice:
        """The finished text, as the choice of its rank or its own number. A grammar that has come to its end is told apart from a
        stop that came earlier."""
        finish = self.finish
        reason = finish.stop_reason if finish else None
        params = self.request.params
        return Choice(
            choice=self.child if rank is None else rank,
            text=self.prefix + self.text if params.detokenize else "",
            token_ids=self.tokens,
            finish_reason=finish.reason if finish else "cancelled",
            stop_reason="grammar" if reason == "eos" and self.request.guide_kind else reason,
            valid=valid,
            cumulative_logprob=self.cumulative_logprob if self.num_logprobs is not None else None,
            logprobs=self.logprobs if params.logprobs is not None else None,
            **self._reasoning(),
            **self._called(),
        )


def make_sequence(request: Request, child: int, epoch: int, seed: int, first_offset: int, vocabulary: Vocabulary) -> Sequence:
    """A sequence that waits for a slot, with the tokens its request came with."""
    params = request.params
    sequence = Sequence(
        request=request, child=child, epoch=epoch, seed=seed, first_offset=first_offset, rules=request.finish_rules(),
        vocabulary=vocabulary,
        detokenizer=Detokenizer(vocabulary, skip_special_tokens=params.skip_special_tokens),
        stops=StopStrings(params.stop, include_stop=params.include_stop),
        state=TokenState(request.rules, request.prompt_token_ids), top_p=_decay(params), prefix=_prefix(request, vocabulary),
        scores=_scores(request, child, vocabulary),
    )  # fmt: skip
    if params.return_context_logits and child == 0:
        sequence.context_logits = ContextLogits(len(request.prompt_token_ids), sequence.scores)
    sequence.continue_from(request.output_token_ids)
    return sequence


def _decay(params: SamplingParams) -> TopPDecay | None:
    """A greedy row has no top-p to decay (spec 66)."""
    if params.top_p_decay == 1 or params.is_greedy:
        return None
    return TopPDecay(params.resolve().top_p, params.top_p_decay, params.top_p_min, params.top_p_reset_id)


def _prefix(request: Request, vocabulary: Vocabulary) -> str:
    """The prompt's text where the output shows it (spec 128): text alone, never tokens."""
    params = request.params
    if params.exclude_input_from_output or not params.detokenize:
        return ""
    return decode(vocabulary, request.prompt_token_ids, skip_special_tokens=params.skip_special_tokens)


def _scores(request: Request, child: int, vocabulary: Vocabulary) -> PromptScores | None:
    """One of the n texts asks for the prompt they share."""
    wanted = request.params.prompt_logprobs
    return None if wanted is None or child else PromptScores(request.prompt_token_ids, wanted, vocabulary.size)
