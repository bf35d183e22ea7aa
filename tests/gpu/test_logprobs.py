"""Log-probabilities, ranks and probabilities on the GPU against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kernels.inputs import GpuInputs
from kernels.logprobs import LogprobTensors, logprobs_into
from kernels.probability import probabilities, probability_into
from kernels.reference import SampleInputs, probability, sample
from tests.gpu import cases
from tests.gpu.test_sample import launch

pytestmark = pytest.mark.gpu


def _inputs(rng: np.random.Generator, kind: str, dtype: str, with_overlay: bool) -> tuple[Any, ...]:
    width = 32000
    logits = cases.logits(rng, kind, 32, width, cases.DTYPES[dtype])
    rows = cases.rows(rng, 32, "mixed")
    more = {
        "vocab_size": width,
        "bitmask": cases.bitmask(rng, "half", 32, width),
        "overlay": cases.overlay(rng, 32, width) if with_overlay else None,
    }
    return logits, rows, more


@pytest.mark.parametrize("with_overlay", [False, True])
@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("kind", ["peaked", "middle", "flat", "ties", "equal", "special"])
def test_logprobs(kind: str, dtype: str, with_overlay: bool) -> None:  # spec 111, 112
    rng = np.random.default_rng(3)
    logits, rows, more = _inputs(rng, kind, dtype, with_overlay)
    out = launch(logits, rows, **more)
    inputs = GpuInputs(logits.cuda(), cases.on_gpu(rows), **{k: cases.on_gpu(v) for k, v in more.items()})
    for mode in ("raw", "processed"):
        with cases.gpu_exponential():
            want = sample(logits, rows, logprobs=mode, num_logprobs=20, **more)
        got = LogprobTensors.empty(32, 20, "cuda")
        logprobs_into(got, inputs, out.column, mode, out.descriptor if mode == "processed" else None)
        assert want.logprob is not None and want.rank is not None
        assert want.top_ids is not None and want.top_logprobs is not None
        assert torch.equal(got.rank.cpu(), want.rank)
        assert torch.equal(got.top_ids.cpu(), want.top_ids)
        torch.testing.assert_close(got.logprob.cpu(), want.logprob, atol=3e-5, rtol=1e-6)
        torch.testing.assert_close(got.top_logprobs.cpu(), want.top_logprobs, atol=3e-5, rtol=1e-6)


@pytest.mark.parametrize("with_overlay", [False, True])
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_probability(dtype: str, with_overlay: bool) -> None:  # spec 81, R20
    rng = np.random.default_rng(4)
    logits, rows, more = _inputs(rng, "middle", dtype, with_overlay)
    out = launch(logits, rows, **more)
    assert out.descriptor is not None
    inputs = GpuInputs(logits.cuda(), cases.on_gpu(rows), **{k: cases.on_gpu(v) for k, v in more.items()})
    with cases.gpu_exponential():
        want = sample(logits, rows, return_probs=True, return_descriptor=True, **more)
        assert want.probs is not None and want.descriptor is not None
        tokens = torch.from_numpy(rng.integers(-1, 32000, (32, 40)).astype(np.int32))
        tokens[:, 0] = want.token
        some = probability(want.descriptor, SampleInputs(logits, rows, **more), tokens)
    got = torch.full((32, 32000), -1.0, device="cuda")
    probabilities(out.descriptor, inputs, got)
    assert torch.equal(got.cpu(), want.probs)
    picked = torch.empty((32, 40), device="cuda")
    probability_into(out.descriptor, inputs, tokens.cuda(), picked)
    assert torch.equal(picked.cpu(), some)
