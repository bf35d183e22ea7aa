"""BeamGroup: the texts of one beam search and the sequences (slots) that they stand in. Pure."""

from __future__ import annotations

from typing import NamedTuple

from gpu_worker.beam.scores import MAX_CANDIDATES, BeamScores
from gpu_worker.beam.search import BeamRules, BeamSearch, Candidate
from gpu_worker.sampler.logprobs import entry
from gpu_worker.sequence import Sequence
from shared.errors import AccountingError
from shared.protocol import TokenLogprob


class Move(NamedTuple):
    """A text's next place: ``sequence`` goes on with ``text``, which stood in ``parent`` (the same one where nothing is copied)."""

    sequence: Sequence
    parent: Sequence
    text: Sequence


class BeamGroup:
    """``sequences`` are all that the request has, one a beam; ``order`` those that hold a live beam, by rank. The others are spare.
    ``launch``: the last one that was looked at."""

    def __init__(self, sequences: list[Sequence]) -> None:
        request = sequences[0].request
        self.sequences, self.order = sequences, sequences[:1]
        self.search: BeamSearch[Sequence] = BeamSearch(BeamRules.of(request.params, request.max_tokens))
        self.launch = 0
        rules = request.finish_rules()
        self._ways_to_end = len(rules.end_ids | rules.stop_token_ids)
        for sequence in sequences:
            sequence.beams, sequence.spare = self, sequence is not sequences[0]

    @property
    def num_candidates(self) -> int:
        """Of the best so many at least ``width`` do not end the text by a single token: each beam may end by each of them."""
        return min(self.search.width * max(2, 1 + self._ways_to_end), MAX_CANDIDATES)

    def chosen(self) -> list[Sequence]:
        """The best n: finished texts, then (where the search was cut short) live ones."""
        texts = [finished.text for finished in self.search.pool]
        live = [] if self.search.done else self.order
        return [*texts, *live][: self.sequences[0].params.n]

    def advance(self, scores: list[BeamScores], now_s: float) -> list[Move]:
        """One token for all beams, told in the order of ``order``: where each text that goes on stands next. Nothing is moved
        yet."""
        ranked = self.search.rank([score.told for score in scores], self.num_candidates)
        texts = self._texts(ranked, scores, now_s)
        alive = self.search.advance(ranked[: len(texts)], [text if text.finish is not None else None for text in texts])
        return [] if self.search.done else self._moves([(self.order[ranked[at].beam], texts[at]) for at in alive])

    def _texts(self, ranked: list[Candidate], scores: list[BeamScores], now_s: float) -> list[Sequence]:
        """The candidates as texts with one more token, as far down as one can matter."""
        texts, num_alive, width = list[Sequence](), 0, self.search.width
        for candidate in ranked:
            if len(texts) >= width and num_alive >= width:
                break
            text = self.order[candidate.beam].branch()
            text.take(candidate.token, _entry(text, candidate, scores[candidate.beam]), now_s)
            text.cumulative_logprob = candidate.cum
            texts.append(text)
            num_alive += text.finish is None
        return texts

    def _moves(self, survivors: list[tuple[Sequence, Sequence]]) -> list[Move]:
        """The first continuation of a text stays in its place, further ones go where no text goes on."""
        staying = {id(parent) for parent, _ in survivors}
        free = [sequence for sequence in self.sequences if id(sequence) not in staying]
        moves = []
        for parent, text in survivors:
            place = parent if id(parent) in staying else free.pop(0)
            staying.discard(id(parent))
            moves.append(Move(place, parent, text))
        return moves

    def settle(self, moves: list[Move]) -> list[Sequence]:
        """Makes the moves; returns the sequences that held a beam and hold none any more."""
        before = self.order
        for move in moves:
            move.sequence.become(move.text)
        self.order = [move.sequence for move in moves]
        for sequence in self.sequences:
            sequence.spare = sequence not in self.order
        return [sequence for sequence in before if sequence.spare]

    def validate(self) -> None:
        """Raises AccountingError where texts, places and ranks disagree."""
        self.search.validate()
        if self.search.done:
            return
        if len(set(map(id, self.order))) != len(self.order) or len(self.order) != len(self.search.cums):
            raise AccountingError(f"{len(self.order)} places for {len(self.search.cums)} beams")
        for sequence in self.sequences:
            if sequence.spare == (sequence in self.order):
                raise AccountingError(f"slot {sequence.slot} is spare and holds a beam, or neither")
        for sequence, cum in zip(self.order, self.search.cums, strict=True):
            if sequence.tokens and (len(sequence.tokens) != self.search.length or sequence.cumulative_logprob != cum):
                raise AccountingError(f"slot {sequence.slot} has {len(sequence.tokens)} tokens of {self.search.length}")


def _entry(text: Sequence, candidate: Candidate, scores: BeamScores) -> TokenLogprob | None:
    """The chosen token's own log-probability (spec 113): of the distribution that ranked it, or the model's."""
    if text.params.logprobs is None:
        return None
    if text.params.logprobs_mode == "raw" and scores.raw is not None:
        return entry(candidate.token, *scores.raw[candidate.at], top=[])
    logprob = scores.told[candidate.at][1]
    return entry(candidate.token, logprob, 1 + sum(other > logprob for _, other in scores.told), top=[])
