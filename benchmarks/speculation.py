"""Drafts on JSON with the demo model, on this machine's CPU: tokens a forward and the speed beside the same worker without drafts.

One request at a time, greedy and sampled; a drafting worker's forward is K + 1 wide, which costs a CPU more than it costs a GPU.
The tokens of each worker are compared with those of the worker without drafts: a model's logits differ in the last bits when
the shape of its forward changes, so a text may go another way where two tokens are nearly as likely.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import report
from shared.client import AsyncClient, Result
from shared.processes import Processes, free_port

DRAFTS = 6
WORKERS: dict[str, tuple[str, ...]] = {
    "none": (),
    "forced": ("--max-draft-tokens", str(DRAFTS), "--drafter", "forced"),
    "ngram": ("--max-draft-tokens", str(DRAFTS), "--drafter", "ngram"),
    "ngram+forced": ("--max-draft-tokens", str(DRAFTS), "--drafter", "ngram+forced"),
    "ngram+forced, trees": ("--max-draft-tokens", str(DRAFTS), "--drafter", "ngram+forced", "--draft-branches", "2"),
}
ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer_identification": {"type": "string", "maxLength": 12},
        "delivery_address": {
            "type": "object",
            "properties": {
                "street_name": {"type": "string", "maxLength": 16},
                "postal_code": {"type": "integer", "maximum": 99999},
            },
            "required": ["street_name", "postal_code"],
            "additionalProperties": False,
        },
        "payment_method": {"enum": ["credit_card", "bank_transfer", "cash_on_delivery"]},
        "requires_signature_on_delivery": {"type": "boolean"},
    },
    "required": ["customer_identification", "delivery_address", "payment_method", "requires_signature_on_delivery"],
    "additionalProperties": False,
}  # fmt: skip
PROMPTS = [
    "Extract as JSON: Anna Meyer, Lindenstrasse 5, 10969, pays by credit card, signature needed.",
    "Extract as JSON: B. Okafor, 12 Palm Road, 90210, bank transfer, leave at the door.",
    'Repeat this as JSON: {"customer_identification": "C-77", "delivery_address": {"street_name": "Hill Lane", "postal_code": '
    '4711}, "payment_method": "cash_on_delivery", "requires_signature_on_delivery": true}',
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a model folder [the demo model]")
    arguments = parser.parse_args()
    model = [] if arguments.model is None else ["--model", arguments.model]
    rows, plain = [], list[Result]()
    for name, flags in WORKERS.items():
        with tempfile.TemporaryDirectory() as folder:
            results, seconds = asyncio.run(_measure([*model, *flags], Path(folder)))
        plain = plain or results
        rows.append(_row(name, results, seconds, plain))
    for row in rows:
        row["speed"] = row["tokens_per_s"] / rows[0]["tokens_per_s"]
    report.publish("speculation", rows)


async def _measure(flags: list[str], folder: Path) -> tuple[list[Result], float]:
    client_address, grammar_address = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    binds = ["--client-bind", client_address, "--grammar-bind", grammar_address, "--metrics-port", "0", "--max-slots", "1"]
    with Processes(folder / "log") as processes:
        processes.start("gpu_worker", *binds, "--device", "cpu", "--hold-after-s", "1", *flags)
        processes.start("grammar_service", "--workers", grammar_address, "--metrics-port", "0")
        async with AsyncClient(client_address, lost_after_s=120.0) as client:
            await _ready(client)
            await client.generate("warm", schema=ORDER, max_tokens=8, temperature=0)
            begun = time.perf_counter()
            results = [await _one(client, prompt, seed) for prompt in PROMPTS for seed in (0, 1)]
            return results, time.perf_counter() - begun


async def _one(client: AsyncClient, prompt: str, seed: int) -> Result:
    """Greedy for seed 0."""
    return await client.generate(prompt, schema=ORDER, max_tokens=120, temperature=0.7 if seed else 0, seed=seed, deadline_s=600.0)


async def _ready(client: AsyncClient) -> None:
    for _ in range(600):
        try:
            if (await client.health(1.0)).grammar_services:
                return
        except Exception:
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.2)
    raise SystemExit("the worker did not get ready")


def _row(name: str, results: list[Result], seconds: float, plain: list[Result]) -> dict[str, Any]:
    tokens = sum(result.usage.completion_tokens for result in results)
    accepted = sum(result.usage.drafts_accepted for result in results)
    same = sum(mine.token_ids == other.token_ids for mine, other in zip(results, plain, strict=True))
    drafted = accepted + sum(result.usage.drafts_rewound for result in results)
    return {
        "drafter": name, "tokens": tokens, "forwards": tokens - accepted, "tokens_per_forward": tokens / (tokens - accepted),
        "drafts": drafted, "accepted": accepted, "tokens_per_s": tokens / seconds, "same_texts": f"{same} of {len(results)}",
    }  # fmt: skip


if __name__ == "__main__":
    main()
