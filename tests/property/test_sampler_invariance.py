"""A request's tokens with every parameter on: the same alone and in company, at any slot, through holds, loss of its slot and
continuation. What the sampler remembers moves with committed tokens and with nothing else."""

import functools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sampling_bench import EOS, Bench, table

calm = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LOGITS = table(4)
LOGITS[:, EOS] = -2.0
PROMPT = (3, 5, 5, 7, 0)
EVERYTHING = {
    "logit_bias": {"3": 1.5, "9": -1.0}, "allowed_token_ids": [0, 1, 2, 3, 4, 5, 6, 8, 9, 11, 12, EOS], "bad_words": ["d", "cb"],
    "repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.2, "prompt_ignore_length": 2,
    "no_repeat_ngram_size": 2, "min_tokens": 12, "stop_token_sequences": [[1, 2]], "top_p": 0.95, "top_p_decay": 0.97,
    "top_p_reset_id": 8, "min_p": 0.001, "logprobs": 2, "logprobs_mode": "processed",
}  # fmt: skip
PLAIN = {"logprobs": 1}
KINDS = [(EVERYTHING, False), (EVERYTHING, True), (PLAIN, False), ({"presence_penalty": 1.0, "min_tokens": 5}, True)]


def guide(tokens):
    return {0, 1, 2, 4, 5, 6, 8, 9, 11, 12} | ({EOS} if len(tokens) > 3 else set())


def begin(bench, slot, number, output=()):
    params, guided = KINDS[number % len(KINDS)]
    return bench.start(
        slot, guide=guide if guided else None, prompt=PROMPT, output=output, temperature=1.0, seed=number, max_tokens=24, **params
    )


@functools.cache
def alone(number):
    with Bench(LOGITS) as bench:
        sequence = begin(bench, 0, number)
        bench.run(40)
        assert not bench.errors
        return tuple(sequence.tokens), tuple(sequence.logprobs), sequence.finish


events = st.lists(
    st.tuples(st.just("step"), st.sets(st.integers(0, 3)))
    | st.tuples(st.just("start"), st.tuples(st.integers(0, 3), st.integers(0, 7)))
    | st.tuples(st.just("move"), st.tuples(st.integers(0, 3), st.integers(0, 3))),
    max_size=60,
)


@calm
@given(events)
def test_company_slots_holds_and_suspension_change_nothing(steps):  # spec 79 80 88 95 97 102 106 R18
    with Bench(LOGITS) as bench:
        started = []
        for name, argument in [*steps, *[("step", set())] * 30]:
            if name == "step":
                bench.step(held={slot for slot in argument if slot in bench.by_slot})
            elif name == "start" and argument[0] not in bench.by_slot:
                started.append((argument[1], begin(bench, *argument)))
            elif name == "move" and argument[0] in bench.by_slot:
                moved = bench.by_slot[argument[0]]
                if bench.by_slot.get(argument[1]) in (None, moved):
                    bench.place(moved, argument[1])
            for slot in [slot for slot, sequence in bench.by_slot.items() if sequence.finish is not None]:
                bench.pipeline.release(slot)
                del bench.by_slot[slot]
        assert not bench.errors
        for number, sequence in started:
            assert (tuple(sequence.tokens), tuple(sequence.logprobs), sequence.finish) == alone(number)


@calm
@given(st.integers(0, 7), st.integers(0, 23))
def test_a_continuation_goes_on(number, cut):  # spec R25
    tokens, logprobs, finish = alone(number)
    cut = min(cut, len(tokens) - 1)
    with Bench(LOGITS) as bench:
        sequence = begin(bench, 2, number, output=tokens[:cut])
        bench.run(40)
        assert (tuple(sequence.tokens), sequence.finish) == (tokens, finish)
        assert tuple(sequence.logprobs) == logprobs[cut:]


def test_a_held_step_moves_nothing():
    with Bench(LOGITS) as bench:
        sequence = begin(bench, 1, 0)
        for _ in range(8):
            bench.step()
        before = (sequence.state.banned(), sequence.state.mask.tolist(), sequence.top_p.value)
        counts = bench.rows._overlay.overlay([sequence]).penalties.counts.clone()
        for _ in range(5):
            assert bench.step(held=[1]).token[1] == -1
        after = (sequence.state.banned(), sequence.state.mask.tolist(), sequence.top_p.value)
        assert after == before
        assert bool((bench.rows._overlay.overlay([sequence]).penalties.counts == counts).all())
