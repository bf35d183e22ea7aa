"""A worker's step without its sockets: the host pipeline over a model whose logits are written down, rows from a guide that is a
function, everything between (rows, overlay, commit) the real thing."""

from __future__ import annotations

import numpy as np
import torch

from gpu_worker.descriptor import SlotAction
from gpu_worker.grammar_link import StepTicket
from gpu_worker.grammar_link.ticket import Delivered
from gpu_worker.models.base import ModelRunner, RunnerShape
from gpu_worker.outcomes import Outcomes
from gpu_worker.pipeline import HostPipeline
from gpu_worker.request import Model, admit
from gpu_worker.requests import Requests
from gpu_worker.sampler.slot_params import SlotSamplingParams
from gpu_worker.step_rows import StepRows
from shared.bitmask import RowKind
from shared.clock import MonotonicClock
from shared.protocol import Generate, StepAnswerEntry, StepStatus, WireRow
from shared.tokenizer import Vocabulary

V, EOS = 16, 15
LETTERS = "abcdefghijklmno"
PATIENCE_S = 120.0


def letters() -> Vocabulary:
    """15 letters and an end: every log-probability of a step can be asked for at once."""
    return Vocabulary(token_bytes=[*(letter.encode() for letter in LETTERS), b""], special_ids=[EOS], stop_ids=[EOS])


def table(seed: int = 1, spread: float = 1.5) -> np.ndarray:
    """Logits float32 [V, V] after each token; some below zero, some above."""
    return np.random.default_rng(seed).normal(0.0, spread, (V, V)).astype(np.float32)


class LetterEncoder:
    """A letter is a token; a space is none, so a word is the same inside a text as at its beginning."""

    def encode(self, text, *, add_special_tokens=True):
        return [LETTERS.index(letter) for letter in text if letter != " "]

    def encode_messages(self, messages, tools=()):
        return self.encode("".join(m["content"] for m in messages))


class TableRunner(ModelRunner):
    """The logits after a token are its line of the table, whatever came before it."""

    def __init__(self, logits: np.ndarray, slots: int, max_length: int = 256, device: str = "cpu") -> None:
        shape = RunnerShape(max_slots=slots, max_length=max_length, prefill_chunk=64)
        super().__init__(shape, logits.shape[1], torch.device(device))
        self._logits = torch.from_numpy(logits).to(device)

    def prefill(self, slot, token_ids, start_position, *, last=False):
        self.check_prefill(slot, token_ids, start_position)
        return self._logits[token_ids[-1]] if last else None

    def decode(self, tokens, positions, lengths, parents=None):
        self.check_decode(tokens, positions, lengths)
        return self._logits[tokens]

    def copy_slot(self, source, target, num_tokens):
        self.check_copy(source, target, num_tokens)

    def keep(self, slot, position, nodes):
        self.check_keep(slot, position, nodes)

    def reset(self, slot):
        self.check_slot(slot)


class TableLink:
    """Answers the walks of a step at once with what ``guides`` (by session) allow after the tokens that were committed."""

    def __init__(self) -> None:
        self.guides, self._history = {}, {}

    def submit(self, launch, walks, out):
        ticket = StepTicket(walks, out, set())
        for walk in walks:
            history = self._history.setdefault(walk.session, [])
            history += walk.committed
            ways = [[*history, *walk.path[:count]] for count in range(1, len(walk.path) + 1)] or [history]
            rows = [WireRow(RowKind.SPARSE, ids=np.array(sorted(self.guides[walk.session](way)), "<i4").tobytes()) for way in ways]
            entry = StepAnswerEntry(walk.session, 0, launch, b"", StepStatus.OK, len(walk.path), len(rows), rows)
            ticket.deliver([Delivered(entry, [None] * len(rows), frozenset(), "table")])
        return ticket


class Bench:
    """Sequences by slot. ``step`` is a step of the loop; what it could not commit is in ``errors`` by slot."""

    def __init__(
        self, logits: np.ndarray | None = None, *, slots: int = 4, runner=None, vocabulary=None, encoder=None, processors=None,
        pipeline=HostPipeline,
    ):  # fmt: skip
        self.logits = table() if logits is None else logits
        self.vocabulary = vocabulary or letters()
        self.runner = runner or TableRunner(self.logits, slots)
        self.model = Model(
            "table", self.vocabulary, encoder or LetterEncoder(), self.runner.max_length, processors=processors or {}
        )
        self.pipeline = pipeline(self.runner)
        self.link = TableLink()
        self.params = SlotSamplingParams(self.runner.max_slots)
        self.rows = StepRows(self.link, self.runner.max_slots, self.vocabulary.size, self.params)
        self.replies = []
        self.outcomes = Outcomes(
            lambda sent: self.replies.extend(message for _, message in sent), MonotonicClock(), self.vocabulary.size
        )
        self.requests = Requests(self.vocabulary)
        self.by_slot, self.errors, self._next = {}, {}, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pipeline.close()
        self.outcomes.close()

    def start(self, slot=0, *, guide=None, prompt=(0,), output=(), **params):
        """An admitted request in a slot; ``guide`` maps the output so far to the allowed ids."""
        self._next += 1
        message = Generate(
            request_id=str(self._next), prompt_token_ids=list(prompt), output_token_ids=list(output), sampling_params=params,
            structured_outputs={"regex": "x"} if guide else None,
        )  # fmt: skip
        request = admit(message, b"c", self.model, now_s=0.0, deadline_s=60.0, max_deadline_s=60.0)
        sequence = self.requests.begin(request).sequences[0]
        if guide:
            sequence.session, self.link.guides[self._next] = self._next, guide
        return self.place(sequence, slot)

    def place(self, sequence, slot):
        """Gives a sequence (also one that had a slot before) a slot, as the step loop does."""
        for at in [at for at, other in self.by_slot.items() if other is sequence or at == slot]:
            self.pipeline.release(at)
            del self.by_slot[at]
        sequence.slot, sequence.row_ready = slot, False
        context, chunk = sequence.context[:-1], self.runner.prefill_chunk
        for start in range(0, len(context), chunk):
            if sequence.context_logits is not None and sequence.context_logits.missing:
                self.pipeline.prefill_told(slot, context[start : start + chunk], start, sequence.context_logits)
            elif sequence.scores is not None and sequence.scores.missing:
                self.pipeline.prefill_scored(slot, context[start : start + chunk], start, sequence.scores)
            else:
                self.pipeline.prefill(slot, context[start : start + chunk], start)
        self.params.set(slot, sequence.epoch, sequence.params.resolve(), sequence.seed, sequence.first_offset)
        self.pipeline.admit(slot, sequence.epoch, sequence.golden_token, sequence.to_prefill)
        self.by_slot[slot] = sequence
        return sequence

    def launch(self, held=(), offsets=None):
        """One launch for all sequences that have not ended; nothing is committed on the host. With ``offsets`` (output positions
        that the draws are made at) nothing is committed on the device either."""
        batch = [s for s in self.by_slot.values() if s.finish is None and s.slot not in self.errors]
        number = self.pipeline.launch()
        ticket = self.rows.submit(number, batch)
        assert self.rows.take(number, ticket, batch) == []
        descriptor = self.rows.descriptor(number, batch)
        descriptor.action[list(held)] = SlotAction.HOLD
        if offsets is not None:
            descriptor.rows.offset[:] = torch.as_tensor(offsets)
        assert self.pipeline.seal(descriptor)
        result = self.pipeline.collect(PATIENCE_S)
        assert result is not None
        assert result.error is None, result.error
        for sequence in batch if offsets is not None else ():
            self.pipeline.admit(sequence.slot, sequence.epoch, sequence.golden_token, sequence.to_prefill)
        return batch, result

    def step(self, held=()):
        batch, result = self.launch(held)
        for sequence in batch:
            error = self.outcomes.commit(sequence, result, 1.0)
            if error is not None:
                self.errors[sequence.slot] = error
        return result

    def run(self, steps=100):
        """Until all have ended, or that many steps."""
        for _ in range(steps):
            if all(s.finish is not None or s.slot in self.errors for s in self.by_slot.values()):
                return
            self.step()


def tokens_of(steps=12, logits=None, **arguments):
    """Tokens of one request alone."""
    with Bench(logits) as bench:
        sequence = bench.start(**arguments)
        bench.run(steps)
        return list(sequence.tokens)


def distribution(logits=None, **arguments):
    """The distribution float64 [V] of one request's next token, from its processed log-probabilities; and the bench's error."""
    with Bench(logits) as bench:
        sequence = bench.start(logprobs=V, logprobs_mode="processed", **arguments)
        bench.step()
        if bench.errors:
            raise bench.errors[0]
        found = np.zeros(V)
        for token, logprob in sequence.logprobs[-1].top:
            found[token] = np.exp(logprob)
        return found


def softmax(x, allowed=None):
    """float64 [V] over ``allowed`` ids (a set), 0 elsewhere and where x is -inf."""
    keep = np.ones(len(x), bool) if allowed is None else np.isin(np.arange(len(x)), list(allowed))
    weights = np.where(keep, np.exp(np.asarray(x, np.float64) - np.max(np.asarray(x)[keep])), 0.0)
    return weights / weights.sum()
