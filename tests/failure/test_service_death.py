"""A grammar service is killed, stopped, not there: no request lost, no text invalid, no token changed (I1 I2 I5 I6 I11)."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from shared.client import AsyncClient, Result
from shared.errors import DeadlineExceeded, Overloaded
from shared.protocol import Delta
from tests.e2e.sample_requests import request
from tests.stack import Stack

pytestmark = [pytest.mark.failure, pytest.mark.timeout(420)]
MODEL = "synthetic:49152"
KILLS = 20
CONCURRENT = 30


async def run_all(client: AsyncClient, numbers: range) -> dict[int, Result]:
    """All requests at once; each must end well, streamed pieces must add up to the text, and guided texts must pass both checks."""
    results = await asyncio.gather(*(_run_one(client, number) for number in numbers))
    return dict(zip(numbers, results, strict=True))


async def _run_one(client: AsyncClient, number: int) -> Result:
    arguments, check = request(number)
    text, expected, result = "", 0, None
    async for piece in client.stream(**arguments):
        if isinstance(piece, Delta):
            assert piece.sequence_number == expected  # I5: no gap, no duplicate
            text, expected = text + piece.text, expected + 1
        else:
            assert result is None  # I1: one ending
            result = piece
    assert result is not None
    assert text == result.text
    if check is not None and result.finish_reason == "stop":
        assert check(result.text), (number, result.text)  # I2
        assert result.valid is not False
    return result


def tokens_of(results: dict[int, Result]) -> dict[int, list[int]]:
    return {number: result.token_ids for number, result in results.items()}


# spec R9 R18 88
async def test_kills_change_no_token(tmp_path: Path) -> None:
    dice = random.Random(20261130)
    flags = ("--max-slots", "16", "--forward-ms", "4", "--replay-after-s", "0.5")
    with Stack(tmp_path, model=MODEL, services=3, worker_flags=flags) as stack:
        async with AsyncClient(stack.address, lost_after_s=60.0) as client:
            await stack.ready(client)
            undisturbed = await run_all(client, range(CONCURRENT))
            killed = replays = 0
            while killed < KILLS:
                task = asyncio.create_task(run_all(client, range(CONCURRENT)))
                while not task.done() and killed < KILLS:
                    await asyncio.sleep(dice.uniform(0.02, 0.6))
                    if len(stack.services) < 2 or task.done():
                        continue
                    stack.kill_service(dice.randrange(len(stack.services)))
                    stack.start_service()
                    killed += 1
                disturbed = await task
                assert tokens_of(disturbed) == tokens_of(undisturbed)  # I6
                replays += sum(result.usage.replays for result in disturbed.values())
            assert replays > 0, "no kill hit a session that was alive: the test has shown nothing"
            await stack.ready(client)  # I11: all three are back without help


async def test_stopped_service_is_left_behind(tmp_path: Path) -> None:
    flags = ("--max-slots", "16", "--forward-ms", "4", "--replay-after-s", "0.5")
    with Stack(tmp_path, model=MODEL, services=2, worker_flags=flags) as stack:
        async with AsyncClient(stack.address, lost_after_s=60.0) as client:
            await stack.ready(client)
            undisturbed = await run_all(client, range(CONCURRENT))
            task = asyncio.create_task(run_all(client, range(CONCURRENT)))
            await asyncio.sleep(0.3)
            stack.services[0].send_signal(signal.SIGSTOP)
            disturbed = await task
            assert tokens_of(disturbed) == tokens_of(undisturbed)
            stack.services[0].send_signal(signal.SIGCONT)  # the zombie comes back with old answers
            again = await run_all(client, range(CONCURRENT))
            assert tokens_of(again) == tokens_of(undisturbed)
            await stack.ready(client, services=2)


async def test_no_service_waits_and_recovers(tmp_path: Path) -> None:
    with Stack(tmp_path, model=MODEL, services=0, worker_flags=("--max-slots", "4")) as stack:
        async with AsyncClient(stack.address, lost_after_s=60.0) as client:
            await stack.ready(client)
            guided, _ = request(0)
            free, _ = request(4)
            with pytest.raises(DeadlineExceeded):
                await client.generate(**(guided | {"deadline_s": 1.0}))
            waiting = [asyncio.create_task(client.generate(**request(n)[0])) for n in range(8) if n % 5 != 4]
            await asyncio.sleep(0.2)
            unguided = await client.generate(**free)  # spec 1: those without a guide go on
            assert unguided.finish_reason in ("stop", "length")
            assert not any(task.done() for task in waiting)
            stack.start_service()
            for result in await asyncio.gather(*waiting):
                assert result.valid is not False


async def test_no_service_refuses_by_configuration(tmp_path: Path) -> None:
    with Stack(tmp_path, model=MODEL, services=0, worker_flags=("--no-service", "refuse")) as stack:
        async with AsyncClient(stack.address, lost_after_s=60.0) as client:
            await stack.ready(client)
            guided: dict[str, Any] = request(1)[0]
            with pytest.raises(Overloaded):
                await client.generate(**guided)
            assert (await client.generate(**request(4)[0])).usage.completion_tokens > 0


# spec 12 13 R9 R18
async def test_a_death_in_the_middle_of_a_thought_changes_no_token(tmp_path: Path) -> None:
    flags = ("--max-slots", "8", "--forward-ms", "15", "--replay-after-s", "0.5")
    asked: dict[str, Any] = {
        "regex": "[0-9]{20}", "reasoning": {"end": "</think>", "budget": 60}, "temperature": 1.0, "max_tokens": 120, "verify": True,
    }  # fmt: skip
    with Stack(tmp_path, model=MODEL, services=2, worker_flags=flags) as stack:
        async with AsyncClient(stack.address, lost_after_s=60.0) as client:
            await stack.ready(client)
            undisturbed = [await client.generate("hi", seed=seed, **asked) for seed in range(4)]
            for _ in range(2):
                tasks = [asyncio.create_task(client.generate("hi", seed=seed, **asked)) for seed in range(4)]
                await asyncio.sleep(0.6)  # 60 free tokens take 0.9 s and more
                stack.kill_service(0)
                stack.start_service()
                disturbed = await asyncio.gather(*tasks)
                assert [result.token_ids for result in disturbed] == [result.token_ids for result in undisturbed]
                await stack.ready(client)
            assert all(result.valid and result.reasoning.endswith("</think>") for result in disturbed)
