"""Ranks in threads against the reference on the whole rows."""

from __future__ import annotations

import pytest
import torch

from gpu_worker.sampler.tensor_parallel import TensorParallelSampler, VocabularySlice
from kernels.reference import sample
from tests.tensor_parallel_batches import Board, differences, random_batch


def on_ranks(batch, ranks, bounds=None):
    columns = batch.logits.shape[1]

    def work(group):
        part = VocabularySlice.of_rank(group.rank, ranks, columns, batch.vocab_size, batch.d2t)
        if bounds is not None:
            first, last = bounds[group.rank], bounds[group.rank + 1]
            part = VocabularySlice(columns, first, last - first, batch.vocab_size, batch.d2t)
        local = batch.logits[:, part.start : part.start + part.width]
        return TensorParallelSampler(group, part).sample(local, batch.rows, **batch.more)

    return Board(ranks).run(work)


def check(batch, ranks, bounds=None):
    want = sample(batch.logits, batch.rows, vocab_size=batch.vocab_size, d2t=batch.d2t, **batch.more)
    for got in on_ranks(batch, ranks, bounds):
        assert not differences(got, want)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("columns", [5, 31, 1000, 1003])
def test_random_batches_equal_the_reference(columns, ranks):  # spec R14, R15, R16, R17, R18, 61, 62, 64
    for seed in range(30):
        dtype = [torch.float32, torch.bfloat16, torch.float16][seed % 3]
        check(random_batch(seed * 100 + columns + ranks, columns=columns, dtype=dtype), ranks)


@pytest.mark.parametrize("ranks", [2, 4])
def test_wide_rows_spill_from_lists_to_search(ranks):  # spec R14, R16
    for seed in range(6):
        check(random_batch(seed, columns=9001, rows=10, spread=0.5), ranks)
