"""The sampler as a library on the device: same tokens as on the CPU, in the engine's process and in one beside it over CUDA IPC."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpu_worker.sampler import SamplerBeside, SlotSampler
from shared.bitmask import Words, pack
from shared.errors import WorkerLost
from shared.sampling_params import SamplingParams

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
VOCAB, SLOTS, STEPS = 32_003, 6, 200
PARAMS = [
    SamplingParams(temperature=1.0, seed=1), SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, top_k=40, seed=3),
    SamplingParams(temperature=1.2, top_p=0.9, seed=4, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.2),
    SamplingParams(temperature=1.0, seed=5, logit_bias={"7": 5.0, "9": -3.0}, no_repeat_ngram_size=2),
    SamplingParams(temperature=1.0, min_p=0.05, seed=6, top_p=0.95, top_p_decay=0.9, top_p_min=0.2, allowed_token_ids=[*range(99)]),
]  # fmt: skip


def admit(sampler: SlotSampler | SamplerBeside) -> None:
    for slot, params in enumerate(PARAMS):
        sampler.admit(slot, params, prompt=[1, 2, 3, 900, 901], end_ids=[0], guided=slot % 2 == 0)


def model() -> torch.Tensor:
    return torch.randn(64, VOCAB, generator=torch.Generator().manual_seed(1)).mul_(3)


def step(number: int) -> tuple[list[int], dict[int, Words]]:
    """Slots of a step and their rows; in some steps a guided slot has none and holds."""
    slots = [slot for slot in range(SLOTS) if (number + slot) % 5]
    rows = {slot: pack(range((number + slot) % 11, VOCAB, 11), VOCAB) for slot in slots if slot % 2 == 0 and (number + slot) % 7}
    return slots, rows


def plan() -> list[tuple[torch.Tensor, list[int], dict[int, Words]]]:
    table, steps = model(), [step(number) for number in range(STEPS)]
    return [(table[[(number * 7 + slot) % 64 for slot in slots]], slots, rows) for number, (slots, rows) in enumerate(steps)]


@pytest.fixture(scope="module")
def on_host() -> list[list[int]]:
    sampler = SlotSampler(SLOTS, VOCAB)
    admit(sampler)
    return [sampler.sample(logits, slots, rows).token_ids for logits, slots, rows in plan()]


@pytest.fixture
def beside() -> Iterator[SamplerBeside]:
    made = SamplerBeside(SLOTS, VOCAB, "cuda", patience_s=120)
    yield made
    made.close()


# spec R11 R18
def test_the_device_gives_the_hosts_tokens(on_host: list[list[int]]) -> None:
    sampler = SlotSampler(SLOTS, VOCAB, "cuda")
    admit(sampler)
    got = [sampler.sample(logits.cuda(), slots, rows).token_ids for logits, slots, rows in plan()]
    assert got == on_host


def test_a_process_beside_gives_them_too(beside: SamplerBeside, on_host: list[list[int]]) -> None:
    admit(beside)
    got = []
    for logits, slots, rows in plan():
        beside.logits[: len(slots)] = logits.cuda(non_blocking=True)
        sampled = beside.sample(slots, rows)
        assert beside.tokens[: len(slots)].tolist() == sampled.token_ids
        got.append(sampled.token_ids)
    assert got == on_host


def test_the_sampler_waits_for_the_forward_and_the_next_forward_for_the_sampler(beside: SamplerBeside) -> None:
    """A forward that is late on the device: its logits are read after it, and written again only after they were read."""
    for slot in range(SLOTS):
        beside.admit(slot, SamplingParams(temperature=0.0))
    slots = list(range(SLOTS))
    marks = torch.arange(SLOTS, device="cuda")
    for number in range(30):
        torch.cuda._sleep(20_000_000)  # some 10 ms in which the old logits still stand
        beside.logits.zero_()
        beside.logits[marks, (marks * 100 + number) % VOCAB] = 1.0
        beside.launch(slots)
        kept = beside.tokens.clone()
        beside.logits.fill_(0.0)  # enqueued behind the sampler
        wanted = [(slot * 100 + number) % VOCAB for slot in slots]
        assert beside.take().token_ids == wanted
        assert kept.tolist() == wanted


def test_a_dead_sampler_is_said_and_the_engines_memory_stays(beside: SamplerBeside) -> None:
    admit(beside)
    beside.logits.fill_(2.0)
    beside._child.kill()
    beside._child.wait()
    with pytest.raises(WorkerLost):
        beside.sample([1])
    assert bool((beside.logits == 2.0).all())


@pytest.mark.parametrize("flags", [(), ("--beside",)])
def test_the_example_runs_on_the_device(flags: tuple[str, ...]) -> None:
    command = [sys.executable, str(ROOT / "examples" / "own_engine.py"), "--device", "cuda", *flags]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["'4903956370823953'", r"'0:$ceKeK^meK4Z\x18\x0e'"]
