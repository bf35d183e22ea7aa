"""Trees of drafts: whatever they hold, texts have the tokens of texts without, and the kept path is the content of the slot."""

import random

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_worker.descriptor import Descriptor, SlotAction
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.speculation import Ahead, AheadRows
from gpu_worker.speculation.verification import Verifier, accepted_nodes, accepted_tokens
from kernels.reference import Drafts, SampleInputs, SampleRows, verify
from shared.bitmask import num_words, pack
from tests.property.test_speculation_tokens import allowed_after, plain, samplings
from tests.vocabularies import tiny

SLOTS, SIZE, PROMPT, LENGTH = 3, tiny().size, [70, 71, 72], 20
WORDS = num_words(SIZE)
calm = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def path_to(node, tokens, parents):
    """The drafts on the way to a node, its own last."""
    path = []
    while node:
        path.insert(0, tokens[node - 1])
        node = parents[node - 1]
    return path


def random_tree(rng, following, most):
    """(tokens, parents): siblings differ, about half of the nodes go on with what will follow."""
    tokens, parents, right = [], [], {0: 0}
    for _ in range(rng.randint(0, most)):
        parent = rng.randint(0, len(tokens))
        at = right.get(parent)
        token = following[at] if at is not None and at < len(following) and rng.random() < 0.7 else rng.randrange(SIZE)
        if all((token, parent) != other for other in zip(tokens, parents, strict=True)):
            tokens.append(token)
            parents.append(parent)
            if at is not None and at < len(following) and token == following[at]:
                right[len(tokens)] = at + 1
    return tokens, parents


class Bench:
    """Texts in every slot, each with a tree of its own, by the synthetic model."""

    def __init__(self, width, guide, sampling, seed):
        shape = RunnerShape(max_slots=SLOTS, max_length=64, max_width=width, prefill_chunk=8)
        self.runner, self.verifier = SyntheticRunner(tiny(), shape, SyntheticOptions(seed=3)), Verifier(width, SIZE)
        for slot in range(SLOTS):
            self.runner.prefill(slot, PROMPT[:-1], 0)
        self.width, self.guide, self.sampling, self.seed = width, guide, sampling, seed
        self.texts = [[] for _ in range(SLOTS)]

    def step(self, trees):
        """One launch with a (tokens, parents) a slot. Gives the tokens of each slot."""
        fed = torch.zeros((SLOTS, self.width), dtype=torch.int64)
        parents = torch.arange(-1, self.width - 1).repeat(SLOTS, 1)
        lengths = torch.tensor([1 + len(tokens) for tokens, _ in trees])
        positions = torch.tensor([len(PROMPT) + len(text) - 1 for text in self.texts])
        mask = np.zeros((SLOTS * self.width, WORDS), np.int32)
        offsets = np.zeros((self.width, SLOTS), np.int64)
        for slot, (text, (tokens, above)) in enumerate(zip(self.texts, trees, strict=True)):
            fed[slot, : len(tokens) + 1] = torch.tensor([(PROMPT + text)[-1], *tokens])
            parents[slot, 1 : len(tokens) + 1] = torch.tensor(above, dtype=torch.int64)
            for node in range(len(tokens) + 1):
                path = path_to(node, tokens, above)
                offsets[node, slot] = len(text) + len(path)
                if self.guide:
                    mask[slot * self.width + node] = pack(allowed_after(self.guide, text + path), SIZE)
        logits = self.runner.decode(fed, positions, lengths, parents)
        action = np.full(SLOTS, SlotAction.GUIDED if self.guide else SlotAction.UNGUIDED, np.int32)
        rows = [self.rows(offset) for offset in offsets]
        descriptor = Descriptor(1, action, torch.from_numpy(mask), np.arange(1, SLOTS + 1), rows=rows[0])
        ahead = Ahead(lengths.numpy().astype(np.int32), tuple(AheadRows(each, None) for each in rows[1:]))
        results = self.verifier.verify(logits, fed, lengths, descriptor, action, ahead, parents)
        emitted = []
        for slot, (tokens, above) in enumerate(trees):
            found, nodes = accepted_tokens(results, slot), accepted_nodes(results, slot)
            assert found == self.kernel_says(logits[slot], tokens, above, mask, offsets, slot)
            assert [0, *path_to(nodes[-1], list(range(1, len(tokens) + 1)), above)] == nodes
            self.runner.keep(slot, int(positions[slot]), nodes)
            emitted.append(found)
        return emitted

    def rows(self, offset):
        rows = SampleRows.uniform(SLOTS, seed=self.seed, offset=0, **self.sampling)
        rows.offset = torch.from_numpy(offset.copy())
        return rows

    def kernel_says(self, logits, tokens, parents, mask, offsets, slot):
        own = SampleRows.uniform(self.width, seed=self.seed, offset=0, **self.sampling)
        own.offset = torch.from_numpy(offsets[:, slot].copy())
        status = torch.full((self.width,), 1 if self.guide else 0, dtype=torch.int32)
        bitmask = torch.from_numpy(mask[slot * self.width : (slot + 1) * self.width].copy())
        padding = [0] * (self.width - 1 - len(tokens))
        drafts = Drafts(*(torch.tensor([[*each, *padding]], dtype=torch.int32).reshape(1, -1) for each in (tokens,)),
                        torch.tensor([len(tokens)], dtype=torch.int32),
                        torch.tensor([[*parents, *padding]], dtype=torch.int32).reshape(1, -1))  # fmt: skip
        said = verify(SampleInputs(logits, own, SIZE, bitmask, None, status), drafts)
        return said.tokens[0, : int(said.emitted[0])].tolist()


@calm
@given(
    most=st.integers(1, 9),
    guide=st.integers(0, 3),
    sampling=samplings,
    seed=st.integers(0, 2**63 - 1),
    dice=st.integers(0, 1 << 30),
)
def test_tokens_do_not_depend_on_trees(most, guide, sampling, seed, dice):  # spec 48 120 R10 R18
    rng, script = random.Random(dice), plain(guide, sampling, seed)
    bench = Bench(most + 1, guide, sampling, seed)
    while min(map(len, bench.texts)) < LENGTH:
        trees = [random_tree(rng, script[len(text) :], most) if len(text) < LENGTH else ([], []) for text in bench.texts]
        for text, emitted in zip(bench.texts, bench.step(trees), strict=True):
            text += emitted
            del text[LENGTH + most :]
            assert text[: len(script)] == script[: len(text)]
