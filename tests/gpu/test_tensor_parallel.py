"""Sharded sampling on devices: ranks as threads on one device, and as processes over NCCL where there are two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpu_worker.sampler.tensor_parallel import TensorParallelSampler, VocabularySlice
from kernels.reference import sample
from tests.tensor_parallel_batches import Board, differences, random_batch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("columns", [1003, 128254])
def test_ranks_on_one_device_equal_the_reference(columns: int, ranks: int) -> None:  # spec R14, R15, R16, R17, 61, 62
    for seed in range(20):
        batch = random_batch(seed + columns, columns=columns, rows=4, dtype=[torch.float32, torch.bfloat16][seed % 2])
        want = sample(batch.logits, batch.rows, vocab_size=batch.vocab_size, d2t=batch.d2t, **batch.more)
        d2t = None if batch.d2t is None else batch.d2t.cuda()
        more = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in batch.more.items()}

        def work(group, batch=batch, d2t=d2t, more=more):
            part = VocabularySlice.of_rank(group.rank, ranks, columns, batch.vocab_size, d2t, torch.device("cuda"))
            local = batch.logits[:, part.start : part.start + part.width].cuda()
            return TensorParallelSampler(group, part).sample(local, batch.rows, **more)

        for got in Board(ranks).run(work):
            assert not differences(got, want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_two_devices_over_nccl(tmp_path: Path) -> None:  # spec R14
    command = [sys.executable, "-m", "benchmarks.tensor_parallel", "--batches", "40", "--steps", "500", "--rows", "16"]
    subprocess.run(command, env=os.environ | {"OUT": str(tmp_path)}, check=True, timeout=170)
    found = json.loads((tmp_path / "tensor_parallel.json").read_text())
    assert found["equality"]["batches"] == 40 and not found["equality"]["failures"]
    assert found["holds"] == {"steps": 500, "disagreed": 0}
