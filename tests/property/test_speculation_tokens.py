"""Texts with drafts have the tokens of texts without: bitwise, guided or not, greedy or sampled, whatever is drafted."""

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_worker.descriptor import Descriptor, SlotAction
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.speculation import Ahead, AheadRows, ReplayDrafter
from gpu_worker.speculation.verification import Verifier, accepted_tokens
from kernels.reference import Drafts, Overlay, SampleInputs, SampleRows, TokenList, verify
from shared.bitmask import num_words, pack
from tests.vocabularies import tiny

SLOTS, SLOT, PROMPT, LENGTH = 2, 1, [70, 71, 72], 24
SIZE, WORDS = tiny().size, num_words(tiny().size)
calm = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
samplings = st.sampled_from(
    [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 3.0, "top_p": 0.9}, {"temperature": 2.0, "top_k": 5, "min_p": 0.1}]
)


def allowed_after(guide, tokens):
    """The scripted row set: a few ids that depend on the guide's number and the whole text."""
    dice = np.random.default_rng([guide, *tokens])
    return sorted(dice.choice(SIZE, size=int(dice.integers(1, 6)), replace=False).tolist())


class Bench:
    """One text in slot 1 beside an idle slot, by the synthetic model at width K + 1."""

    def __init__(self, width, guide, sampling, seed):
        shape = RunnerShape(max_slots=SLOTS, max_length=64, max_width=width, prefill_chunk=8)
        self.runner = SyntheticRunner(tiny(), shape, SyntheticOptions(seed=3))
        self.runner.prefill(SLOT, PROMPT[:-1], 0)
        self.width, self.guide, self.sampling, self.seed = width, guide, sampling, seed
        self.verifier = Verifier(width, SIZE)
        self.tokens, self.steps = [], 0

    def step(self, drafts, cap=99):
        """One launch; ``cap``: rows that the guide has at most. Returns the tokens and what ``verify`` of the kernels says."""
        golden, position = (PROMPT + self.tokens)[-1], len(PROMPT) + len(self.tokens) - 1
        fed = torch.zeros((SLOTS, self.width), dtype=torch.int64)
        fed[SLOT, : len(drafts) + 1] = torch.tensor([golden, *drafts])
        lengths = torch.tensor([0, len(drafts) + 1])
        logits = self.runner.decode(fed, torch.tensor([0, position]), lengths)
        depth = np.array([0, min(len(drafts) + 1, cap)], np.int32)
        mask = np.zeros((SLOTS * self.width, WORDS), np.int32)
        for at in range(depth[SLOT] if self.guide else 0):
            mask[SLOT * self.width + at] = pack(allowed_after(self.guide, self.tokens + drafts[:at]), SIZE)
        action = np.array([SlotAction.IDLE, SlotAction.GUIDED if self.guide else SlotAction.UNGUIDED], np.int32)
        rows = [self.rows(len(self.tokens) + at) for at in range(self.width)]
        descriptor = Descriptor(1, action, torch.from_numpy(mask), np.array([0, 5]), rows=rows[0])
        ahead = Ahead(depth, tuple(AheadRows(each, None) for each in rows[1:]))
        results = self.verifier.verify(logits, fed, lengths, descriptor, action, ahead)
        assert accepted_tokens(results, 0) == []
        self.steps += 1
        return accepted_tokens(results, SLOT), self.kernel_says(logits, drafts, mask, depth, rows)

    def rows(self, offset):
        return SampleRows.uniform(SLOTS, seed=self.seed, offset=offset, **self.sampling)

    def kernel_says(self, logits, drafts, mask, depth, rows):
        """The same slot alone through kernels.reference.verify."""
        own = [SampleRows.uniform(1, seed=self.seed, offset=len(self.tokens) + at, **self.sampling) for at in range(self.width)]
        names = ("temperature", "top_k", "top_p", "min_p", "seed", "offset", "purpose")
        together = SampleRows(*(torch.cat([getattr(each, name) for each in own]) for name in names))
        status = np.full(self.width, 2, np.int32)
        status[: depth[SLOT]] = 1 if self.guide else 0
        bitmask = torch.from_numpy(mask[SLOT * self.width :].copy())
        target = SampleInputs(logits[SLOT], together, SIZE, bitmask, None, torch.from_numpy(status))
        padded = torch.tensor([drafts + [0] * (self.width - 1 - len(drafts))], dtype=torch.int32).reshape(1, self.width - 1)
        said = verify(target, Drafts(padded, torch.tensor([len(drafts)], dtype=torch.int32)))
        return said.tokens[0, : int(said.emitted[0])].tolist()

    def take(self, tokens):
        self.tokens += tokens


def plain(guide, sampling, seed):
    bench = Bench(1, guide, sampling, seed)
    while len(bench.tokens) < LENGTH:
        bench.take(bench.step([])[0])
    return bench.tokens


@calm
@given(
    num_drafts=st.integers(1, 5), guide=st.integers(0, 3), sampling=samplings, seed=st.integers(0, 2**63 - 1), data=st.data(),
    wrong=st.sets(st.integers(0, LENGTH), max_size=12),
)  # fmt: skip
def test_tokens_do_not_depend_on_drafts(num_drafts, guide, sampling, seed, data, wrong):  # spec 24 119 124 R6 R18
    script = plain(guide, sampling, seed)
    bench = Bench(num_drafts + 1, guide, sampling, seed)
    drafter = ReplayDrafter(script, SIZE, wrong)
    while len(bench.tokens) < LENGTH:
        most = data.draw(st.integers(0, num_drafts), label="draft length")
        cap = data.draw(st.integers(1, num_drafts + 1), label="rows that came")
        drafts = drafter.propose(most)
        emitted, kernel = bench.step(drafts, cap)
        assert 1 <= len(emitted) <= min(len(drafts) + 1, cap)
        assert kernel[: len(emitted)] == emitted and len(kernel) == len(emitted)
        for token in emitted:
            assert not guide or token in allowed_after(guide, bench.tokens)
            bench.take([token])
            drafter.push(token)
    assert bench.tokens[:LENGTH] == script


def test_right_drafts_save_steps_and_wrong_ones_cost_none():
    script = plain(1, {"temperature": 1.0}, 9)
    for wrong, steps in ((set(), LENGTH // 4), (set(range(LENGTH + 1)), LENGTH)):
        bench, drafter = Bench(4, 1, {"temperature": 1.0}, 9), ReplayDrafter(script, SIZE, wrong)
        while len(bench.tokens) < LENGTH:
            emitted, _ = bench.step(drafter.propose(min(3, LENGTH - len(bench.tokens) - 1)))
            bench.take(emitted)
            for token in emitted:
                drafter.push(token)
        assert (bench.tokens, bench.steps) == (script, steps)


def test_a_draft_out_of_the_grammar_is_never_taken():  # spec R6
    bench = Bench(3, 2, {"temperature": 1.0}, 1)
    outside = next(i for i in range(SIZE) if i not in allowed_after(2, []))
    emitted, _ = bench.step([outside, outside], cap=1)
    assert len(emitted) == 1 and emitted[0] in allowed_after(2, [])


def test_a_held_slot_gives_nothing_at_any_position():
    bench = Bench(3, 0, {"temperature": 0.0}, 1)
    fed, lengths = torch.tensor([[0, 0, 0], [72, 5, 6]]), torch.tensor([0, 3])
    logits = bench.runner.decode(fed, torch.tensor([0, 2]), lengths)
    rows = bench.rows(0)
    action = np.array([SlotAction.IDLE, SlotAction.HOLD], np.int32)
    descriptor = Descriptor(1, action, torch.zeros((SLOTS * 3, WORDS), dtype=torch.int32), np.array([0, 5]), rows=rows)
    ahead = Ahead(np.array([0, 3], np.int32), (AheadRows(rows, None),) * 2)
    results = bench.verifier.verify(logits, fed, lengths, descriptor, action, ahead)
    assert [accepted_tokens(results, slot) for slot in range(SLOTS)] == [[], []]


def test_penalties_of_a_position_are_its_own():  # spec R19: each position has its own overlay
    bench = Bench(3, 0, {"temperature": 0.0}, 1)
    first, second, third = plain(0, {"temperature": 0.0}, 1)[:3]
    fed, lengths = torch.tensor([[0, 0, 0], [72, first, second]]), torch.tensor([0, 3])
    logits = bench.runner.decode(fed, torch.tensor([0, 2]), lengths)
    action = np.array([SlotAction.IDLE, SlotAction.UNGUIDED], np.int32)
    descriptor = Descriptor(1, action, torch.zeros((SLOTS * 3, WORDS), dtype=torch.int32), np.array([0, 5]), rows=bench.rows(0))
    for banned, wanted in (([], [first, second, third]), ([second], [first])):
        overlay = Overlay(bans=TokenList.of([[], banned]))
        ahead = Ahead(np.array([0, 3], np.int32), (AheadRows(bench.rows(1), overlay), AheadRows(bench.rows(2), None)))
        emitted = accepted_tokens(bench.verifier.verify(logits, fed, lengths, descriptor, action, ahead), SLOT)
        assert emitted[: len(wanted)] == wanted and (not banned or (len(emitted) == 2 and emitted[1] != second))
