"""``python -m tests.tensor_parallel_rank RANK RANKS PORT``: one process of a gloo group; prints what it saw as JSON."""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time

import torch
import torch.distributed as dist

from gpu_worker.sampler.tensor_parallel import Group, SealedRows, TensorParallelSampler, VocabularySlice
from kernels.reference import RowStatus, sample
from tests.tensor_parallel_batches import FIELDS, differences, random_batch

BATCHES = ((90, 1000, 6), (90, 1003, 6), (20, 128254, 3))
HOLD_STEPS = 300


def digest(result):
    values = [getattr(result, name) for name in FIELDS]
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in values if v is not None)).hexdigest()


def equality(group):
    """Rank 0 compares with the reference; all tell what they had."""
    digests, wrong = [], []
    for count, columns, rows in BATCHES:
        for seed in range(count):
            batch = random_batch(seed + columns, columns=columns, rows=rows)
            part = VocabularySlice.of_rank(group.rank, group.size, columns, batch.vocab_size, batch.d2t)
            local = batch.logits[:, part.start : part.start + part.width]
            got = TensorParallelSampler(group, part).sample(local, batch.rows, **batch.more)
            digests.append(digest(got))
            if group.rank == 0:
                want = sample(batch.logits, batch.rows, vocab_size=batch.vocab_size, d2t=batch.d2t, **batch.more)
                wrong += [f"{columns}, {seed}: {w}" for w in differences(got, want)]
    return digests, wrong


def holds(group):
    """Rank 0 seals, ranks are late at random: what each step's tokens and statuses were, and what this rank itself held."""
    own, columns, rows, seen = random.Random(group.rank), 100, 4, []
    batch = random_batch(1, columns=columns, rows=rows, d2t=False, guided=True, logprobs=None)
    part = VocabularySlice.of_rank(group.rank, group.size, columns, batch.vocab_size)
    local = batch.logits[:, part.start : part.start + part.width]
    for step in range(HOLD_STEPS):
        status = torch.full((rows,), int(RowStatus.GUIDED), dtype=torch.int32)
        batch.rows.seed = torch.full((rows,), own.getrandbits(62))  # entropy of rank 0; the others' is never used
        sealed = SealedRows(step, batch.rows, status, status.long())
        sealed = sealed.send(group) if group.rank == 0 else SealedRows.receive(group, rows)
        late = own.randrange(rows) if own.random() < 0.3 else -1
        mine = sealed.status.clone()
        if late >= 0:
            mine[late] = RowStatus.HOLD
            time.sleep(own.random() * 0.003)
        got = TensorParallelSampler(group, part).sample(
            local, sealed.rows, bitmask=batch.more["bitmask"], row_status=mine, launch=sealed.launch
        )
        seen.append([late, got.token.tolist(), got.status.tolist()])
    return seen


def main():
    rank, ranks, port = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    group = Group(dist.group.WORLD)
    digests, wrong = equality(group)
    print(json.dumps({"digests": digests, "wrong": wrong, "holds": holds(group)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
