"""Mask into logits on the GPU: exactly what the reference writes, nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.bitmask import apply_bitmask
from kernels.reference import apply_bitmask as meaning
from tests.gpu import cases
from tests.gpu.test_sample import WIDTHS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_equal_to_the_reference(width: int, dtype: str) -> None:  # spec 23, 26, 27, 65
    rng = np.random.default_rng(width)
    for kind in ("one_banned", "half", "few", "one", "dead"):
        logits = cases.logits(rng, "special", 8, width, cases.DTYPES[dtype], stride=width + (8 if width % 2 else 0))
        bitmask = cases.bitmask(rng, kind, 8, width)
        assert bitmask is not None
        status = torch.tensor([1, 0, 1, 2, 1, 1, 1, 1], dtype=torch.int32)
        index = torch.tensor([0, 1, 7, 2, 5, -1, 8, 3], dtype=torch.int32)
        vocab = max(1, width - width % 3)
        gpu = cases.strided_on_gpu(logits)
        apply_bitmask(gpu, bitmask.cuda(), index.cuda(), status.cuda(), vocab)
        meaning(logits, bitmask, index, status, vocab)
        bits = torch.int32 if dtype == "fp32" else torch.int16
        assert torch.equal(gpu.cpu().contiguous().view(bits), logits.contiguous().view(bits))


def test_slices_and_pruned_vocabularies() -> None:  # spec 61, 62, R14
    rng = np.random.default_rng(1)
    bitmask = cases.bitmask(rng, "half", 4, 32000)
    assert bitmask is not None
    d2t = torch.from_numpy((np.sort(rng.choice(32000, 5000, replace=False)) - np.arange(5000)).astype(np.int32))
    for offset, table in ((0, d2t), (8001, None), (29000, None), (64, None)):
        logits = cases.logits(rng, "middle", 4, 5000, torch.bfloat16)
        gpu = logits.cuda()
        apply_bitmask(gpu, bitmask.cuda(), None, None, 32000, offset, None if table is None else table.cuda())
        meaning(logits, bitmask, None, None, 32000, offset, table)
        assert torch.equal(gpu.cpu().view(torch.int16), logits.view(torch.int16))
