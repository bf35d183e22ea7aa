"""The host's finish rules and the kernel's give the same reason at the same token, however the tokens come."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.reference import FinishReason, StopWords, TokenList, finish_reasons, shift_history
from tests.requests_of import sequence_of

HISTORY = 6
calm = settings(max_examples=200, deadline=None)
letters = st.integers(97, 99)
REASONS = {"eos": FinishReason.END_ID, "length": FinishReason.LENGTH, "word": FinishReason.STOP_WORDS}


def on_the_host(tokens, params):
    """(reason, tokens that stand)"""
    sequence = sequence_of(params=params)
    for token in tokens:
        sequence.take(token, None, 1.0)
        if sequence.finish is not None:
            reason = "length" if sequence.finish.reason == "length" else sequence.finish.stop_reason
            return REASONS.get(reason, FinishReason.STOP_WORDS), len(sequence.tokens)
    return FinishReason.NONE, len(sequence.tokens)


def on_the_device(tokens, params, widths):
    """The same in steps of several tokens: ``widths`` says how many each."""
    words = [*([token] for token in params["stop_token_ids"]), *params["stop_token_sequences"]]
    history, done, widths = torch.full((1, HISTORY), -1, dtype=torch.int32), 0, list(widths)
    while done < len(tokens):
        step = tokens[done : done + (widths.pop() if widths else 1)]
        row, count = torch.tensor([step], dtype=torch.int32), torch.tensor([len(step)], dtype=torch.int32)
        result = finish_reasons(
            row, count, torch.tensor([done]), torch.tensor([params["max_tokens"]]), end_ids=TokenList.of([[260, 261]]),
            stop_words=StopWords.of([words]), history=history,
        )  # fmt: skip
        if int(result.reason[0]):
            return FinishReason(int(result.reason[0])), done + int(result.kept[0])
        shift_history(history, row, count)
        done += len(step)
    return FinishReason.NONE, done


@calm
@given(
    st.lists(letters | st.just(260), min_size=1, max_size=20), st.lists(letters, max_size=1),
    st.lists(st.lists(letters | st.just(260), min_size=1, max_size=4), max_size=3), st.integers(1, 20),
    st.lists(st.integers(1, 4), max_size=20),
)  # fmt: skip
def test_one_reason(tokens, stop_ids, stops, max_tokens, widths):  # spec 114 115 116 130
    params = {"stop_token_ids": stop_ids, "stop_token_sequences": stops, "max_tokens": max_tokens}
    assert on_the_host(tokens, params) == on_the_device(tokens, params, widths)
