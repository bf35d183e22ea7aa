"""What becomes of tokens, outcomes and endings: replies to clients, metrics, errors by name."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gpu_worker.descriptor import LaunchResult, SlotAction
from gpu_worker.grammar_link import Outcome, WalkStatus
from gpu_worker.request import Request
from gpu_worker.requests import RequestInProgress
from gpu_worker.sampler.clash import clash
from gpu_worker.sampler.logprobs import entry
from gpu_worker.sequence import Sequence
from gpu_worker.validator_process import ValidatorProcess
from kernels.reference import SampleStatus
from shared import metrics
from shared.bitmask import unpack
from shared.clock import Clock
from shared.errors import AccountingError, DeadEnd, DeadlineExceeded, MaskstreamError, NoAllowedToken, Overloaded
from shared.protocol import TokenLogprob, WorkerReply

HOLD, HELD = int(SlotAction.HOLD), int(SampleStatus.HELD)
Replies = list[tuple[bytes, WorkerReply]]


class Outcomes:
    """Turns what the step loop saw into replies. The validator works in a thread of its own, so that no step waits for it."""

    def __init__(self, send: Callable[[Replies], None], clock: Clock, vocab_size: int) -> None:
        self._send, self._clock, self._vocab_size = send, clock, vocab_size
        self._waiting: Replies = []
        self._latencies_s: list[float] = []
        self._validator = ValidatorProcess()
        self._validators = ThreadPoolExecutor(1, thread_name_prefix="validator")

    def close(self) -> None:
        self._validators.shutdown(wait=True, cancel_futures=True)
        self._validator.close()

    def flush(self) -> None:
        """Sends the replies of a step together: one wake of the front door, not one a sequence."""
        if self._latencies_s:
            metrics.observe_all(metrics.inter_token_latency_seconds, self._latencies_s)
            self._latencies_s.clear()
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._send(waiting)

    def _reply(self, client: bytes, message: WorkerReply) -> None:
        self._waiting.append((client, message))

    def commit(self, sequence: Sequence, result: LaunchResult, now_s: float) -> MaskstreamError | None:
        """Takes the sequence's tokens of a launch, up to the one that ends it; no token is a hold or the error returned."""
        before = len(sequence.tokens)
        error = self._take(sequence, result, now_s)
        for further in result.ahead if len(sequence.tokens) > before else ():
            if sequence.finish is not None or error is not None or further.token[sequence.slot] < 0:
                break
            error = self._take(sequence, further, now_s)
        sequence.progress.committed(len(sequence.tokens) - before)
        return error

    def _take(self, sequence: Sequence, result: LaunchResult, now_s: float) -> MaskstreamError | None:
        """One token, streamed."""
        slot = sequence.slot
        tokens, states, epochs, actions = result.lists()
        token_id, status = tokens[slot], states[slot]
        if epochs[slot] != sequence.epoch or actions[slot] >= HOLD or status & HELD:
            sequence.holds += 1
            sequence.held_since_s = sequence.held_since_s or now_s
            metrics.holds_total.inc()
            return None
        if not 0 <= token_id < self._vocab_size:
            return self.no_token(sequence, SampleStatus(status))
        previous_s = sequence.last_token_s
        logprob = None if sequence.num_logprobs is None else _logprob(sequence, result, slot, token_id)
        logits = result.logits.get(slot)
        self._waiting += [(sequence.request.client, piece) for piece in sequence.context_pieces(logits)]
        delta = sequence.take(token_id, logprob, now_s, logits=logits if sequence.params.return_generation_logits else None)
        if previous_s:
            self._latencies_s.append(now_s - previous_s)
        else:
            metrics.time_to_first_token_seconds.observe(now_s - sequence.request.received_s)
        if sequence.request.stream:
            self._reply(sequence.request.client, delta)
        return None

    def no_token(self, sequence: Sequence, status: SampleStatus) -> MaskstreamError:
        """Why there is none."""
        metrics.gpu_dead_end_rows_total.inc()
        if status & SampleStatus.NAN:
            return MaskstreamError("the model's logits hold no number that could be sampled")
        sources = sequence.state.sources()
        if sequence.guided and sequence.guide_row is not None:
            sources = {"guide": unpack(sequence.guide_row, self._vocab_size)} | sources
        return _nothing_left(clash(sources), len(sequence.tokens))

    def error_of(self, sequence: Sequence, outcome: Outcome) -> MaskstreamError:
        """Why a walk ended its sequence."""
        if outcome.error is not None:
            return outcome.error
        if outcome.status is WalkStatus.DEAD_END:
            metrics.gpu_dead_end_rows_total.inc()
            return DeadEnd(f"the grammar allows no token after {len(sequence.tokens)} tokens")
        return AccountingError(f"the matcher says {outcome.status.name} after {len(sequence.tokens)} tokens")

    def deadline_error(self, state: RequestInProgress) -> MaskstreamError:
        waited = "while it waited for a grammar service" if state.request.guide is not None and state.compiled is None else ""
        tokens = sum(len(s.tokens) for s in state.sequences)
        return DeadlineExceeded(f"the deadline passed {waited or f'after {tokens} tokens'}", field="deadline_s")

    def end(self, state: RequestInProgress, error: MaskstreamError | None) -> None:
        """Sends the one ending, after the validator where the text is to be judged."""
        metrics.requests_in_flight.dec()
        metrics.request_duration_seconds.observe(self._clock.now_s() - state.request.received_s)
        kind = state.request.guide_kind or "none"
        outcome = "cancelled" if state.cancelled else error.code if error else "done"
        metrics.requests_total.labels(kind, outcome).inc()
        if error is not None:
            self._reply(state.request.client, state.failed(error))
        elif state.request.guide_kind and (state.request.verify or self._must_validate(state)):
            self.flush()  # what was streamed comes before the ending
            self._validators.submit(self._judge, state)
        else:
            self._reply(state.request.client, state.done([None] * len(state.chosen)))

    def _must_validate(self, state: RequestInProgress) -> bool:
        return bool(state.compiled and state.compiled.plan and state.compiled.plan.validate_after)

    def _judge(self, state: RequestInProgress) -> None:
        valid: list[bool | None] = []
        for sequence in state.chosen:
            try:
                valid.append(self._valid(state.request, sequence.answer()))
            except Exception as error:  # a schema that the validator cannot read, or cannot finish, is not the text's fault
                reason = error.message if isinstance(error, MaskstreamError) else repr(error)
                state.request.warnings.append(f"the validator could not judge the text: {reason}")
                valid.append(None)
            engine = state.compiled.plan.engine if state.compiled and state.compiled.plan else ""
            metrics.output_valid_total.labels(engine, str(valid[-1]).lower()).inc()
        self._send([(state.request.client, state.done(valid))])

    def _valid(self, request: Request, answer: str | None) -> bool | None:
        """``answer`` None: the free part before it has no end. With tools each call's arguments are judged."""
        if answer is None or request.guide is None:
            return None if request.guide is None else False
        if request.tools is None:
            return self._validator.is_valid(request.guide, answer)
        found = request.tools.calls(answer)
        judged = [self._validator.is_valid(request.tools.schema_of(call), call.arguments) for call in found.calls]
        return found.is_whole and all(judged)


def overloaded_without_service() -> Overloaded:
    """What a guided request is told where no grammar service is there and the setting says refuse."""
    return Overloaded("no grammar service is connected")


def _nothing_left(names: list[str], num_tokens: int) -> MaskstreamError:
    """``names``: those that have no token in common; without any of ours it is the guide, or the model says "never" to the rest."""
    fields = [name for name in names if name != "guide"]
    if not fields:
        return DeadEnd(f"{'no token is allowed' if names else 'the model allows no token'} after {num_tokens} tokens")
    if len(names) == 1:
        return NoAllowedToken(f"no token is left after {num_tokens} tokens", field=fields[0])
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return NoAllowedToken(f"{listed} have no token in common after {num_tokens} tokens", field=fields[0])


def _logprob(sequence: Sequence, result: LaunchResult, slot: int, token_id: int) -> TokenLogprob | None:
    wanted = sequence.num_logprobs
    if wanted is None or result.logprob is None or result.rank is None:
        return None
    top: list[tuple[int, float]] = []
    if wanted and result.top_ids is not None and result.top_logprobs is not None:
        pairs = zip(result.top_ids[slot, :wanted].tolist(), result.top_logprobs[slot, :wanted].tolist(), strict=True)
        top = list(pairs)
    return entry(token_id, float(result.logprob[slot]), int(result.rank[slot]), top)
