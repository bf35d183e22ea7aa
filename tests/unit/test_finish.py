"""Finish rules by token, and stop strings on text."""

import pytest

from gpu_worker.sampler.finish import Finish, FinishRules, StopStrings


@pytest.mark.parametrize(
    ("token", "length", "finish"),
    [
        (260, 1, Finish("stop", "eos")),
        (65, 1, None),
        (65, 5, Finish("length")),
        (70, 1, Finish("stop", 70)),
        (260, 5, Finish("stop", "eos")),  # the end id over the length
        (70, 5, Finish("length")),  # the length over a stop id
        (261, 5, Finish("stop", "eos")),  # an end id over the length and a stop id
        (65, 6, Finish("length")),
    ],
)
def test_order(token, length, finish):  # spec 114, 115
    rules = FinishRules(frozenset({260, 261}), frozenset({70, 261}), 5)
    assert rules.check(token, length) == finish


def test_ignored_end_ids_do_not_end():
    assert FinishRules(frozenset(), frozenset(), 5).check(260, 1) is None


def run(stops, pieces, include_stop=False):
    stream = StopStrings(stops, include_stop=include_stop)
    shown = [stream.push(piece) for piece in pieces]
    return shown, stream


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "found"),
    [
        ((), ["ab", "c"], ["ab", "c"], None),
        (("END",), ["text E", "N", "D more"], ["text ", "", ""], "END"),
        (("END",), ["text E", "X"], ["text ", "EX"], None),  # held back until it is decided
        (("\n\n",), ["a\n", "b\n", "\nc"], ["a", "\nb", ""], "\n\n"),
        (("ab", "b"), ["xab"], ["x"], "ab"),  # both are complete at once: the longer one
        (("abc", "b"), ["abc"], ["a"], "b"),  # complete first, also where the text comes in one piece
        (("abc", "b"), ["a", "b", "c"], ["", "a", ""], "b"),
        (("aab",), ["aaab"], ["a"], "aab"),
        (("aab",), ["a", "a", "a", "b"], ["", "", "a", ""], "aab"),
        (("stop",), ["stop"], [""], "stop"),
    ],
)
def test_stop_strings(stops, pieces, shown, found):  # spec 118, R23
    said, stream = run(stops, pieces)
    assert said == shown
    assert stream.found == found


def test_the_stop_string_can_be_kept():  # spec 128
    said, _ = run(["END"], ["a E", "ND b"], include_stop=True)
    assert said == ["a ", "END"]


def test_nothing_comes_after_the_end():
    _, stream = run(["x"], ["axb"])
    assert stream.push("more") == ""
    assert stream.flush() == ""


def test_what_is_held_back_comes_out_at_the_end():
    said, stream = run(["END"], ["a EN"])
    assert said == ["a "]
    assert stream.flush() == "EN"
    assert stream.found is None
