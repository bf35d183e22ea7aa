"""What is put through a pipeline to compare it with another: every feature of the FAST tier, drafts right and wrong, holds, new
owners."""

import random

import numpy as np
import torch

from gpu_worker.descriptor import Descriptor, SlotAction
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.speculation import Ahead, AheadRows
from kernels.reference import Overlay, SampleRows, TokenList
from shared.bitmask import pack
from tests.sampling_bench import Bench, TableRunner, V, table
from tests.vocabularies import tiny

SLOTS, WIDTH, SIZE = 4, 3, tiny().size


def make_runner(width=WIDTH, device="cpu"):
    shape = RunnerShape(max_slots=SLOTS, max_length=128, max_width=width, prefill_chunk=16)
    return SyntheticRunner(tiny(), shape, SyntheticOptions(seed=3), device)


LONG = table()
LONG[:, V - 1] = -6.0
PROMPT = [3, 5, 5, 7, 0]
FEATURES = {
    "bias": {"logit_bias": {"2": 1.5, "9": -2.0, "4": 3.0}},
    "penalties": {"repetition_penalty": 1.6, "presence_penalty": 0.4, "frequency_penalty": 0.3, "prompt_ignore_length": 2},
    "bans": {"bad_words": ["ij", "ja", "fjc", "k"]},
    "ngrams": {"no_repeat_ngram_size": 2},
    "unigrams": {"no_repeat_ngram_size": 1},
    "early": {"min_tokens": 6, "stop_token_ids": [4]},
    "decay": {"top_p": 0.9, "top_p_decay": 0.7, "top_p_min": 0.1, "top_p_reset_id": 5},
    "allowed": {"allowed_token_ids": [1, 2, 3, 5, 8]},
    "raw": {"logprobs": 3},
    "processed": {"logprobs": 5, "logprobs_mode": "processed", "top_k": 6, "logit_bias": {"3": 2.0}},
    "scored": {"prompt_logprobs": 2, "logprobs": 0},
    "logits": {"return_generation_logits": True},
}


def every_feature(pipeline, guide, steps=10, device="cpu"):
    """Texts of every feature, four at a time; the slots change owners, and some steps are held."""
    told, logits = {}, []
    with Bench(LONG, runner=TableRunner(LONG, SLOTS, device=device), pipeline=pipeline) as bench:
        waiting, dice = sorted(FEATURES), random.Random(7)
        for turn in range(0, len(waiting), SLOTS):
            started = {
                name: bench.start(slot, guide=guide, prompt=PROMPT, temperature=1.2, seed=turn + slot, max_tokens=steps,
                **FEATURES[name]) for slot, name in enumerate(waiting[turn : turn + SLOTS])
            }  # fmt: skip
            for _ in range(3 * steps):
                if all(each.finish is not None for each in started.values()):
                    break
                logits.append(bench.step(held=[slot for slot in range(SLOTS) if dice.random() < 0.2]).logits)
            told |= {f"error of slot {slot} of turn {turn}": str(error) for slot, error in bench.errors.items()}
            bench.errors.clear()
            told |= {name: (each.tokens, each.logprobs, each.scores and each.scores.entries) for name, each in started.items()}
    return told | {"logits of tokens": [each for each in logits if each]}


def parameters(positions):
    return SampleRows(
        temperature=torch.tensor([0.0, 1.0, 0.7, 1.3]), top_k=torch.tensor([0, 50, 0, 5], dtype=torch.int32),
        top_p=torch.tensor([1.0, 0.9, 0.5, 1.0]), min_p=torch.zeros(SLOTS), seed=torch.arange(SLOTS),
        offset=torch.from_numpy(positions),
    )  # fmt: skip


def row_of(slot, position):
    dice = random.Random(int(slot * 1000 + position))
    return pack(dice.sample(range(SIZE), 1 + int(slot * 97 + position) % 200), SIZE)


def overlay_of(positions):
    """A ban a slot that depends on its position."""
    return Overlay(bans=TokenList.of([[int(p) % 7 + 70, slot] for slot, p in enumerate(positions)]))


def speculate(make, num_drafts, steps=25, plain=True, truth=None, device="cpu"):
    """Tokens of four slots with drafts: right where ``truth`` says so and the dice agree, else wrong. Some steps hold some
    slots."""
    pipeline, dice = make(make_runner(device=device)), random.Random(num_drafts)
    texts, accepted = [[] for _ in range(SLOTS)], 0
    buffers = pipeline.row_buffers()
    try:
        for slot in range(SLOTS):
            pipeline.prefill(slot, [10 + slot, 20, 30], 0)
            pipeline.admit(slot, slot + 1, 40 + slot, 3, plain=plain)
        for _ in range(steps):
            drafts = [[] for _ in range(SLOTS)]
            for slot in range(SLOTS):
                n = dice.randint(0, num_drafts)
                at = len(texts[slot])
                good = truth[slot][at : at + n] if truth else []
                drafts[slot] = [t if dice.random() < 0.8 else (t + 1) % SIZE for t in good]
                if drafts[slot]:
                    pipeline.draft(slot, drafts[slot])
            number = pipeline.launch()
            lengths = np.array([len(text) for text in texts], np.int64)
            bits = buffers[number % 2]
            held = [slot for slot in range(SLOTS) if dice.random() < 0.15]
            action = np.array([SlotAction.GUIDED if slot % 2 else SlotAction.UNGUIDED for slot in range(SLOTS)], np.int32)
            action[held] = SlotAction.HOLD
            depth = np.array([1 + len(each) for each in drafts], np.int32)
            for slot in range(1, SLOTS, 2):
                for at in range(depth[slot]):
                    bits[slot * WIDTH + at] = row_of(slot, lengths[slot] + at)
            ahead = [
                AheadRows(parameters(lengths + at), None if plain else overlay_of(lengths + at)) for at in range(1, max(depth))
            ]
            sealed = Descriptor(
                number, action, torch.from_numpy(bits), np.arange(1, SLOTS + 1), parameters(lengths),
                None if plain else overlay_of(lengths), ahead=Ahead(depth, tuple(ahead)) if ahead else None,
            )  # fmt: skip
            assert pipeline.seal(sealed)
            result = pipeline.collect(20.0)
            for slot in range(SLOTS):
                tokens = [int(each.token[slot]) for each in (result, *result.ahead)]
                tokens = tokens[: tokens.index(-1)] if -1 in tokens else tokens
                assert bool(tokens) != (slot in held)
                texts[slot] += tokens
                accepted += max(len(tokens) - 1, 0)
    finally:
        pipeline.close()
    return texts, accepted
