"""Counts, decay, finish reasons, penalties and beams on the GPU: exactly what the reference leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kernels import beam, finish, penalties, reference
from tests.gpu import cases

pytestmark = pytest.mark.gpu


def _i32(rng: np.random.Generator, low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.integers(low, high, shape).astype(np.int32))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint16])
def test_counts(dtype: torch.dtype) -> None:  # spec 95, 97, 99, R24
    rng = np.random.default_rng(1)
    counts = _i32(rng, 65530, 65540, 9, 101).clamp(max=65535).to(dtype)
    tokens, num, slot = _i32(rng, -2, 104, 6, 5), _i32(rng, 0, 6, 6), torch.tensor([3, -1, 0, 8, 5, 2], dtype=torch.int32)
    gpu = counts.cuda()
    penalties.update_counts(gpu, tokens.cuda(), num.cuda(), slot.cuda())
    reference.update_counts(counts, tokens, num, slot)
    assert torch.equal(gpu.cpu().to(torch.int64), counts.to(torch.int64))
    slots, parents = torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([3, 1, 1], dtype=torch.int32)
    penalties.reparent_counts(gpu, slots.cuda(), parents.cuda(), torch.empty((3, 101), dtype=dtype, device="cuda"))
    reference.reparent_counts(counts, slots, parents)
    seen, prompt = _i32(rng, 0, 1 << 30, 9, 4), _i32(rng, -1, 103, 400)
    gpu_seen = seen.cuda()
    penalties.reset_counts(
        gpu,
        gpu_seen,
        torch.tensor([4], dtype=torch.int32).cuda(),
        prompt.cuda(),
        torch.tensor([400], dtype=torch.int32).cuda(),
        150,
    )
    reference.reset_counts(counts, seen, 4, prompt, 150)
    assert torch.equal(gpu.cpu().to(torch.int64), counts.to(torch.int64)) and torch.equal(gpu_seen.cpu(), seen)


def test_top_p_decay() -> None:  # spec 106
    rng = np.random.default_rng(2)
    top_p, initial, decay, minimum = (torch.rand(7) for _ in range(4))
    tokens, num, slot = _i32(rng, -1, 4, 5, 6), _i32(rng, 0, 7, 5), torch.tensor([6, 0, -1, 3, 2], dtype=torch.int32)
    more: dict[str, Any] = {"initial": initial, "decay": decay, "minimum": minimum, "reset_id": _i32(rng, -1, 4, 7)}
    gpu = top_p.cuda()
    penalties.update_top_p_decay(gpu, tokens.cuda(), num.cuda(), slot.cuda(), **{k: v.cuda() for k, v in more.items()})
    reference.update_top_p_decay(top_p, tokens, num, slot, **more)
    assert torch.equal(gpu.cpu(), top_p)


def test_finish_reasons() -> None:  # spec 114, 115, 116
    rng = np.random.default_rng(3)
    batch = 400
    words = [[rng.integers(0, 4, rng.integers(0, 4)).tolist() for _ in range(rng.integers(0, 4))] for _ in range(batch)]
    tokens, num, history = _i32(rng, 0, 6, batch, 5), _i32(rng, 0, 6, batch), _i32(rng, -1, 5, batch, 4)
    length, most = _i32(rng, 0, 20, batch), _i32(rng, 10, 40, batch)
    ends = reference.TokenList.of([rng.choice(6, rng.integers(0, 2), replace=False).tolist() for _ in range(batch)])
    stop = reference.StopWords.of(words)
    want = reference.finish_reasons(tokens, num, length, most, end_ids=ends, stop_words=stop, history=history)
    got = reference.FinishResult(*torch.empty((2, batch), dtype=torch.int32, device="cuda"))
    gpu_history = history.cuda()
    finish.finish_reasons(
        got,
        tokens.cuda(),
        num.cuda(),
        length.cuda(),
        most.cuda(),
        end_ids=cases.on_gpu(ends),
        stop_words=cases.on_gpu(stop),
        history=gpu_history,
    )
    assert torch.equal(got.reason.cpu(), want.reason) and torch.equal(got.kept.cpu(), want.kept)
    assert set(want.reason.tolist()) == {0, 1, 2, 3}
    finish.shift_history(gpu_history, tokens.cuda(), num.cuda())
    reference.shift_history(history, tokens, num)
    assert torch.equal(gpu_history.cpu(), history)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_penalties(dtype: str) -> None:  # spec 93, 94, 96
    rng = np.random.default_rng(4)
    logits = cases.logits(rng, "special", 16, 1000, cases.DTYPES[dtype])
    state = cases.overlay(rng, 16, 1000).penalties
    assert state is not None
    gpu = logits.cuda()
    penalties.penalties_into(gpu, cases.on_gpu(state), vocab_size=999)
    reference.penalties(logits, state, vocab_size=999)
    torch.testing.assert_close(gpu.cpu(), logits, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("stopping", [0, 1, 2])
def test_beams(stopping: int) -> None:  # spec 107, 108
    rng = np.random.default_rng(5 + stopping)
    requests, width, longest, vocab = 6, 4, 12, 3000
    state = reference.BeamState.start(requests, width, longest)
    same = [torch.full((requests,), value, dtype=torch.int32) for value in (stopping, 7, longest)]
    params = reference.BeamParams(
        torch.tensor([4, 4, 3, 2, 1, 4], dtype=torch.int32),
        torch.linspace(-0.5, 1.5, requests),
        torch.tensor([0, 0.5, -0.2, 0, 0, 1.0]),
        *same,
    )
    gpu, gpu_params = cases.on_gpu(state), cases.on_gpu(params)
    workspace = beam.BeamWorkspace.of(gpu)
    for _ in range(longest - 1):
        logprobs = torch.log_softmax(torch.from_numpy(rng.normal(0, 3, (requests, width, vocab)).astype(np.float32)), -1)
        logprobs[:, :, 7] = torch.from_numpy(rng.normal(-3, 1, (requests, width)).astype(np.float32))
        logprobs[0] = torch.round(logprobs[0])  # ties
        want = reference.beam_step(logprobs, state, params)
        got = reference.BeamStep(*torch.empty((2, requests, width), dtype=torch.int32, device="cuda"))
        beam.beam_step(got, logprobs.cuda(), gpu, gpu_params, workspace)
        assert torch.equal(got.token.cpu(), want.token) and torch.equal(got.parent.cpu(), want.parent)
    beam.finalize_beams(gpu, gpu_params, workspace)
    reference.finalize_beams(state, params)
    for name in reference.BeamState.__slots__:
        assert torch.equal(getattr(gpu, name).cpu(), getattr(state, name)), name
