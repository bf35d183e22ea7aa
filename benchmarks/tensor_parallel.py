"""``python -m benchmarks.tensor_parallel``: sampling of sharded logits on two ranks: equality, agreement on holds, time, bytes.

Ranks are processes, over NCCL with a device each, or over gloo where there are too few devices (``--backend gloo``: they share).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from benchmarks import report
from gpu_worker.sampler.tensor_parallel import Group, SealedRows, TensorParallelSampler, VocabularySlice
from kernels.reference import RowStatus, SampleRows, sample
from kernels.sample import SampleOutput, sample_into
from tests.tensor_parallel_batches import Batch, differences, random_batch

WIDTHS = (128000, 128254, 128256, 151936, 200064)


class Rank:
    """One process: its group, device and the two samplers that are compared, over ranks and alone."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.device, self.group = options, device, Group(dist.group.WORLD)
        self.first = self.group.rank == 0
        self.deadline = time.monotonic() + options.seconds

    def sampler(self, batch: Batch, *, alone: bool = False) -> tuple[TensorParallelSampler, torch.Tensor]:
        group = Group() if alone else self.group
        d2t = None if batch.d2t is None else batch.d2t.to(self.device)
        part = VocabularySlice.of_rank(group.rank, group.size, batch.logits.shape[1], batch.vocab_size, d2t, self.device)
        local = batch.logits[:, part.start : part.start + part.width].contiguous()
        return TensorParallelSampler(group, part), local.to(self.device)

    def more(self, batch: Batch) -> dict:
        return {k: v.to(self.device) if isinstance(v, torch.Tensor) else v for k, v in batch.more.items()}

    def goes_on(self, turn: int, most: int) -> bool:
        """Whether rank 0 wants another turn, so that a time limit ends all ranks at the same one."""
        wanted = torch.tensor([int(turn < most and time.monotonic() < self.deadline)], device=self.device)
        return bool(self.group.from_first(wanted).item())

    def equality(self) -> dict:
        """Random batches over ranks against the same code alone on the whole rows, every 20th against the reference."""
        turn, failures, rows, checked = 0, [], 0, 0
        while self.goes_on(turn, self.options.batches):
            width = self.options.widths[turn % len(self.options.widths)]
            dtype = (torch.float32, torch.bfloat16)[turn // 5 % 2]
            batch = random_batch(turn, columns=width, rows=4, dtype=dtype, d2t=bool(turn // 10 % 2), guided=bool(turn // 20 % 2))
            sampler, local = self.sampler(batch)
            got = sampler.sample(local, batch.rows, **self.more(batch))
            whole, logits = self.sampler(batch, alone=True)
            wrong = differences(got, whole.sample(logits, batch.rows, **self.more(batch)))
            if turn % 20 == 0 and self.first:
                want = sample(batch.logits, batch.rows, vocab_size=batch.vocab_size, d2t=batch.d2t, **batch.more)
                wrong += differences(got, want)
                checked += 1
            failures += [f"batch {turn}: {w}" for w in wrong]
            turn, rows = turn + 1, rows + 4
        return {"batches": turn, "rows": rows, "against_reference": checked, "failures": failures}

    def holds(self) -> dict:
        """Steps sealed by rank 0, ranks late at random: delays and HOLDs that only one of them knows of."""
        own, columns, rows, turn, disagreed = random.Random(self.group.rank), 1003, 4, 0, 0
        batch = random_batch(1, columns=columns, rows=rows, d2t=False, guided=True, logprobs=None)
        sampler, local = self.sampler(batch)
        mask = batch.more["bitmask"].to(self.device)
        while self.goes_on(turn, self.options.steps):
            sealed = self._sealed(turn, batch.rows, rows)
            status = sealed.status.clone()
            late = own.random() < 0.2
            if late:
                status[own.randrange(rows)] = RowStatus.HOLD
            if own.random() < 0.02:
                time.sleep(own.random() * 0.002)
            got = sampler.sample(local, sealed.rows, bitmask=mask, row_status=status.to(self.device), launch=sealed.launch)
            any_held = self.group.maximum((status == RowStatus.HOLD).long().to(self.device))
            told = self.group.gather(torch.stack([got.token.long(), got.status.long()]))
            disagreed += int(not (told == told[0]).all() or not ((got.status == 8) == (any_held == 1)).all())
            turn += 1
        return {"steps": turn, "disagreed": disagreed}

    def _sealed(self, turn: int, rows: SampleRows, count: int) -> SealedRows:
        if not self.first:
            return SealedRows.receive(self.group, count, self.device)
        status = torch.full((count,), int(RowStatus.GUIDED), dtype=torch.int32)
        rows.seed = torch.from_numpy(np.frombuffer(os.urandom(8 * count), dtype=np.int64).copy())
        return SealedRows(turn, rows, status, torch.full((count,), turn)).send(self.group, self.device)

    def timing(self) -> list[dict]:
        table = []
        for count in self.options.rows:
            for name, params in _CASES.items():
                table.append(self._timed(count, name, SampleRows.uniform(count, seed=3, **params)))
        return table

    def _timed(self, count: int, name: str, rows: SampleRows) -> dict:
        width = self.options.widths[0]
        logits = torch.randn((count, width), generator=torch.Generator().manual_seed(1)).mul_(4).bfloat16()
        batch = Batch(logits, rows, width, None, {})
        mask = torch.full((count, -(-width // 32)), -1, dtype=torch.int32, device=self.device)
        sharded, local = self.sampler(batch)
        alone, whole = self.sampler(batch, alone=True)
        gathered = torch.empty((self.group.size, *local.shape), dtype=local.dtype, device=self.device)
        self.group.sent_bytes = self.group.calls = 0
        sharded.sample(local, rows, bitmask=mask)
        sent, calls = self.group.sent_bytes / count, self.group.calls

        def usual() -> None:
            if self.options.backend == "nccl":
                dist.all_gather_into_tensor(gathered, local)
            alone.sample(gathered.permute(1, 0, 2).reshape(count, -1), rows, bitmask=mask)

        result = {"rows": count, "filters": name, "ranks": self.group.size}
        result["sharded ms"] = self._median(lambda: sharded.sample(local, rows, bitmask=mask))
        result["one rank ms"] = self._alone(lambda: alone.sample(whole, rows, bitmask=mask))
        if self.device.type == "cuda":
            result["fused kernel, one rank ms"] = self._alone(self._fused(whole, rows, mask))
        if self.options.backend == "nccl":
            result["gather logits, sample ms"] = self._median(usual)
        return result | {"bytes a row": sent, "bytes a row of gathered logits": local.shape[1] * 2, "collectives": calls}

    def _fused(self, logits: torch.Tensor, rows: SampleRows, mask: torch.Tensor) -> Callable[[], None]:
        out = SampleOutput.empty(len(rows), self.device)
        on_device = SampleRows(**{f.name: getattr(rows, f.name).to(self.device) for f in fields(rows)})
        return lambda: sample_into(out, logits, on_device, vocab_size=logits.shape[1], bitmask=mask)

    def _alone(self, work: Callable[[], object]) -> float:
        """On rank 0 while the others wait: they may share its device."""
        found = self._median(work) if self.first else 0.0
        self.group.from_first(torch.zeros(1, dtype=torch.int64, device=self.device))
        return found

    def _median(self, work: Callable[[], object]) -> float:
        times = []
        for _ in range(3 + self.options.repeats):
            self._wait()
            began = time.perf_counter()
            work()
            self._wait()
            times.append(1e3 * (time.perf_counter() - began))
        return float(np.median(times[3:]))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


_CASES = {
    "temperature": {"temperature": 1.0}, "top_k 50": {"temperature": 1.0, "top_k": 50},
    "top_p 0.9, T 0.3": {"temperature": 0.3, "top_p": 0.9}, "top_p 0.95, T 4": {"temperature": 4.0, "top_p": 0.95},
    "greedy": {"temperature": 0.0},
}  # fmt: skip


def main() -> None:
    options = _options()
    port = _free_port()
    processes.spawn(_rank, args=(options, port), nprocs=options.ranks, join=True)


def _rank(rank: int, options: argparse.Namespace, port: int) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.ranks))
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(options.backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.ranks)
    at_work = Rank(options, device)
    results = {}
    for name in ("equality", "holds", "timing"):
        at_work.deadline = time.monotonic() + options.seconds
        results[name] = getattr(at_work, name)()
        if rank == 0:  # after each, so that a run that is cut short leaves what it has
            _publish(options, results)
    dist.destroy_process_group()


def _publish(options: argparse.Namespace, results: dict) -> None:
    names = ("device", "backend", "ranks")
    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    results = {"machine": report.machine() | {"device": device}, "options": {n: getattr(options, n) for n in names}} | results
    print(report.table(results["timing"]) if "timing" in results else json.dumps(results), flush=True)
    folder = Path(os.environ.get("OUT", report.FOLDER))
    folder.mkdir(exist_ok=True)
    (folder / "tensor_parallel.json").write_text(json.dumps(results, indent=1) + "\n")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--seconds", type=float, default=120.0, help="at most, for each of equality and holds")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    return parser.parse_args()


if __name__ == "__main__":
    main()
