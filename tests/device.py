"""A host pipeline over the synthetic model with a vocabulary of 264 tokens, and what it must answer."""

import numpy as np
import torch

from gpu_worker.descriptor import Descriptor, SlotAction
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.sampler.slot_params import SlotSamplingParams
from shared.bitmask import num_words, pack
from shared.sampling_params import RowParams
from tests.vocabularies import tiny

SLOTS, MAX_LENGTH = 4, 64
GREEDY = RowParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
WORDS = num_words(tiny().size)


def make_runner(seed=3):
    shape = RunnerShape(max_slots=SLOTS, max_length=MAX_LENGTH, prefill_chunk=16)
    return SyntheticRunner(tiny(), shape, SyntheticOptions(seed=seed))


def logits_after(tokens, seed=3):
    """Logits of the synthetic model after ``tokens``, from a runner of its own."""
    return make_runner(seed).prefill(0, list(tokens), 0, last=True).numpy()


def greedy(tokens, allowed=None, seed=3):
    """The token that greedy sampling gives after ``tokens`` among ``allowed`` ids."""
    logits = logits_after(tokens, seed)
    ids = np.arange(len(logits)) if allowed is None else np.array(sorted(allowed))
    return int(ids[np.argmax(logits[ids])])


def descriptor(launch, epochs, *, guided=None, held=(), positions=None):
    """A greedy descriptor. ``epochs`` slot -> owner; ``guided`` slot -> allowed ids; ``held`` slots."""
    params = SlotSamplingParams(SLOTS)
    action = np.full(SLOTS, SlotAction.IDLE, np.int32)
    epoch, bitmask = np.zeros(SLOTS, np.int64), np.zeros((SLOTS, WORDS), np.int32)
    for slot, owner in epochs.items():
        params.set(slot, owner, GREEDY, 0, 0)
        epoch[slot], action[slot] = owner, SlotAction.UNGUIDED
    for slot, allowed in (guided or {}).items():
        action[slot], bitmask[slot] = SlotAction.GUIDED, pack(sorted(allowed), tiny().size)
    action[list(held)] = SlotAction.HOLD
    rows = params.rows(np.zeros(SLOTS, np.int64) if positions is None else positions)
    return Descriptor(launch=launch, action=action, bitmask=torch.from_numpy(bitmask), epoch=epoch, rows=rows)
