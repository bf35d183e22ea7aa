"""Drafters: what they guess, that a cut takes everything back, and who is given one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.speculation import (
    ChainedDrafter,
    Drafting,
    DraftProgress,
    DraftTree,
    ForcedDrafter,
    NgramDrafter,
    ReplayDrafter,
    merged,
)
from gpu_worker.speculation.suffix_automaton import SuffixAutomaton
from shared.errors import ConfigError
from shared.sampling_params import SamplingParams

texts = st.lists(st.integers(0, 3), max_size=60)


class Text:
    def __init__(self, prompt=(1, 2, 3, 1, 2), tokens=(), guided=False, max_tokens=100, **params):
        self.prompt, self.tokens, self.guided, self.max_tokens = list(prompt), list(tokens), guided, max_tokens
        self.params, self.progress = SamplingParams(**params), DraftProgress()


def longest_repeated_end(text):
    for length in range(len(text) - 1, 0, -1):
        if any(text[at : at + length] == text[-length:] for at in range(len(text) - length)):
            return length
    return 0


@given(texts)
def test_the_match_is_the_longest_end_that_is_there_before(text):
    automaton = SuffixAutomaton()
    for at, token in enumerate(text):
        automaton.push(token)
        match = automaton.match()
        assert match.length == longest_repeated_end(text[: at + 1])
        if match.length:
            assert match.end < at
            assert text[match.end + 1 - match.length : match.end + 1] == text[at + 1 - match.length : at + 1]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2) | st.tuples(st.integers(0, 400)), max_size=500))
def test_a_cut_automaton_is_one_that_never_had_more(steps):
    automaton, text = SuffixAutomaton(), []
    for step in steps:
        if isinstance(step, int):
            automaton.push(step)
            text.append(step)
        else:
            length = max(len(text) - step[0], 0)
            automaton.cut(length)
            del text[length:]
    fresh = SuffixAutomaton(text)
    assert automaton.tokens == text
    for token in (0, 1, 2, 0, 1):
        assert automaton.match() == fresh.match()
        automaton.push(token)
        fresh.push(token)
    with pytest.raises(ValueError, match="cannot be cut"):
        automaton.cut(len(text) + 6)


def test_a_cut_beyond_the_log_builds_anew():
    text = [at % 7 for at in range(1000)]
    automaton = SuffixAutomaton(text)
    automaton.cut(100)
    assert automaton.match() == SuffixAutomaton(text[:100]).match()


def test_prompt_lookup():
    drafter = NgramDrafter([5, 6, 7, 8, 9, 1, 5])
    assert drafter.propose(3) == []  # a match of one token is none
    drafter.push(6)
    assert drafter.propose(3) == [7, 8, 9]
    assert drafter.propose(1) == [7]
    drafter.push(9)
    assert drafter.propose(3) == []
    drafter.cut(1)
    assert drafter.propose(5) == [7, 8, 9, 1, 5]
    with pytest.raises(ValueError, match="cannot be cut"):
        drafter.cut(2)


def test_prompt_lookup_takes_the_latest_place_and_goes_round():
    assert NgramDrafter([1, 2, 3, 9, 1, 2, 4, 9, 1, 2]).propose(2) == [4, 9]
    assert NgramDrafter([4, 8, 8, 8]).propose(4) == [8, 8, 8, 8]


def test_forced_tokens_are_drafts_while_the_text_agrees():  # spec R22
    drafter = ForcedDrafter()
    assert drafter.propose(4) == []
    drafter.push(10)
    drafter.hear(0, [10], [11, 12, 13])
    assert drafter.propose(2) == [11, 12]
    drafter.push(11)
    drafter.hear(1, [11], [])  # nothing new
    assert drafter.propose(9) == [12, 13]
    drafter.push(99)
    assert drafter.propose(9) == []
    drafter.cut(2)
    assert drafter.propose(9) == [12, 13]


def test_one_drafter_goes_on_where_the_other_ends():
    script = ReplayDrafter([7, 8], 100)
    drafter = ChainedDrafter([script, NgramDrafter([8, 1, 2, 3, 7])])
    drafter.push(7)
    assert drafter.propose(1) == [8]
    assert drafter.propose(4) == [8]  # [7, 8] is nowhere in the prompt
    repeated = ChainedDrafter([ReplayDrafter([7, 8], 100), NgramDrafter([7, 8, 1, 2, 3])])
    assert repeated.propose(4) == [7, 8, 1, 2]
    repeated.push(7)
    assert repeated.propose(4) == [8, 1, 2, 3]  # nothing of the proposal before was kept


def test_replay_is_wrong_where_it_is_told_to_be():
    drafter = ReplayDrafter([1, 2, 3, 4], 5, wrong={1, 3})
    assert drafter.propose(9) == [1, 3, 3, 0]
    drafter.push(1)
    assert drafter.propose(2) == [3, 3]


def test_drafts_stay_until_the_step_commits():
    progress = DraftProgress(ReplayDrafter([1, 2, 3, 4, 5, 6], 100))
    assert progress.propose([], 2).tokens == [1, 2]
    assert progress.propose([], 5).tokens == [1, 2]  # the step is repeated
    progress.depth = 3
    progress.committed(2)
    assert progress.propose([1, 9], 2).tokens == [3, 4]
    counters = progress.counters
    assert (counters.accepted, counters.verified, counters.rewound) == (1, 2, 1)  # spec 125
    progress.depth = 1  # the drafts led out of the grammar: nothing was compared
    progress.committed(1)
    assert (counters.accepted, counters.verified, counters.rewound) == (1, 2, 3)


def test_how_many_drafts_a_text_may_have():
    drafting = Drafting("ngram", 4)
    text = Text(tokens=[3])
    drafting.begin(text)
    assert drafting.propose(text).tokens == [1, 2, 3, 1]
    for most, max_tokens in ((0, 2), (1, 3), (4, 50)):  # the last token of a text needs no draft behind it
        short = Text(tokens=[3], max_tokens=max_tokens)
        drafting.begin(short)
        assert len(drafting.propose(short).tokens) == most
    guided = Text(guided=True)
    drafting.begin(guided)
    assert drafting.propose(guided).tokens == []  # a walk begins with a token of its own
    guided.tokens = [3]
    assert drafting.propose(guided).tokens == [1, 2, 3, 1]


def test_who_gets_a_drafter():
    for name, text, wanted in (
        ("none", Text(), type(None)),
        ("ngram", Text(no_repeat_ngram_size=3), type(None)),
        ("forced", Text(), type(None)),
        ("forced", Text(guided=True), ForcedDrafter),
        ("ngram", Text(guided=True), NgramDrafter),
        ("ngram+forced", Text(), NgramDrafter),
        ("ngram+forced", Text(guided=True), ChainedDrafter),
    ):
        Drafting(name, 4).begin(text)
        assert type(text.progress.drafter) is wanted, (name, text.params)
    with pytest.raises(ConfigError, match="one of none, ngram, forced, ngram\\+forced"):
        Drafting("magic", 4)


def test_guesses_side_by_side_are_one_tree():  # spec R10
    tree = merged([[1, 2, 3, 4], [1, 5, 6], [7, 8]], 7)
    assert (tree.tokens, tree.parents) == ([1, 2, 3, 5, 6, 7, 8], [0, 1, 2, 1, 4, 0, 6])
    assert [tree.parent(node) for node in (1, 4, 7)] == [0, 1, 6]
    assert merged([[1, 2, 3], [1, 2]], 3) == DraftTree([1, 2]) and merged([], 4) == DraftTree()  # chains have no parents


def test_the_ngram_drafter_knows_several_continuations():
    drafter = NgramDrafter([5, 1, 2, 3, 9, 7, 1, 2, 3, 4, 0, 6, 1, 2, 8, 5, 1, 2])
    assert drafter.guesses(2, 3) == [[3, 9], [8, 5]]  # after 5 1 2, and after 1 2 where it stood last
    assert drafter.guesses(2, 1) == [drafter.propose(2)]
    chained = ChainedDrafter([ReplayDrafter([8, 8], 50), drafter])
    assert chained.draft(6, 3) == DraftTree([8, 8, 3, 9, 5, 1], [0, 1, 0, 3, 1, 5])
    assert chained.draft(6, 1).parents == []
