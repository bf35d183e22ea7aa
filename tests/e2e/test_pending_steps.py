"""Two launches in flight: what a step bans is what the text says once the step before it is known, never what was known earlier."""

import itertools

import pytest

from tests.beam_bench import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
SUFFIXES = [
    {"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 2, "logit_bias": {"97": 9.0, "98": 9.0, "99": 9.0}},
    {"bad_words": ["a", "bc", "cb"], "logit_bias": {"97": 40.0, "98": 40.0, "99": 40.0}},
    {"repetition_penalty": 1.5, "frequency_penalty": 1.0, "logit_bias": {"97": 9.0, "98": 9.0}},
    {"stop_token_sequences": [[97, 98, 97]], "logit_bias": {"97": 9.0, "98": 9.0}},
    {"use_beam_search": True, "best_of": 2, "no_repeat_ngram_size": 2},
]  # fmt: skip


def texts(folder, in_flight):
    bench = Bench(folder, services=0)
    bench.engine._max_in_flight = in_flight
    try:
        ids = [bench.submit(seed=3, max_tokens=40, ignore_eos=True, **({} if "best_of" in more else {"temperature": 1.0}), **more)
               for more in SUFFIXES]  # fmt: skip
        endings = bench.wait(len(ids))
        return [endings[request_id].choices[0].token_ids for request_id in ids]
    finally:
        bench.close()


def test_nothing_is_pending_where_bans_are_made(tmp_path):  # spec 104 133
    overlapped, alone = texts(tmp_path, 2), texts(tmp_path, 1)
    assert overlapped == alone
    assert len(set(overlapped[0])) == len(overlapped[0])
    assert all(overlapped[1][at : at + 2] != overlapped[1][other : other + 2] for at in range(39) for other in range(at))
    pairs = set(itertools.pairwise(overlapped[2]))
    assert 97 not in overlapped[2]
    assert not pairs & {(98, 99), (99, 98)}
    assert pairs & {(98, 98), (99, 99)}
