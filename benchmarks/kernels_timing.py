"""Inputs and clocks of the kernel table: graph replay over rotating inputs (cold L2) or over one (warm), median and p95."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

LAUNCHES, REPLAYS = 20, 15
COLD_BYTES = 200_000_000


class Timing(NamedTuple):
    """Microseconds a launch."""

    median: float
    p95: float


def time_graph(calls: Sequence[Callable[[], object]]) -> Timing:
    """Captures LAUNCHES calls, in turn, and replays the graph REPLAYS times."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(LAUNCHES):
            calls[i % len(calls)]()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / LAUNCHES)
    return Timing(statistics.median(times), sorted(times)[int(0.95 * len(times))])


def copies(row_bytes: int, rows: int, cold: bool) -> int:
    """How many input sets rotate."""
    return min(LAUNCHES, COLD_BYTES // (row_bytes * rows) + 1) if cold else 1


def make_logits(kind: str, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """flat: N(0, 1); middle: N(0, 3); peaked: N(0, 2) with eight tokens about 18 higher."""
    x = torch.randn(rows, width, device="cuda") * {"flat": 1, "middle": 3, "peaked": 2}[kind]
    if kind == "peaked":
        x.scatter_add_(1, torch.randint(0, width, (rows, 8), device="cuda"), torch.full((rows, 8), 18.0, device="cuda"))
    return x.to(dtype)


def make_mask(kind: str, rows: int, vocab_size: int) -> torch.Tensor | None:
    words = -(-vocab_size // 32)
    if kind == "none":
        return None
    if kind == "half":
        return torch.randint(-(1 << 31), 1 << 31, (rows, words), device="cuda").to(torch.int32)
    if kind == "one banned":
        mask = torch.full((rows, words), -1, dtype=torch.int32, device="cuda")
        mask[:, words // 3] = -9
        return mask
    allowed = torch.zeros((rows, words * 32), dtype=torch.bool, device="cuda")
    number = {"128 allowed": 128, "1 allowed": 1}[kind]
    allowed.scatter_(1, torch.randint(0, vocab_size, (rows, number), device="cuda"), True)
    return (allowed.view(rows, words, 32).long() << torch.arange(32, device="cuda")).sum(-1).to(torch.int32)


_READ = """
extern "C" __global__ void __launch_bounds__(512) read_all(const uint4* p, long long n, unsigned* out) {
    unsigned a = 0;
    long long step = (long long)gridDim.x * 512;
    long long i = blockIdx.x * 512ll + threadIdx.x;
    for (; i + 7 * step < n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j)
            asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v[j].x), "=r"(v[j].y), "=r"(v[j].z), "=r"(v[j].w) : "l"(p + i + j * step));
#pragma unroll
        for (int j = 0; j < 8; ++j) a ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (a == 12345) *out = a;
}
"""


def read_bandwidth() -> float:
    """Best bytes per microsecond of a plain streaming read of 4 GiB of random words: what "one read of the logits" costs."""
    import cuda.core as core

    device = core.Device()
    device.set_current()
    major, minor = device.compute_capability
    code = core.Program(_READ, "c++", core.ProgramOptions(arch=f"sm_{major}{minor}")).compile("cubin")
    kernel, data = code.get_kernel("read_all"), torch.randint(1 << 31, (1 << 29,), device="cuda")
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    best = 0.0
    for blocks in (264, 528, 1056, 2112):
        for _ in range(8):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            core.launch(
                core.Stream.from_handle(torch.cuda.current_stream().cuda_stream),
                core.LaunchConfig(grid=blocks, block=512),
                kernel,
                data.data_ptr(),
                data.nbytes // 16,
                sink.data_ptr(),
            )
            end.record()
            torch.cuda.synchronize()
            best = max(best, data.nbytes / (start.elapsed_time(end) * 1000))
    return best
