"""SamplerBeside: the sampler in a process of its own gives what it gives in the engine's; its errors come back."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpu_worker.sampler import SamplerBeside, SlotSampler
from shared.bitmask import pack
from shared.errors import BadRequest, WorkerLost
from shared.sampling_params import SamplingParams

VOCAB, SLOTS = 1003, 3
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def beside():
    made = SamplerBeside(SLOTS, VOCAB, patience_s=60)
    yield made
    made.close()


def admit(sampler):
    sampler.admit(0, SamplingParams(temperature=1.0, seed=1), guided=True)
    sampler.admit(1, SamplingParams(temperature=0.7, top_p=0.9, seed=2, frequency_penalty=0.5), prompt=[1, 2, 3])
    sampler.admit(2, SamplingParams(temperature=0.0, min_tokens=5), end_ids=[7])


def test_the_same_tokens_as_in_the_engines_process(beside):
    inside = SlotSampler(SLOTS, VOCAB)
    admit(beside)
    admit(inside)
    for step in range(12):
        slots = [0, 1, 2] if step % 3 else [2, 0]
        rows = {} if step == 5 else {0: pack(range(step, VOCAB, 7), VOCAB)}
        logits = torch.randn(len(slots), VOCAB, generator=torch.Generator().manual_seed(step))
        beside.logits[: len(slots)] = logits
        sampled = beside.sample(slots, rows)
        assert sampled == inside.sample(logits, slots, rows)
        assert beside.tokens[: len(slots)].tolist() == sampled.token_ids


def test_errors_come_back_and_harm_nothing(beside):
    admit(beside)
    with pytest.raises(BadRequest) as caught:
        beside.admit(0, SamplingParams(temperature=1.0, n=2))
    assert caught.value.field == "n"
    with pytest.raises(BadRequest, match="mask row"):
        beside.sample([0], {0: pack([1], 40)})
    with pytest.raises(BadRequest, match="slot 9"):
        beside.admit(9, SamplingParams())
    beside.release(1)
    with pytest.raises(BadRequest, match="slot 1"):
        beside.sample([1])
    beside.logits[0] = torch.arange(VOCAB)
    assert beside.sample([2]).token_ids == [VOCAB - 1]
    os.kill(beside._child.pid, signal.SIGKILL)
    beside._child.wait()
    with pytest.raises(WorkerLost):
        beside.sample([2])


@pytest.mark.parametrize("flags", [(), ("--beside",)])
def test_the_example_runs(flags):
    command = [sys.executable, ROOT / "examples" / "own_engine.py", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["'4903956370823953'", r"'0:$ceKeK^meK4Z\x18\x0e'"]
    assert len((ROOT / "examples" / "own_engine.py").read_text().splitlines()) <= 40
