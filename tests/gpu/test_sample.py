"""The fused sampler against the reference: bitwise on the device's own weights, and against itself over launch shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kernels.reference import SampleResult, SampleRows, sample
from kernels.sample import CLUSTERS, SampleOutput, sample_into
from tests.gpu import cases

pytestmark = pytest.mark.gpu
WIDTHS = (1, 31, 32, 33, 100, 8193, 10000, 32000, 65535, 65536, 65537, 128000, 128001, 128031, 128256, 151936, 248320, 262144)


def launch(logits: torch.Tensor, rows: SampleRows, **more: Any) -> SampleOutput:
    out = SampleOutput.empty(len(rows), "cuda", descriptor=True)
    sample_into(
        out,
        logits if logits.is_cuda else cases.strided_on_gpu(logits),
        cases.on_gpu(rows),
        **{k: cases.on_gpu(v) for k, v in more.items()},
    )
    torch.cuda.synchronize()
    return out


def compare(clusters: tuple[int, ...], logits: torch.Tensor, rows: SampleRows, **more: Any) -> None:
    """Bitwise: status, kept mass, maximum and token of every row, for each cluster size."""
    with cases.gpu_exponential():
        want = sample(logits, rows, return_descriptor=True, **more)
    for cluster in clusters:
        problems = differences(launch(logits, rows, cluster=cluster, **more), want)
        assert not problems, f"cluster {cluster}: " + "; ".join(problems)


def differences(out: SampleOutput, want: SampleResult) -> list[str]:
    problems = []
    assert want.descriptor is not None and out.descriptor is not None
    for name, got, expected in (
        ("status", out.status, want.status),
        ("mass", out.descriptor.mass, want.descriptor.mass),
        ("xmax", out.descriptor.xmax, want.descriptor.xmax),
        ("token", out.token, want.token),
    ):
        wrong = torch.nonzero(got.cpu() != expected).flatten().tolist()
        if wrong:
            i = wrong[0]
            problems.append(f"{name}: rows {wrong[:8]} ({len(wrong)}), first {got[i].item()} not {expected[i].item()}")
    return problems


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_and_dtype(width: int, dtype: str) -> None:  # spec R16, 26, 81
    rng = np.random.default_rng(width)
    kinds = ["none", "one_banned", "half", "few", "one"]
    mask = kinds[width % 5]
    logits = cases.logits(rng, "middle", 16, width, cases.DTYPES[dtype])
    rows = cases.rows(rng, 16, "mixed")
    bitmask = cases.bitmask(rng, mask, 16, width)
    compare(CLUSTERS, logits, rows, vocab_size=width, bitmask=bitmask)


@pytest.mark.parametrize("mask", ["none", "one_banned", "half", "blocks", "few", "one", "dead"])
@pytest.mark.parametrize("kind", ["peaked", "middle", "flat", "equal", "ties", "sorted", "special"])
def test_masks_and_shapes_of_rows(mask: str, kind: str) -> None:  # spec 23, 26, 69, R16, R17
    rng = np.random.default_rng(len(mask) * 100 + len(kind))
    for dtype, width in (("bf16", 128256), ("fp32", 32000)):
        logits = cases.logits(rng, kind, 32, width, cases.DTYPES[dtype])
        rows = cases.rows(rng, 32, "mixed")
        bitmask = cases.bitmask(rng, mask, 32, width)
        compare((1, 4), logits, rows, vocab_size=width, bitmask=bitmask)


@pytest.mark.parametrize("touched", [20, 5000])
def test_overlay(touched: int) -> None:  # spec 93, 94, 96, 100, 101, 105, R19
    rng = np.random.default_rng(touched)
    for dtype, mask in (("bf16", "half"), ("fp32", "none"), ("fp16", "few")):
        logits = cases.logits(rng, "middle", 16, 32000, cases.DTYPES[dtype])
        rows = cases.rows(rng, 16, "mixed")
        more = {
            "vocab_size": 32000,
            "bitmask": cases.bitmask(rng, mask, 16, 32000),
            "overlay": cases.overlay(rng, 16, 32000, touched),
        }
        compare(CLUSTERS, logits, rows, **more)


def test_pruned_vocabulary_slices_strides_and_pool() -> None:  # spec 62, 65, R14, R15
    rng = np.random.default_rng(5)
    width, vocab = 9000, 32000
    d2t = torch.from_numpy((np.sort(rng.choice(vocab, width, replace=False)) - np.arange(width)).astype(np.int32))
    for more in ({"d2t": d2t}, {"bit_offset": 7001}, {"bit_offset": 31000}, {}):
        logits = cases.logits(rng, "middle", 16, width, torch.bfloat16, stride=width + 40 + len(more))
        rows = cases.rows(rng, 16, "mixed")
        status = torch.tensor([1, 0, 2, 1] * 4, dtype=torch.int32)
        index = torch.from_numpy(rng.permutation(40)[:16].astype(np.int32))
        index[5] = 77
        given = {
            "vocab_size": vocab,
            "bitmask": cases.bitmask(rng, "half", 40, vocab),
            "row_status": status,
            "row_index": index,
            "overlay": cases.overlay(rng, 16, vocab, 300),
            **more,
        }
        compare(CLUSTERS, logits, rows, **given)


@pytest.mark.parametrize("mask", ["none", "half", "few", "one", "dead"])
def test_the_greedy_launch_is_the_general_one(mask: str) -> None:  # spec 66, 130
    rng = np.random.default_rng(8)
    for kind, dtype in (("ties", "bf16"), ("special", "fp32"), ("equal", "fp16")):
        logits = cases.logits(rng, kind, 24, 32000, cases.DTYPES[dtype])
        rows, bitmask = cases.rows(rng, 24, "greedy"), cases.bitmask(rng, mask, 24, 32000)
        more = {"vocab_size": 32000, "bitmask": bitmask, "overlay": cases.overlay(rng, 24, 32000) if kind == "ties" else None}
        want = sample(logits, rows, return_descriptor=True, **more)
        for cluster in CLUSTERS:
            assert not differences(launch(logits, rows, cluster=cluster, greedy_only=True, **more), want)


def test_never_reads_a_banned_logit_and_never_writes() -> None:  # spec 23, R17
    rng = np.random.default_rng(9)
    logits = cases.logits(rng, "middle", 64, 128256, torch.bfloat16)
    bitmask = cases.bitmask(rng, "half", 64, 128256)
    assert bitmask is not None
    rows = cases.rows(rng, 64, "mixed")
    clean = launch(logits, rows, vocab_size=128256, bitmask=bitmask)
    allowed = np.unpackbits(bitmask.numpy().view(np.uint8), axis=1, bitorder="little")[:, :128256] != 0
    poisoned = logits.clone()
    poisoned[torch.from_numpy(~allowed)] = float("nan")
    gpu = poisoned.cuda()
    before = gpu.view(torch.int16).clone()
    for cluster in CLUSTERS:
        again = launch(gpu, rows, vocab_size=128256, bitmask=bitmask, cluster=cluster)
        assert torch.equal(again.token, clean.token) and torch.equal(again.status, clean.status)
    assert torch.equal(gpu.view(torch.int16), before)


def test_batch_graph_and_repeats_change_nothing() -> None:  # spec 88, R16, R18
    rng = np.random.default_rng(11)
    logits = cases.logits(rng, "middle", 96, 65537, torch.bfloat16).cuda()
    bitmask, rows = cases.bitmask(rng, "half", 96, 65537), cases.rows(rng, 96, "mixed")
    first = launch(logits, rows, vocab_size=65537, bitmask=bitmask)
    order = torch.from_numpy(rng.permutation(96))
    moved = SampleRows(*(getattr(rows, name)[order] for name in SampleRows.__slots__))
    assert bitmask is not None
    shuffled = launch(logits[order.cuda()].contiguous(), moved, vocab_size=65537, bitmask=bitmask[order])
    assert torch.equal(shuffled.token.cpu(), first.token.cpu()[order])
    device_rows, device_mask, out = cases.on_gpu(rows), bitmask.cuda(), SampleOutput.empty(96, "cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sample_into(out, logits, device_rows, vocab_size=65537, bitmask=device_mask)
    for _ in range(100):
        out.token.fill_(-7)
        graph.replay()
        assert torch.equal(out.token, first.token)


def test_equal_to_the_cpu_but_for_the_exponential() -> None:  # spec R16
    """Tokens differ only where the two exponentials differ in the last bit and the draw falls there: fewer than 1 in 10^5 expected,
    so that 10 or more of 131,584 are no chance (Poisson, below 1e-5)."""
    rng = np.random.default_rng(13)
    differing = total = 0
    for kind, width, count in (("peaked", 512, 43_691), ("middle", 512, 43_691), ("flat", 512, 43_690), ("middle", 32000, 512)):
        logits = cases.logits(rng, kind, count, width, torch.bfloat16)
        rows = cases.rows(rng, count, "mixed")
        want = sample(logits, rows, vocab_size=width)
        differing += int((launch(logits, rows, vocab_size=width).token.cpu() != want.token).sum())
        total += count
    print(f"tokens that differ from the CPU's: {differing} of {total}")
    assert differing < 10
