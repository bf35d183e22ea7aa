"""The kernel table: our kernels, the floor of one read of the logits, and the peers, measured side by side in one run.

    python -m benchmarks.kernels --out FOLDER [--peers libpeers.so] [--site FOLDER_WITH_XGRAMMAR] [--quick]

Prints rows as they are measured; writes kernels.json. Needs a CUDA device; peers are left out where not named.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels_peers import Peers, torch_sampler, triton_mask
from benchmarks.kernels_timing import Timing, copies, make_logits, make_mask, read_bandwidth, time_graph
from kernels.bitmask import apply_bitmask
from kernels.inputs import GpuInputs
from kernels.reference import Drafts, SampleRows
from kernels.sample import SampleOutput, sample_into
from kernels.verify import empty_result, match, reject

BF16, FP32 = torch.bfloat16, torch.float32
V = 128_256
PARAMETERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "k=50": {"temperature": 0.8, "top_k": 50},
    "p=0.95": {"top_p": 0.95},
    "min_p=0.05": {"min_p": 0.05},
    "k=50 p=0.9": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
}


class Table:
    """Measured rows, printed at once, kept for the JSON."""

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth, self.rows = bandwidth, list[dict[str, Any]]()

    def add(
        self, what: str, rows: int, width: int, dtype: torch.dtype, mask: str, logits: str, timing: Timing, cold: bool = True
    ) -> float:
        floor = rows * (width * dtype.itemsize + (0 if mask == "none" else width / 8)) / self.bandwidth
        self.rows.append(
            {
                "what": what,
                "rows": rows,
                "vocabulary": width,
                "dtype": str(dtype)[6:],
                "mask": mask,
                "logits": logits,
                "median_us": round(timing.median, 2),
                "p95_us": round(timing.p95, 2),
                "floor_us": round(floor, 2),
                "ratio": round(timing.median / floor, 2),
                "cold": cold,
            }
        )
        print(
            f"{what:34s} {rows:5d} x {width:6d} {str(dtype)[6:]:8s} {mask:11s} {logits:7s} {'cold' if cold else 'warm'} "
            f"{timing.median:8.2f} us  p95 {timing.p95:8.2f}  floor {floor:7.2f}  x {timing.median / floor:6.2f}",
            flush=True,
        )
        return timing.median


def parameters(name: str, rows: int) -> SampleRows:
    names = [n for n in PARAMETERS if n in (name, "") or name == "mixed"]
    made = [SampleRows.uniform(1, seed=i, **PARAMETERS[names[i % len(names)]]) for i in range(rows)]
    return SampleRows(*(torch.cat([getattr(r, field) for r in made]).cuda() for field in SampleRows.__slots__))


def ours(table: Table, rows: int, width: int, dtype: torch.dtype, mask: str, logits: str, name: str, cold: bool = True) -> float:
    number = copies(width * dtype.itemsize, rows, cold)
    sets = [(make_logits(logits, rows, width, dtype), make_mask(mask, rows, width)) for _ in range(number)]
    given, out = parameters(name, rows), SampleOutput.empty(rows, "cuda")
    timing = time_graph(
        [partial(sample_into, out, x, given, vocab_size=width, bitmask=m, greedy_only=name == "greedy") for x, m in sets]
    )
    return table.add(f"sample {name}", rows, width, dtype, mask, logits, timing, cold)


def targets(table: Table) -> None:
    """The cells that the project set itself goals for."""
    for rows, dtype, mask, logits, name in (
        (256, BF16, "one banned", "middle", "k=50 p=0.9"),
        (256, BF16, "half", "middle", "k=50 p=0.9"),
        (256, FP32, "one banned", "middle", "k=50 p=0.9"),
        (256, BF16, "one banned", "flat", "p=0.95"),
        (256, FP32, "one banned", "flat", "p=0.95"),
        (1024, BF16, "128 allowed", "middle", "greedy"),
        (1024, BF16, "128 allowed", "middle", "k=50 p=0.9"),
        (1024, BF16, "128 allowed", "middle", "temperature"),
        (256, BF16, "half", "middle", "greedy"),
        (1024, BF16, "half", "middle", "greedy"),
        *((1, BF16, "half", "middle", name) for name in PARAMETERS),
    ):
        ours(table, rows, V, dtype, mask, logits, name)


def grid(table: Table, quick: bool) -> None:
    for name in (*PARAMETERS, "mixed"):
        for rows in (1, 16, 64, 256, 1024):
            for width in (V,) if quick else (32_000, V, 151_936, 256_000):
                ours(table, rows, width, BF16, "one banned", "middle", name)
            ours(table, rows, V, FP32, "one banned", "middle", name)
        for rows in (1, 16, 64):
            ours(table, rows, V, BF16, "one banned", "middle", name, cold=False)
    for name in ("greedy", "temperature", "p=0.95", "k=50 p=0.9"):
        for rows in (256, 1024):
            for mask in ("none", "one banned", "half", "128 allowed", "1 allowed"):
                for logits in ("peaked", "flat"):
                    ours(table, rows, V, BF16, mask, logits, name)
    ours(table, 256, V, FP32, "one banned", "flat", "p=0.95")


def masks(table: Table, library: str | None, site: str | None) -> None:
    triton = triton_mask(site) if site else None
    for dtype in (BF16, FP32):
        for rows in (1, 16, 64, 256, 1024):
            for kind in ("one banned", "half", "128 allowed"):
                _mask_cell(table, rows, dtype, kind, library, triton if kind == "half" else None)


def _mask_cell(table: Table, rows: int, dtype: torch.dtype, kind: str, library: str | None, triton: Any) -> None:
    x, m = make_logits("middle", rows, V, dtype), make_mask(kind, rows, V)
    if m is None:
        raise ValueError("a mask is needed here")
    xs = [x.clone() for _ in range(copies(V * dtype.itemsize, rows, True))]
    calls: dict[str, Any] = {"apply_bitmask": lambda x: apply_bitmask(x, m, None, None, V)}
    if library:
        peer, check = Peers(library, rows, V), x.clone()
        calls["xgrammar CUDA mask"] = lambda x: peer.mask(x, m)
        peer.mask(check, m)
        apply_bitmask(xs[0], m, None, None, V)
        if not torch.equal(check, xs[0]):
            raise RuntimeError("our mask and xgrammar's disagree")
    if triton:
        calls["xgrammar Triton mask"] = lambda x: triton(x, m)
    for name, call in calls.items():
        table.add(name, rows, V, dtype, kind, "middle", time_graph([partial(call, x) for x in xs]))


def chains(table: Table, library: str) -> None:
    """A peer's total: mask, cast, softmax, filter and draw."""
    for rows, dtype, logits in (
        (256, BF16, "middle"),
        (256, FP32, "middle"),
        (1024, BF16, "middle"),
        (256, BF16, "flat"),
        (256, FP32, "flat"),
        (1, BF16, "middle"),
        (64, BF16, "middle"),
    ):
        _chain_cells(table, rows, dtype, logits, Peers(library, rows, V))


def _chain_cells(table: Table, rows: int, dtype: torch.dtype, logits: str, peer: Peers) -> None:
    xs = [make_logits(logits, rows, V, dtype) for _ in range(copies(V * dtype.itemsize, rows, True))]
    m, allowed = make_mask("one banned", rows, V), torch.ones((rows, V), dtype=torch.bool, device="cuda")
    chain: dict[str, Any] = {
        "xgrammar + FlashInfer joint k p": lambda x: (peer.mask(x, m), peer.joint(x, 50, 0.9)),
        "xgrammar + FlashInfer top-k first": lambda x: (peer.mask(x, m), peer.top_k_first(x, 50, 0.9)),
        "xgrammar + FlashInfer p=0.95": lambda x: (peer.mask(x, m), peer.top_p(x, 0.95)),
        "xgrammar + FlashInfer min_p": lambda x: (peer.mask(x, m), peer.min_p(x, 0.05)),
        "xgrammar + FlashInfer temperature": lambda x: (peer.mask(x, m), peer.plain(x)),
        "torch masked argmax": lambda x: x.masked_fill(~allowed, -torch.inf).argmax(-1),
    }
    if rows <= 256:
        chain["torch k=50 p=0.9"] = lambda x: torch_sampler(x, allowed, 50, 0.9)
    for name, call in chain.items():
        table.add(name, rows, V, dtype, "one banned", logits, time_graph([partial(call, x) for x in xs]))


def verification(table: Table) -> None:
    """64 requests of 4 drafts: target descriptors and the walk, against the sampler alone on the same 320 rows."""
    for name in ("temperature", "k=50 p=0.9"):
        _verification_cells(table, name, 64, 4)


def _verification_cells(table: Table, name: str, batch: int, n: int) -> None:
    target, near = make_logits("middle", batch * (n + 1), V, BF16), make_logits("middle", batch * n, V, BF16)
    mask = make_mask("one banned", batch * (n + 1), V)
    rows, draft_rows = parameters(name, batch * (n + 1)), parameters(name, batch * n)
    near = (target.view(batch, n + 1, V)[:, :n].reshape(-1, V).float() + 0.1 * near.float()).to(BF16)
    out = SampleOutput.empty(batch * (n + 1), "cuda", descriptor=True)
    drawn = SampleOutput.empty(batch * n, "cuda", descriptor=True)
    sample_into(drawn, near, draft_rows, vocab_size=V)
    drafts = Drafts(drawn.token.view(batch, n), torch.full((batch,), n, dtype=torch.int32, device="cuda"))
    result, p, q = empty_result(batch, n, "cuda"), out.descriptor, drawn.descriptor
    if p is None or q is None:
        raise ValueError("descriptors were asked for")
    inputs, draft_inputs = GpuInputs(target, rows, V, mask), GpuInputs(near, draft_rows, V)
    describe = partial(sample_into, out, target, rows, vocab_size=V, bitmask=mask)
    calls: dict[str, Any] = {
        "sampler alone": describe,
        "and rejection": lambda: (describe(), reject(result, drafts, inputs, p, out.status, draft_inputs, q)),
        "and matching": lambda: (describe(), match(result, drafts, out.token, out.status)),
    }
    for what, call in calls.items():
        table.add(f"verify {name}: {what}", batch * (n + 1), V, BF16, "one banned", "middle", time_graph([call]), False)
    print("  drafts accepted on average:", result.accepted.float().mean().item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="benchmarks/out")
    parser.add_argument("--peers")
    parser.add_argument("--site")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(1)
    bandwidth = read_bandwidth()
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "read_TB_s": round(bandwidth / 1e6, 3),
        "torch": torch.__version__,
        **{name: importlib.metadata.version(name) for name in ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "triton")},
    }
    print(machine, flush=True)
    table = Table(bandwidth)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        targets(table)
        verification(table)
        if options.peers:
            chains(table, options.peers)
        masks(table, options.peers, options.site)
        grid(table, options.quick)
    finally:  # an interrupted run keeps what it measured
        (folder / "kernels.json").write_text(json.dumps({"machine": machine, "rows": table.rows}, indent=1))


if __name__ == "__main__":
    main()
