"""The captured step by itself, one GPU: what a step costs the host and the device beside its forward, and how fast it wakes.

    python -m benchmarks.gpu_step [STEPS]

V = 128,256, no forward to speak of, every row guided by a dense row of its own (half of the tokens). ``behind the flag``: median
time from the store of the flag to the tokens in host memory. ``wake-up``: the same with nothing to sample. ``seed``: all rows in
full copied in every step, logits masked in place, then sampled (``benchmarks.seeds_way``). Kernels: ours in a step, the mean of
plain and full ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks import report, seeds_way
from gpu_worker import graph
from gpu_worker.cuda_pipeline import CudaPipeline
from gpu_worker.descriptor import Descriptor, SlotAction
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticRunner
from gpu_worker.models.vocabulary import invented_vocabulary
from kernels.reference import Overlay, SampleRows, TokenList

VOCAB, SLOTS = 128_256, (1, 64, 256)
Settings = dict[str, Any]


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    ours, rows = graph.run_rest, []
    for slots in SLOTS:
        for name, settings in (("ours", {}), ("ours, all features", {"full": True}), ("seed", {})):
            graph.run_rest = seeds_way.run_rest if name == "seed" else ours
            rows.append(_measure(slots, name, steps, **settings))
            print(report.table(rows[-1:]), flush=True)
    graph.run_rest = ours
    report.publish("gpu-step", rows)


def _measure(slots: int, name: str, steps: int, *, full: bool = False) -> Settings:
    runner = SyntheticRunner(invented_vocabulary(VOCAB), RunnerShape(max_slots=slots, max_length=8192), device="cuda")
    runner.warm_up()
    nodes = _counted(lambda: CudaPipeline(runner, 20.0, eager=True).close(), len(runner.decode_shapes) * 2)
    pipeline = CudaPipeline(runner, 20.0)
    try:
        for slot in range(slots):
            pipeline.prefill(slot, [10 + slot % 1000, 20], 0)
            pipeline.admit(slot, slot + 1, 40, 2, plain=not full)
        make = _descriptors(pipeline, slots, full)
        host, behind = np.array([_step(pipeline, make) for _ in range(steps)]).T
        _, idle = np.array([_step(pipeline, make, hold=True) for _ in range(steps)]).T
    finally:
        pipeline.close()
    warm = steps // 4
    return {
        "slots": slots, "way": name, "host us/step": 1e6 * float(np.median(host[warm:])),
        "behind the flag us": 1e6 * float(np.median(behind[warm:])), "wake-up us p50": 1e6 * float(np.median(idle[warm:])),
        "p99": 1e6 * float(np.percentile(idle[warm:], 99)), "launches by the host": 1, "our kernels": nodes,
    }  # fmt: skip


def _descriptors(pipeline: CudaPipeline, slots: int, full: bool) -> Callable[[int, int, bool], Descriptor]:
    dice = np.random.default_rng(1)
    for bits in pipeline.row_buffers():
        bits[:] = dice.integers(-(1 << 31), 1 << 31, bits.shape, dtype=np.int64).astype(np.int32)
    bits = [torch.from_numpy(each) for each in pipeline.row_buffers()]
    overlay = None
    if full:
        ids = [dice.choice(VOCAB, 20, replace=False).tolist() for _ in range(slots)]
        overlay = Overlay(TokenList.of(ids, [[1.0] * 20] * slots), None, TokenList.of(ids))

    def make(number: int, position: int, hold: bool) -> Descriptor:
        action = np.full(slots, SlotAction.HOLD if hold else SlotAction.GUIDED, np.int32)
        rows = SampleRows.uniform(slots, temperature=0.9, top_p=0.95, seed=3, offset=position)
        logprobs = {"num_logprobs": 5} if full else {}
        return Descriptor(number, action, bits[number % 2], np.arange(1, slots + 1), rows, overlay, **logprobs)

    return make


def _step(pipeline: CudaPipeline, make: Callable[[int, int, bool], Descriptor], *, hold: bool = False) -> tuple[float, float]:
    """Host seconds in launch, seal and reading; seconds from the flag to the tokens. The device has been ready for a while."""
    begun = time.perf_counter()
    number = pipeline.launch()
    launched = time.perf_counter()
    time.sleep(0.003)
    descriptor, arrived = make(number, number, hold), pipeline._ring[number % 2].result["launch"]
    sealing = time.perf_counter()
    pipeline.seal(descriptor)
    sealed = time.perf_counter()
    while arrived[0] != number:
        pass
    seen = time.perf_counter()
    pipeline.collect(20.0)
    return launched - begun + sealed - sealing + time.perf_counter() - seen, seen - sealed


def _counted(work: Callable[[], object], shapes: int) -> float:
    """Launches of our kernels that ``work`` makes, a shape."""
    from cuda.bindings import driver

    found, inner = [0], driver.cuLaunchKernelEx

    def counting(*arguments: Any) -> Any:
        found[0] += 1
        return inner(*arguments)

    driver.cuLaunchKernelEx = counting
    try:
        work()
    finally:
        driver.cuLaunchKernelEx = inner
    return found[0] / shapes


if __name__ == "__main__":
    main()
