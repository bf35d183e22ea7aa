"""Speculative verification on the GPU: every request as the reference decides it, on the device's own weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kernels.inputs import GpuInputs
from kernels.reference import Drafts, SampleInputs, SampleRows, VerifyResult, verify
from kernels.verify import empty_result, match, reject
from tests.gpu import cases
from tests.gpu.test_sample import launch

pytestmark = pytest.mark.gpu


def _equal(got: VerifyResult, want: VerifyResult) -> None:
    for name in VerifyResult.__slots__:
        assert torch.equal(getattr(got, name).cpu(), getattr(want, name)), name


def _target(rng: np.random.Generator, batch: int, n: int, width: int) -> tuple[torch.Tensor, SampleRows, dict[str, Any]]:
    logits = cases.logits(rng, "middle", batch * (n + 1), width, torch.bfloat16)
    rows = cases.rows(rng, batch * (n + 1), "mixed")
    mask = cases.bitmask(rng, "half", batch * (n + 1), width)
    status = torch.from_numpy(rng.choice([0, 1, 1, 1, 1, 2], batch * (n + 1)).astype(np.int32))
    return logits, rows, {"vocab_size": width, "bitmask": mask, "row_status": status}


@pytest.mark.parametrize("tree", [False, True])
def test_sample_and_match(tree: bool) -> None:  # spec 119, 120, R18
    rng = np.random.default_rng(20 + tree)
    batch, n, width = 64, 7, 64
    logits, rows, more = _target(rng, batch, n, width)
    out = launch(logits, rows, **more)
    tokens = torch.from_numpy(rng.integers(0, width, (batch, n)).astype(np.int32))
    parents = torch.from_numpy(np.minimum(rng.integers(-1, n, (batch, n)), np.arange(n)).astype(np.int32)) if tree else None
    sampled = out.token.cpu().view(batch, n + 1)
    for j in range(n):  # most drafts are what the target samples after the parent
        parent = parents[:, j].clamp(min=0).long() if parents is not None else torch.full((batch,), j)
        good = torch.from_numpy(rng.random(batch) < 0.8)
        tokens[good, j] = sampled[torch.arange(batch), parent][good]
    drafts = Drafts(tokens, torch.from_numpy(rng.integers(0, n + 1, batch).astype(np.int32)), parents)
    with cases.gpu_exponential():
        want = verify(SampleInputs(logits, rows, **more), drafts)
    got = empty_result(batch, n, "cuda")
    match(got, cases.on_gpu(drafts), out.token, out.status)
    _equal(got, want)


@pytest.mark.parametrize("with_overlay", [False, True])
@pytest.mark.parametrize("pruned", [False, True])
def test_rejection(pruned: bool, with_overlay: bool) -> None:  # spec 64, 121, 122, R20
    rng = np.random.default_rng(30 + 2 * pruned + with_overlay)
    batch, n, width = 48, 4, 2000
    logits, rows, more = _target(rng, batch, n, width)
    draft_width = 700 if pruned else width
    ids = np.sort(rng.choice(width, draft_width, replace=False))
    d2t = torch.from_numpy((ids - np.arange(draft_width)).astype(np.int32)) if pruned else None
    near = logits.view(batch, n + 1, width)[:, :n].reshape(batch * n, width).float() + torch.from_numpy(
        rng.normal(0, 0.7, (batch * n, width)).astype(np.float32)
    )
    draft_logits = near[:, torch.from_numpy(ids)].to(torch.bfloat16).contiguous()
    draft_rows = cases.rows(rng, batch * n, "temperature")
    draft_more: dict[str, Any] = {"vocab_size": width, "d2t": d2t}
    if with_overlay:
        more["overlay"] = cases.overlay(rng, batch * (n + 1), width, 50)
        draft_more["overlay"] = cases.overlay(rng, batch * n, width, 50)
    drawn, out = launch(draft_logits, draft_rows, **draft_more), launch(logits, rows, **more)
    tokens = drawn.token.cpu().view(batch, n).clone()
    tokens[::7] = torch.from_numpy(rng.integers(-1, width, tokens[::7].shape).astype(np.int32))
    drafts = Drafts(tokens, torch.from_numpy(rng.integers(0, n + 1, batch).astype(np.int32)))
    with cases.gpu_exponential():
        want = verify(SampleInputs(logits, rows, **more), drafts, SampleInputs(draft_logits, draft_rows, **draft_more))
    got = empty_result(batch, n, "cuda")
    assert out.descriptor is not None and drawn.descriptor is not None
    reject(
        got,
        cases.on_gpu(drafts),
        GpuInputs(logits.cuda(), cases.on_gpu(rows), **{k: cases.on_gpu(v) for k, v in more.items()}),
        out.descriptor,
        out.status,
        GpuInputs(draft_logits.cuda(), cases.on_gpu(draft_rows), **{k: cases.on_gpu(v) for k, v in draft_more.items()}),
        drawn.descriptor,
    )
    _equal(got, want)
    assert int(want.accepted.sum()) > 0
