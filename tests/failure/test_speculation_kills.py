"""Mixed schemas with drafts, chains and trees, while services are killed: each finished guided text is one of its language."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from shared.client import AsyncClient, Result
from tests.e2e.sample_requests import request
from tests.stack import Stack

pytestmark = [pytest.mark.failure]
CONCURRENT, SECONDS_BETWEEN_KILLS = 24, (0.5, 3.0)
LEAVES: list[dict[str, Any]] = [
    {"type": "integer", "minimum": -5, "maximum": 5000}, {"enum": ["alpha beta", "alpha gamma", "delta"]}, {"type": "boolean"},
    {"type": "string", "maxLength": 10}, {"const": "a constant that is long enough to be drafted"}, {"type": "null"},
]  # fmt: skip


def schema(dice: random.Random, depth: int = 2) -> dict[str, Any]:
    """A random one, whose keys repeat: what prompt lookup can guess."""
    kind = dice.random()
    if depth == 0 or kind < 0.3:
        return dice.choice(LEAVES)
    if kind < 0.5:
        return {"type": "array", "items": schema(dice, depth - 1), "minItems": dice.randint(0, 2), "maxItems": 3}
    names = dice.sample(["first_name", "first_number", "second_name", "whether_it_is", "z"], dice.randint(1, 4))
    fields = {name: schema(dice, depth - 1) for name in names}
    return {"type": "object", "properties": fields, "required": names[: dice.randint(0, len(names))], "additionalProperties": False}


def asked(number: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The arguments of a request, and its schema where it has one."""
    dice = random.Random(number)
    sampling = dice.choice([{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.5, "frequency_penalty": 0.3}])
    common: dict[str, Any] = {"prompt": "first_name first_number", "max_tokens": 160, "seed": number, "deadline_s": 300.0}
    if number % 4 == 3:
        return common | request(number - number % 5 + number % 3)[0] | sampling | {"deadline_s": 300.0}, None
    found = schema(dice)
    return common | sampling | {"schema": found, "engine": dice.choice(["auto", "xgrammar", "llguidance"]), "verify": True}, found


async def run(client: AsyncClient, number: int) -> Result:
    arguments, wanted = asked(number)
    engine = arguments.pop("engine", "auto")
    if wanted is not None:
        arguments["structured_outputs"] = {"json": arguments.pop("schema"), "engine": engine}
    result = await client.generate(**arguments)
    if result.finish_reason == "stop":
        assert result.valid is not False, (number, result.text)
        if wanted is not None:
            jsonschema.validate(json.loads(result.text), wanted)
    return result


async def run_all(folder: Path, requests: int, branches: int, seed: int) -> list[Result]:
    dice, gate = random.Random(seed), asyncio.Semaphore(CONCURRENT)
    flags = ("--max-slots", "16", "--max-draft-tokens", "6", "--drafter", "ngram+forced", "--draft-branches", str(branches))
    with Stack(folder, model="synthetic:8192", services=2, worker_flags=(*flags, "--replay-after-s", "0.5")) as stack:
        async with AsyncClient(stack.address, lost_after_s=120.0) as client:
            await stack.ready(client)

            async def one(number: int) -> Result:
                async with gate:
                    return await run(client, number)

            async def kill() -> None:
                while True:
                    await asyncio.sleep(dice.uniform(*SECONDS_BETWEEN_KILLS))
                    if len((await client.health(30.0)).grammar_services) > 1:  # one goes on while the other starts
                        stack.kill_service(dice.randrange(len(stack.services)))
                        stack.start_service()

            killer = asyncio.create_task(kill())
            try:
                return list(await asyncio.gather(*(one(number) for number in range(seed, seed + requests))))
            finally:
                killer.cancel()


def judge(results: list[Result]) -> None:
    assert sum(result.finish_reason == "stop" for result in results) > 0.6 * len(results)
    assert sum(result.usage.drafts_accepted for result in results) > len(results)
    assert sum(result.usage.drafts_rewound for result in results) > 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("branches", [1, 3])
async def test_every_finished_text_is_valid(tmp_path: Path, branches: int) -> None:  # spec R1 R9 R10 R22 R26
    judge(await run_all(tmp_path, 50, branches, 100 * branches))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("branches", [1, 3])
async def test_a_thousand_texts_are_valid(tmp_path: Path, branches: int) -> None:
    results = await run_all(tmp_path, 1000, branches, 10_000 * branches)
    judge(results)
    usages = [result.usage for result in results]
    counted = ("completion_tokens", "drafts_accepted", "drafts_verified", "drafts_rewound", "replays", "holds")
    finished = sum(result.finish_reason == "stop" for result in results)
    print(finished, "finished", {name: sum(getattr(usage, name) for usage in usages) for name in counted})
