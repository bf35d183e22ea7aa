"""Stop strings against a plain find over the whole text, however the text was cut; the order of finish rules against the table."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.sampler.finish import Finish, FinishRules, StopStrings
from shared.tokenizer import Detokenizer, Vocabulary

LETTERS = "ab\né"
stop_lists = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=4)
BYTES = Vocabulary(token_bytes=[bytes([i]) for i in range(256)], special_ids=[], stop_ids=[0])


def by_find(text, stops, include_stop):
    """(text shown, stop string): the match whose end is first, the longest of those."""
    ends = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, start, stop = min(ends)
    return text[: end if include_stop else start], stop


def pieces_of(text, cuts):
    marks = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(marks)]


@settings(deadline=None, max_examples=500)
@given(st.text(LETTERS, max_size=30), stop_lists, st.lists(st.integers(0, 1000), max_size=8), st.booleans())
def test_any_split_finds_what_find_finds(text, stops, cuts, include_stop):  # spec 118, R23
    stream = StopStrings(stops, include_stop=include_stop)
    shown = "".join(stream.push(piece) for piece in pieces_of(text, cuts))
    assert (shown + stream.flush(), stream.found) == by_find(text, stops, include_stop)


@settings(deadline=None, max_examples=300)
@given(st.text(LETTERS, max_size=30), stop_lists, st.integers(1, 3))
def test_tokens_that_cut_characters(text, stops, width):  # spec R23
    detokenizer, stream = Detokenizer(BYTES), StopStrings(stops)
    ids = list(text.encode())
    shown = "".join(stream.push(detokenizer.push(ids[at : at + width])) for at in range(0, len(ids), width))
    shown += stream.push(detokenizer.flush()) + stream.flush()
    assert (shown, stream.found) == by_find(text, stops, False)


@settings(deadline=None)
@given(st.text(LETTERS, max_size=30), stop_lists, st.lists(st.integers(0, 1000), max_size=8))
def test_nothing_shown_is_taken_back(text, stops, cuts):  # spec R23: what is streamed is a prefix of the final text
    stream, shown = StopStrings(stops), ""
    final = by_find(text, stops, False)[0]
    for piece in pieces_of(text, cuts):
        shown += stream.push(piece)
        assert final.startswith(shown)


@settings(deadline=None)
@given(
    st.integers(0, 9), st.integers(1, 6), st.frozensets(st.integers(0, 9), max_size=4),
    st.frozensets(st.integers(0, 9), max_size=4),
    st.integers(1, 5),
)  # fmt: skip
def test_order_of_the_rules(token, length, end_ids, stop_ids, max_tokens):  # spec 114
    reasons = [
        (token in end_ids, Finish("stop", "eos")),
        (length >= max_tokens, Finish("length")),
        (token in stop_ids, Finish("stop", token)),
    ]
    expected = next((finish for holds, finish in reasons if holds), None)
    assert FinishRules(end_ids, stop_ids, max_tokens).check(token, length) == expected
