"""Draws benchmarks/results/kernels.svg from kernels.json: sampling at 256 rows, ours beside the peers and the floor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
BARS = (
    ("one read of logits and mask", None, "middle", "#999"),
    ("ours: greedy", "sample greedy", "middle", "#2a7"),
    ("torch: masked argmax", "torch masked argmax", "middle", "#c84"),
    ("ours: k=50 p=0.9", "sample k=50 p=0.9", "middle", "#2a7"),
    ("xgrammar + FlashInfer, top-k first", "xgrammar + FlashInfer top-k first", "middle", "#c84"),
    ("xgrammar + FlashInfer, joint", "xgrammar + FlashInfer joint k p", "middle", "#c84"),
    ("torch: k=50 p=0.9", "torch k=50 p=0.9", "middle", "#c84"),
    ("ours: temperature", "sample temperature", "middle", "#2a7"),
    ("xgrammar + FlashInfer, temperature", "xgrammar + FlashInfer temperature", "middle", "#c84"),
    ("ours: p=0.95, flat logits", "sample p=0.95", "flat", "#2a7"),
    ("xgrammar + FlashInfer, p=0.95, flat", "xgrammar + FlashInfer p=0.95", "flat", "#c84"),
)


def _find(rows: list[dict[str, Any]], what: str, logits: str) -> dict[str, Any]:
    wanted = {
        "what": what,
        "rows": 256,
        "vocabulary": 128_256,
        "dtype": "bfloat16",
        "mask": "one banned",
        "logits": logits,
        "cold": True,
    }
    return next(r for r in rows if all(r[k] == v for k, v in wanted.items()))


def main() -> None:
    found = json.loads((FOLDER / "kernels.json").read_text())
    values = []
    for label, what, logits, colour in BARS:
        row = _find(found["rows"], what or "sample greedy", logits)
        values.append((label, row["median_us"] if what else row["floor_us"], colour))
    widest = max(v for _, v, _ in values)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="820" height="{60 + 26 * len(values)}" font-family="sans-serif" '
        'font-size="13">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="10" y="24" font-size="15">256 rows x 128,256 tokens, bf16, mask on, cold L2: microseconds, '
        f"{found['machine']['gpu']}</text>",
    ]
    for i, (label, value, colour) in enumerate(values):
        y, width = 42 + 26 * i, 480 * value / widest
        lines.append(
            f'<text x="250" y="{y + 14}" text-anchor="end">{label}</text>'
            f'<rect x="258" y="{y}" width="{width:.1f}" height="19" fill="{colour}"/>'
            f'<text x="{264 + width:.1f}" y="{y + 14}">{value:.1f}</text>'
        )
    (FOLDER / "kernels.svg").write_text("\n".join([*lines, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
