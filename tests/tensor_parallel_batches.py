"""Random batches for tensor-parallel sampling, and ranks that are threads of one process."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist

from gpu_worker.sampler.tensor_parallel import Group
from kernels.reference import RowStatus, SampleRows

FIELDS = ("token", "status", "logprob", "rank", "top_ids", "top_logprobs")


@dataclass
class Batch:
    """A batch in full; ``more`` are the keyword arguments that the reference and the sampler share."""

    logits: torch.Tensor
    rows: SampleRows
    vocab_size: int
    d2t: torch.Tensor | None
    more: dict = field(default_factory=dict)


def random_batch(seed, *, columns=1000, rows=8, dtype=torch.float32, d2t=None, guided=None, logprobs="any", spread=3.0):
    """All filters mixed per row, ties, odd values, masks from all to one; every choice follows from the seed."""
    rng = np.random.default_rng(seed)
    vocab_size, table = columns - int(rng.integers(0, 5)), None
    if d2t if d2t is not None else rng.random() < 0.4:
        vocab_size = columns * 2
        table = torch.from_numpy(np.sort(rng.choice(vocab_size, columns, replace=False)) - np.arange(columns)).int()
    logits = _logits(rng, rows, columns, spread).to(dtype)
    more = {"keep_ties": bool(rng.random() < 0.2)}
    if guided if guided is not None else rng.random() < 0.7:
        more |= _masks(rng, rows, vocab_size)
    more["logprobs"] = [None, "raw", "processed"][rng.integers(3)] if logprobs == "any" else logprobs
    more["num_logprobs"] = int(rng.integers(0, 6)) if more["logprobs"] else 0
    return Batch(logits, _params(rng, rows, columns), vocab_size, table, more)


def _logits(rng, rows, columns, spread):
    x = rng.normal(0, spread, (rows, columns)).astype(np.float32)
    for row in x:
        kind = rng.integers(8)
        if kind == 0:
            row[:] = np.round(row)  # ties everywhere
        elif kind == 1:
            row[:] = rng.choice([-1.0, 0.0, -0.0, 1.0], columns)
        elif kind == 2:
            row[rng.integers(columns, size=3)] = [np.nan, np.inf, -np.inf][rng.integers(3)]
        elif kind == 3:
            row *= 1e4
    return torch.from_numpy(x)


def _params(rng, rows, columns):
    def pick(values, dtype):
        return torch.tensor(rng.choice(values, rows), dtype=dtype)

    return SampleRows(
        pick([0.0, 0.3, 0.7, 1.0, 1.0, 1.7, 1e-6, 50.0], torch.float32),
        pick([0, 0, 0, 1, 2, 5, 50, columns // 2, columns + 3, min(1025, columns)], torch.int32),
        pick([1.0, 1.0, 0.0, 0.1, 0.5, 0.9, 0.95, 0.999, 1e-9], torch.float32),
        pick([0.0, 0.0, 0.02, 0.3, 1.0, 1.5], torch.float32),
        torch.from_numpy(rng.integers(-(1 << 63), 1 << 63, rows, dtype=np.int64)),
        torch.from_numpy(rng.integers(0, 1 << 40, rows)),
        torch.from_numpy(rng.integers(0, 5, rows).astype(np.int32)),
    )


def _masks(rng, rows, vocab_size):
    words = -(-vocab_size // 32) + int(rng.integers(0, 2))
    bits = np.zeros((rows, words * 32), np.uint8)
    for row in bits:
        share = rng.choice([0.0, 0.001, 0.5, 0.99, 1.0], p=[0.1, 0.2, 0.3, 0.2, 0.2])
        row[:] = rng.random(row.size) < share
        row[rng.integers(vocab_size)] |= share > 0
    mask = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
    status = rng.choice([RowStatus.UNGUIDED, RowStatus.GUIDED, RowStatus.HOLD, 7], rows, p=[0.2, 0.65, 0.1, 0.05])
    index = rng.permutation(rows)
    index[rng.random(rows) < 0.05] = rows
    by_row = {"row_index": index, "row_status": status}
    return {"bitmask": mask} | {name: torch.from_numpy(value.astype(np.int32)) for name, value in by_row.items()}


def differences(got, want):
    """Names of outputs that are not bitwise the same, with the first row that differs."""
    found = []
    for name in FIELDS:
        a, b = getattr(got, name), getattr(want, name)
        if (a is None) != (b is None):
            found.append(f"{name} is missing")
        elif a is not None and not torch.equal(a.cpu(), b.cpu()):
            rows = torch.nonzero((a.cpu() != b.cpu()).reshape(len(a), -1).any(1)).flatten().tolist()
            found.append(f"{name}: rows {rows}, {a[rows[0]].tolist()} not {b[rows[0]].tolist()}")
    return found


class ThreadGroup(Group):
    """Ranks that are threads: the same calls as over a process group, through a shared list."""

    def __init__(self, rank, board):
        super().__init__()
        self.rank, self.size, self._board = rank, board.size, board

    def _all(self, values):
        return self._board.exchange(self.rank, values)

    def _reduce(self, values, operation):
        stacked = torch.stack(self._all(values))
        values.copy_(stacked.amax(0) if operation == dist.ReduceOp.MAX else stacked.sum(0))
        return values

    def gather(self, values):
        return torch.stack(self._all(values))

    def from_first(self, values):
        return values.copy_(self._all(values)[0])


class Board:
    def __init__(self, size):
        self.size, self._barrier, self._said = size, threading.Barrier(size, timeout=60), [None] * size

    def exchange(self, rank, values):
        self._said[rank] = values.clone()
        self._barrier.wait()
        said = list(self._said)
        self._barrier.wait()
        return said

    def run(self, work):
        """``work(group)`` on every rank; their results by rank. The first error is raised."""
        results, errors = [None] * self.size, []

        def rank(i):
            try:
                results[i] = work(ThreadGroup(i, self))
            except Exception as error:
                errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=rank, args=(i,)) for i in range(self.size)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        if errors:
            raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
        return results
