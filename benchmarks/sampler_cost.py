"""What each feature of the sampler costs beside plain sampling, at 1, 64 and 256 rows of 128,256 tokens.

    python -m benchmarks.sampler_cost --out sampler_cost.json                  on the GPU, by the kernels; within a minute
    python -m benchmarks.sampler_cost --device cpu --rows 2 --vocab-size 500   the same calls through the reference: a trial

Every line is one launch's work (the sampler, and what the feature adds before or after it) as a ratio to plain sampling
(temperature, top-k, top-p) in the same run. ``all`` is everything that the FAST tier does at once; the goal is a ratio below 1.6.
Beams, the FULL tier, are four of a request, compared with as many plain rows. Prints as it measures; the JSON at ``--out`` is
written again after each line, so that an interrupted run keeps what it has. Nothing outside the machine is needed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.sampler_cost_steps import COLD_SETS, Step, beam_call, make_step

GOAL = 1.6
SINGLE: dict[str, frozenset[str]] = {
    "plain": frozenset(),
    **{name: frozenset({name}) for name in ("guide", "bias", "bans", "penalties", "decay", "finish")},
    "logprobs": frozenset({"logprobs"}),
    "logprobs top 5": frozenset({"logprobs", "top"}),
    "logprobs top 5, processed": frozenset({"logprobs", "top", "processed"}),
    "all": frozenset({"guide", "bias", "bans", "penalties", "decay", "finish", "logprobs", "top"}),
}
"""Features by name; ``all`` is what a request can ask for at once."""
Clock = Callable[[Sequence[Callable[[], object]]], tuple[float, float]]


def host_clock(calls: Sequence[Callable[[], object]]) -> tuple[float, float]:
    """Median and 95th percentile in microseconds of a few calls."""
    times = []
    for turn in range(6):
        begun = time.perf_counter()
        calls[turn % len(calls)]()
        times.append(1e6 * (time.perf_counter() - begun))
    return statistics.median(times[1:]), max(times[1:])


def graph_clock(calls: Sequence[Callable[[], object]]) -> tuple[float, float]:
    from benchmarks.kernels_timing import time_graph

    timing = time_graph(calls)
    return timing.median, timing.p95


class Report:
    """Lines as they are measured; ``plain_us`` by row count is what the ratios are to."""

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        self._path, self._machine = path, machine
        self._plain_us: dict[int, float] = {}
        self.lines: list[dict[str, Any]] = []

    def add(self, tier: str, feature: str, rows: int, clock: tuple[float, float]) -> None:
        if feature == "plain":
            self._plain_us[rows] = clock[0]
        ratio = clock[0] / self._plain_us[rows]
        self.lines.append({
            "tier": tier, "feature": feature, "rows": rows, "median_us": round(clock[0], 2), "p95_us": round(clock[1], 2),
            "ratio_to_plain": round(ratio, 3),
        })  # fmt: skip
        print(f"{tier} {feature:28s} {rows:4d} rows  {clock[0]:9.2f} us  p95 {clock[1]:9.2f}  x {ratio:6.3f} of plain", flush=True)
        reached = {line["rows"]: line["ratio_to_plain"] < GOAL for line in self.lines if line["feature"] == "all"}
        document = {"machine": self._machine, "goal": f"all below {GOAL} x plain", "reached": reached, "rows": self.lines}
        self._path.write_text(json.dumps(document, indent=1))


def measure(report: Report, rows: int, vocab_size: int, device: str, clock: Clock) -> None:
    sets = [make_step(rows, vocab_size, device, seed) for seed in range(COLD_SETS if device == "cuda" else 1)]
    for feature, parts in SINGLE.items():
        report.add("FAST", feature, rows, clock([_bound(step, parts) for step in sets]))
    report.add("FULL", "beams of 4", rows, clock([beam_call(rows, vocab_size, device)]))


def _bound(step: Step, parts: frozenset[str]) -> Callable[[], object]:
    return lambda: step.run(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="sampler_cost.json")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--vocab-size", type=int, default=128_256)
    options = parser.parse_args(arguments)
    torch.manual_seed(1)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu, by the reference"
    machine = {"device": name, "torch": torch.__version__, "vocab_size": options.vocab_size, "logits": "bfloat16"}
    report = Report(Path(options.out), machine)
    for rows in options.rows:
        measure(report, rows, options.vocab_size, options.device, graph_clock if options.device == "cuda" else host_clock)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
