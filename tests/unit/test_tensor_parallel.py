"""Ranks in threads against the reference on the whole rows."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from gpu_worker.sampler.tensor_parallel import Group, RowPlan, SealedRows, TensorParallelSampler, VocabularySlice, weights
from kernels.plain import weights as plain
from kernels.reference import RowStatus, SampleRows, SampleStatus, sample
from tests.reference_oracle import pack
from tests.tensor_parallel_batches import Batch, Board, differences, random_batch


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


def guided(columns, allowed, rows=None, **more):
    """Distinct logits, one mask a row: ``allowed`` lists the ids of each."""
    count = len(allowed)
    logits = torch.arange(columns, dtype=torch.float32).flip(0).div(columns).repeat(count, 1)
    mask = torch.stack([pack(ids, -(-columns // 32)) for ids in allowed])
    return Batch(logits, rows or SampleRows.uniform(count), columns, None, {"bitmask": mask} | more)


def test_one_allowed_token_on_each_rank():  # spec 26, 61, R14
    batch = guided(103, [[3], [40], [70], [102]], logprobs="processed", num_logprobs=2)
    for got in on_ranks(batch, 4):
        assert got.token.tolist() == [3, 40, 70, 102] and got.rank.tolist() == [1] * 4
        assert got.logprob.abs().max() < 1e-7
    check(batch, 4)


@pytest.mark.parametrize("rows", [SampleRows.uniform(3, top_k=2), SampleRows.uniform(3, top_p=0.9), SampleRows.uniform(3)])
def test_a_rank_that_allows_nothing_and_a_row_that_allows_nothing(rows):  # spec R17, 86
    batch = guided(64, [list(range(32, 64)), [], list(range(32))], rows)
    for got in on_ranks(batch, 2):
        assert got.token[0] >= 32 and 0 <= got.token[2] < 32
        assert got.token[1] == -1 and got.status.tolist() == [0, SampleStatus.DEAD, 0]
    check(batch, 2)


@pytest.mark.parametrize("keep_ties", [False, True])
@pytest.mark.parametrize("params", [{"top_k": 5}, {"top_p": 0.5}, {"top_k": 7, "top_p": 0.6}, {"temperature": 0.0}])
def test_ties_across_the_seams_go_to_the_lowest_column(params, keep_ties):  # spec R16, 84
    rows = SampleRows.uniform(64, **params)
    rows.offset = torch.arange(64)
    batch = Batch(torch.zeros((64, 10)), rows, 10, None, {"keep_ties": keep_ties})
    want = {"top_k": 5, "top_p": 5, "temperature": 1}[next(iter(params))] if len(params) == 1 else 5
    drawn = on_ranks(batch, 4)[2].token
    assert int(drawn.max()) == (9 if keep_ties and "temperature" not in params else want - 1)
    check(batch, 4)


@pytest.mark.parametrize("bounds", [(0, 1, 1000), (0, 0, 333, 1000), (0, 31, 33, 999, 1000), (0, 500, 500, 1000)])
def test_slices_of_any_size_at_any_bit(bounds):  # spec R14, 61
    for seed in range(12):
        check(random_batch(seed, guided=True), len(bounds) - 1, bounds)


def test_large_top_k_is_searched_for():  # spec R16
    rows = SampleRows.uniform(6, top_k=3000, top_p=0.97, temperature=2.0)
    rows.offset = torch.arange(6)
    for seed, keep_ties in enumerate([False, True]):
        batch = random_batch(seed, columns=5000, rows=6, logprobs="processed")
        check(Batch(batch.logits, rows, batch.vocab_size, batch.d2t, batch.more | {"keep_ties": keep_ties}), 3)


def test_a_rank_at_another_launch_holds_guided_rows_only():  # spec R14
    batch = guided(64, [list(range(64)), [1]])
    status = torch.tensor([RowStatus.UNGUIDED, RowStatus.GUIDED], dtype=torch.int32)

    def work(group):
        part = VocabularySlice.of_rank(group.rank, 2, 64, 64)
        local = batch.logits[:, part.start : part.start + part.width]
        sampler = TensorParallelSampler(group, part)
        return sampler.sample(local, batch.rows, **batch.more, row_status=status, launch=7 + group.rank)

    for got in Board(2).run(work):
        assert got.status.tolist() == [0, SampleStatus.HELD]
        assert got.token[0] >= 0 and got.token[1] == -1


def test_rank_0_seals_parameters_and_seeds_for_all():  # spec R14, R18
    batch = random_batch(3, rows=9)
    status, epoch = torch.arange(9, dtype=torch.int32), torch.arange(9) * 10**12
    sealed = SealedRows(41, batch.rows, status, epoch)

    def work(group):
        return sealed.send(group) if group.rank == 0 else SealedRows.receive(group, 9)

    for got in Board(3).run(work):
        assert got.launch == 41 and torch.equal(got.status, status) and torch.equal(got.epoch, epoch)
        for field in fields(SampleRows):
            assert torch.equal(getattr(got.rows, field.name), getattr(batch.rows, field.name)), field.name


def test_logits_are_neither_written_nor_exchanged():  # spec R14
    batch = random_batch(11, columns=4000, rows=4, logprobs=None, d2t=False)
    before = batch.logits.clone()
    on_ranks(batch, 2)
    assert torch.equal(batch.logits, before) or bool(batch.logits.isnan().any())
    sent = []

    class Counting(Group):
        def gather(self, values):
            sent.append(values.shape[1:].numel())
            return super().gather(values)

    rows = SampleRows.uniform(4, top_k=50)
    TensorParallelSampler(Counting(), VocabularySlice(4000, 0, 4000, 4000)).sample(batch.logits, rows)
    assert sent == [50]


def test_what_does_not_fit_is_refused():  # spec 61, 62
    with pytest.raises(ValueError, match="no slice"):
        VocabularySlice(10, 8, 3, 10)
    with pytest.raises(ValueError, match=r"d2t must be int32\[10\]"):
        VocabularySlice(10, 0, 5, 10, torch.zeros(5, dtype=torch.int32))
    sampler = TensorParallelSampler(Group(), VocabularySlice(64, 0, 64, 64))
    with pytest.raises(ValueError, match="logits must be"):
        sampler.sample(torch.zeros((2, 63)), SampleRows.uniform(2))
    with pytest.raises(ValueError, match="bitmask must be"):
        sampler.sample(torch.zeros((2, 64)), SampleRows.uniform(2), bitmask=torch.zeros((2, 1), dtype=torch.int32))


def test_masses_shares_and_draws_are_the_reference_s():  # spec R16, R18
    rng = np.random.default_rng(5)
    for temperature, spread in ((0.7, 5.0), (1e-6, 3.0), (1.0, 1e6), (30.0, 1e-3)):
        x, t = rng.normal(0, spread, 4096).astype(np.float32), np.float32(temperature)
        scale = torch.tensor([[np.float32(min(float(plain.LOG2E / t), 3.4e38))]])
        got = weights.masses(torch.from_numpy(x)[None], torch.tensor([[x.max()]]), scale)
        assert got[0].tolist() == plain.masses(x, x.max(), t).tolist()
    mass = rng.integers(1, 1 << 62, 500)
    bits = rng.integers(-(1 << 63), 1 << 63, 500, dtype=np.int64)
    got = weights.high64(torch.from_numpy(bits), torch.from_numpy(mass)).tolist()
    assert got == [plain.high64(int(b) % (1 << 64), int(m)) for b, m in zip(bits, mass, strict=True)]
    p = np.concatenate([rng.random(490), 10.0 ** -np.arange(1, 11)]).astype(np.float32)
    rows = SampleRows.uniform(500)
    rows.top_p = torch.from_numpy(p)
    plan = RowPlan.of(rows, 10, torch.device("cpu"))
    shares = weights.share(plan.mantissa, plan.exponent, torch.from_numpy(mass)).tolist()
    assert shares == [plain.share(float(q), int(m)) for q, m in zip(p, mass, strict=True)]
