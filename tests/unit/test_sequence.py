"""A sequence: tokens in, pieces out, one end."""

import pytest

from gpu_worker.sampler.finish import Finish
from shared.protocol import TokenLogprob
from tests.requests_of import make_request, sequence_of


def feed(sequence, text):
    return [sequence.take(byte, None, 20.0 + at) for at, byte in enumerate(text)]


def test_pieces_are_numbered_and_add_up():
    sequence = sequence_of(params={"max_tokens": 6})
    deltas = feed(sequence, "a€b!".encode())
    assert [d.sequence_number for d in deltas] == list(range(6))
    assert [d.text for d in deltas] == ["a", "", "", "€", "b", "!"]
    assert sequence.finish == Finish("length")
    assert sequence.choice(None).text == "a€b!" == "".join(d.text for d in deltas)
    assert sequence.choice(None).token_ids == list("a€b!".encode())


def test_the_end_token_is_no_text():  # spec 114
    sequence = sequence_of()
    deltas = feed(sequence, [97, 260])
    assert [d.text for d in deltas] == ["a", ""]
    assert sequence.choice(None).finish_reason == "stop"
    assert sequence.choice(None).stop_reason == "eos"


def test_the_end_of_a_guided_text_is_the_grammars():  # spec R5
    sequence = sequence_of(structured_outputs={"regex": "a+"})
    feed(sequence, [97, 260])
    assert sequence.choice(True).stop_reason == "grammar"
    assert sequence.choice(True).valid is True


def test_a_stop_string_in_the_middle_of_a_token():  # spec R23
    sequence = sequence_of(params={"stop": [")"]})
    deltas = feed(sequence, [97, 257])  # 257 is "))"
    assert [d.text for d in deltas] == ["a", ""]
    assert sequence.choice(None).stop_reason == ")"
    assert sequence.choice(None).text == "a"
    assert sequence.choice(None).token_ids == [97, 257]


def test_text_that_might_be_a_stop_string_comes_late():  # spec R23
    sequence = sequence_of(params={"stop": ["END"]})
    deltas = feed(sequence, b"aENbE")
    assert [d.text for d in deltas] == ["a", "", "", "ENb", ""]
    assert feed(sequence, [260])[0].text == "E"
    assert sequence.choice(None).text == "aENbE"


def test_the_length_wins_over_a_stop_string():  # spec 114
    sequence = sequence_of(params={"stop": ["b"], "max_tokens": 2})
    feed(sequence, b"ab")
    assert sequence.choice(None).finish_reason == "length"
    assert sequence.choice(None).text == "a"


def test_the_stop_string_can_be_kept():  # spec 128
    sequence = sequence_of(params={"stop": ["b"], "include_stop": True})
    feed(sequence, b"ab")
    assert sequence.choice(None).text == "ab"


def test_without_detokenize_there_is_no_text():  # spec 128: the tokens are the same, and stop strings hold
    sequence = sequence_of(params={"detokenize": False, "stop": ["c"]})
    deltas = feed(sequence, b"abc")
    assert [d.text for d in deltas] == ["", "", ""]
    assert [d.token_ids for d in deltas] == [[97], [98], [99]]
    assert sequence.choice(None).text == "" == sequence.cut()
    assert sequence.choice(None).stop_reason == "c"


def test_special_tokens_can_be_shown():  # spec 128
    shown = sequence_of(params={"skip_special_tokens": False, "ignore_eos": True})
    hidden = sequence_of(params={"ignore_eos": True})
    assert [d.text for d in feed(shown, [260, 97])] == ["<eos>", "a"]
    assert [d.text for d in feed(hidden, [260, 97])] == ["", "a"]


def test_log_probabilities_add_up():
    sequence = sequence_of(params={"logprobs": 1})
    sequence.take(97, TokenLogprob(97, -0.5, 1), 20.0)
    delta = sequence.take(98, TokenLogprob(98, -1.25, 2), 21.0)
    assert delta.logprobs == [TokenLogprob(98, -1.25, 2)]
    assert sequence.choice(None).cumulative_logprob == -1.75
    assert len(sequence.choice(None).logprobs) == 2
    assert sequence_of().choice(None).logprobs is None


def test_what_is_fed_next():
    sequence = sequence_of(prompt_token_ids=[5, 6, 7])
    assert (sequence.golden_token, sequence.to_prefill, sequence.context) == (7, 2, [5, 6, 7])
    sequence.take(97, None, 20.0)
    assert (sequence.golden_token, sequence.to_prefill, sequence.context) == (97, 3, [5, 6, 7, 97])


def test_a_commit_uses_the_row_up():
    sequence = sequence_of(structured_outputs={"regex": "a+"})
    sequence.row_ready, sequence.held_since_s = True, 19.0
    sequence.take(97, None, 20.0)
    assert not sequence.row_ready
    assert sequence.held_since_s is None


def test_min_tokens_ban_the_end_until_they_are_there():  # spec 103
    sequence = sequence_of(params={"min_tokens": 2})
    wants = []
    for byte in b"abc":
        wants.append(sequence.state.banned() == {260, 261})
        sequence.take(byte, None, 20.0)
    assert wants == [True, True, False]


def test_continuation():  # spec R25, 59
    sequence = sequence_of(output_token_ids=[97, 98], params={"max_tokens": 4})
    assert sequence.finish is None
    assert (sequence.golden_token, sequence.to_prefill) == (98, 4)
    deltas = feed(sequence, b"cd")
    assert [(d.sequence_number, d.text) for d in deltas] == [(0, "c"), (1, "d")]
    assert sequence.choice(None).text == "abcd"
    assert sequence.finish == Finish("length")


@pytest.mark.parametrize(
    ("tokens", "params", "reason"),
    [
        ([97, 260], {}, "eos"), ([97, 98], {"stop_token_ids": [98]}, 98), ([97, 98, 99], {"stop": ["b"]}, "b"),
    ],
)  # fmt: skip
def test_a_continuation_that_has_ended(tokens, params, reason):  # spec 60: before any scheduling
    sequence = sequence_of(output_token_ids=tokens, params=params)
    assert sequence.finish == Finish("stop", reason)


def test_a_cut_text_keeps_what_was_held_back():
    request = make_request(params={"stop": ["END"]})
    sequence = sequence_of(request)
    feed(sequence, b"aEN")
    assert sequence.text == "a"
    assert sequence.cut() == "aEN"
    assert sequence.cut() == "aEN"
