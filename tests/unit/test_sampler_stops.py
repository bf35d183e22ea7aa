"""What ends a text: stop sequences beside stop ids and strings, their order, and min_tokens before all of them."""

import pytest

from gpu_worker.sampler.finish import Finish, StopStrings
from tests.requests_of import sequence_of
from tests.sampling_bench import Bench, tokens_of


def feed(sequence, token_ids):
    for token_id in token_ids:
        if sequence.finish is None:
            sequence.take(token_id, None, 1.0)
    return sequence.finish


@pytest.mark.parametrize(
    ("stops", "text", "finish", "length"),
    [
        ([[98, 99]], b"abcd", Finish("stop", 99), 3), ([[98, 99], [97]], b"abcd", Finish("stop", 97), 1),
        ([[97, 97, 98]], b"aaab", Finish("stop", 98), 4), ([[105, 97]], b"abcd", None, 4),  # "hi" is the prompt: not its end
        ([[98, 99, 100, 101]], b"abcd", None, 4), ([[99]], b"abcd", Finish("stop", 99), 3),
    ],
)  # fmt: skip
def test_stop_sequences(stops, text, finish, length):  # spec 116
    sequence = sequence_of(params={"stop_token_sequences": stops})
    assert feed(sequence, text) == finish
    assert len(sequence.tokens) == length


def test_the_order_on_one_token():  # spec 114
    at_length = sequence_of(params={"stop_token_sequences": [[97, 98]], "max_tokens": 2})
    assert feed(at_length, b"ab") == Finish("length")
    at_end = sequence_of(params={"stop_token_sequences": [[97, 260]], "max_tokens": 2})
    assert feed(at_end, [97, 260]) == Finish("stop", "eos")
    before_strings = sequence_of(params={"stop_token_sequences": [[97, 98]], "stop": ["b"]})
    assert feed(before_strings, b"ab") == Finish("stop", 98)


def test_a_stop_sequence_across_a_continuation():  # spec 60 116
    sequence = sequence_of(output_token_ids=[97, 98], params={"stop_token_sequences": [[98, 99]]})
    assert feed(sequence, b"c") == Finish("stop", 99)
    ended = sequence_of(output_token_ids=[97, 98], params={"stop_token_sequences": [[97, 98]]})
    assert ended.finish == Finish("stop", 98)


def test_stop_sequences_end_a_real_text():
    text = tokens_of(30, temperature=1.0, seed=3, max_tokens=30, ignore_eos=True)
    stop = text[6:9]
    cut = tokens_of(30, temperature=1.0, seed=3, max_tokens=30, ignore_eos=True, stop_token_sequences=[stop])
    assert cut == text[:9]


def test_min_tokens_come_before_stop_strings():  # spec 103, R23
    sequence = sequence_of(params={"stop": ["b"], "min_tokens": 3})
    assert feed(sequence, b"abab") == Finish("stop", "b")
    assert (sequence.text, len(sequence.tokens)) == ("aba", 4)
    across = sequence_of(params={"stop": ["bc"], "min_tokens": 3})  # complete with the third token
    assert feed(across, b"abcd") == Finish("stop", "bc")
    assert across.text == "a"


@pytest.mark.parametrize(
    ("stops", "before", "after", "shown"),
    [
        (["abcd", "bc"], "abc", "xbc", "abcx"), (["abcd", "bc"], "abc", "d", ""), (["bc"], "abc", "", "abc"),
        (["bcb"], "abcb", "cb", "abc"),
    ],
)  # fmt: skip
def test_what_was_complete_before_is_text(stops, before, after, shown):
    strings = StopStrings(stops)
    text = strings.push(before, armed=False)
    text += strings.push(after)
    assert (strings.found is None) == (after == "")
    assert text + strings.flush() == shown


def test_min_tokens_are_really_there():  # spec 103: sampled under a ban of everything that ends a text
    with Bench() as bench:
        sequences = [
            bench.start(slot, temperature=1.0, seed=slot, min_tokens=25, stop_token_ids=[3], stop_token_sequences=[[4], [5, 6]],
                        max_tokens=60)
            for slot in range(4)
        ]  # fmt: skip
        bench.run(80)
        assert all(len(sequence.tokens) >= 25 for sequence in sequences)
        assert {sequence.finish.reason for sequence in sequences} == {"stop"}
