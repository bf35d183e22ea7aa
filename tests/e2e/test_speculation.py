"""Drafts change no token: a worker that guesses ahead beside one that does not, as processes, the same requests to both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from shared.client import AsyncClient, Result
from shared.errors import NoAllowedToken
from tests.e2e.sample_requests import PERSON, request
from tests.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

MODEL = "synthetic:8192"
LONG_KEYS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "identification_of_the_person": {"type": "integer", "minimum": 0, "maximum": 9},
        "whether_the_person_is_registered": {"const": True},
        "classification_of_the_document": {"enum": ["confidential_until_publication", "unrestricted_distribution"]},
    },
    "required": ["identification_of_the_person", "whether_the_person_is_registered", "classification_of_the_document"],
    "additionalProperties": False,
}
REPEATS = "[ab]{2}(cd ef gh ){9}"
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    {"bad_words": ["cd e", "on"], "min_tokens": 12},
    {"top_p": 0.9, "top_p_decay": 0.8, "top_p_min": 0.1},
    {"top_k": 5, "min_p": 0.02, "logit_bias": {"300": 4.0, "301": 3.0}},
    {"no_repeat_ngram_size": 6},
    {"logprobs": 2},
]


def requests() -> list[dict[str, Any]]:
    """Guided and not, each with another way of sampling."""
    made = [request(number)[0] | SAMPLINGS[number % len(SAMPLINGS)] for number in range(16)]
    common = {"prompt": "ab ab ab ab", "max_tokens": 200, "temperature": 1.0}
    made += [common | {"seed": seed, "schema": LONG_KEYS, "verify": True} for seed in (1, 2)]
    made += [common | {"temperature": 0, "schema": LONG_KEYS}, common | {"seed": 3, "regex": REPEATS, "logprobs": 1}]
    made += [common | {"seed": 4, "regex": REPEATS, "stop": ["ef g"]}, common | {"seed": 4, "regex": REPEATS, "max_tokens": 7}]
    made += [common | {"seed": 5, "regex": REPEATS, "frequency_penalty": 1.0, "min_tokens": 20}]
    made += [common | {"seed": 6, "ignore_eos": True}, common | {"seed": 7, "n": 2, "schema": PERSON}]
    return made


class Seen(NamedTuple):
    """What a client can tell two answers apart by."""

    tokens: list[list[int]]
    texts: list[str]
    reasons: list[tuple[str, object]]
    logprobs: list[object]


def seen(result: Result | str) -> Seen | str:
    if isinstance(result, str):
        return result
    choices = result.choices
    return Seen(
        [c.token_ids for c in choices], [c.text for c in choices], [(c.finish_reason, c.stop_reason) for c in choices],
        [c.logprobs for c in choices],
    )  # fmt: skip


async def run_one(client: AsyncClient, arguments: dict[str, Any]) -> Result | str:
    """Streams; the pieces must add up to the text, one number after the other. A refusal is told by its text."""
    shown, numbers = "", 0
    try:
        async for piece in client.stream(**arguments):
            if isinstance(piece, Result):
                assert arguments.get("n") or (shown, numbers) == (piece.text, len(piece.token_ids))
                assert piece.valid is not False
                return piece
            assert arguments.get("n") or piece.sequence_number == numbers
            shown, numbers = shown + piece.text, numbers + 1
    except NoAllowedToken as error:  # min_tokens is more than the guide has
        return str(error)
    raise AssertionError("no ending")


def results_of(answers: list[Result | str]) -> list[Result]:
    return [answer for answer in answers if isinstance(answer, Result)]


async def run_all(client: AsyncClient) -> list[Result | str]:
    return await asyncio.gather(*(run_one(client, arguments) for arguments in requests()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Result | str]:
    """The answers of a worker that drafts nothing."""
    with Stack(tmp_path_factory.mktemp("plain"), model=MODEL, services=1, worker_flags=("--max-slots", "8")) as running:
        async with AsyncClient(running.address, lost_after_s=60.0) as client:
            await running.ready(client)
            return await run_all(client)


def flags(drafter: str, *more: str) -> tuple[str, ...]:
    return ("--max-slots", "8", "--max-draft-tokens", "4", "--drafter", drafter, *more)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drafting(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    with Stack(tmp_path_factory.mktemp("drafting"), model=MODEL, services=1, worker_flags=flags("ngram+forced")) as running:
        async with AsyncClient(running.address, lost_after_s=60.0) as client:
            await running.ready(client)
        yield running


# spec 43 45 119 124 R6 R18 R19 R22 R27
async def test_drafts_change_no_token(plain: list[Result | str], drafting: Stack) -> None:
    async with AsyncClient(drafting.address, lost_after_s=60.0) as client:
        results = await run_all(client)
    for arguments, without, drafted in zip(requests(), plain, results, strict=True):
        assert seen(drafted) == seen(without), arguments
    assert len(results_of(plain)) > 20
    assert all(result.usage.drafts_verified == result.usage.drafts_rewound == 0 for result in results_of(plain))
    usages = [result.usage for result in results_of(results)]
    assert sum(usage.drafts_accepted for usage in usages) > 100 and sum(usage.drafts_rewound for usage in usages) > 0


@pytest.mark.parametrize("drafter", ["ngram", "forced"])
async def test_each_drafter_alone(plain: list[Result | str], tmp_path: Path, drafter: str) -> None:  # spec R18
    with Stack(tmp_path, model=MODEL, services=1, worker_flags=flags(drafter)) as running:
        async with AsyncClient(running.address, lost_after_s=60.0) as client:
            await running.ready(client)
            results = await run_all(client)
    assert [seen(result) for result in results] == [seen(result) for result in plain]
    assert sum(result.usage.drafts_accepted for result in results_of(results)) > 0


@pytest.mark.parametrize("branches", ["1", "3"])
async def test_a_draft_model_changes_no_token(plain: list[Result | str], tmp_path: Path, branches: str) -> None:  # spec 47 R10 R18
    own = flags("model", "--draft-model", "synthetic:0.8", "--draft-branches", branches)
    with Stack(tmp_path, model=MODEL, services=1, worker_flags=own) as running:
        async with AsyncClient(running.address, lost_after_s=60.0) as client:
            await running.ready(client)
            results = await run_all(client)
    assert [seen(result) for result in results] == [seen(result) for result in plain]
    assert sum(result.usage.drafts_accepted for result in results_of(results)) > 300


async def test_rejection_writes_other_texts_of_the_same_language(tmp_path: Path) -> None:  # spec 121 122
    own = flags("model", "--draft-model", "synthetic:0.8", "--verification", "rejection")
    with Stack(tmp_path, model=MODEL, services=1, worker_flags=own) as running:
        async with AsyncClient(running.address, lost_after_s=60.0) as client:
            await running.ready(client)
            results = await run_all(client)
    ended = [result for result in results_of(results) if result.finish_reason == "stop"]
    assert len(ended) > 8 and all(result.valid is not False for result in ended)
    assert sum(result.usage.drafts_accepted for result in results_of(results)) > 100


async def test_forced_tokens_cost_no_forward(drafting: Stack) -> None:  # spec R22
    async with AsyncClient(drafting.address, lost_after_s=60.0) as client:
        result = await client.generate("hello", schema=LONG_KEYS, temperature=1.0, seed=8, max_tokens=200)
    usage = result.usage
    forwards = usage.completion_tokens - usage.drafts_accepted
    assert result.finish_reason == "stop"
    assert forwards < 0.5 * usage.completion_tokens, (forwards, usage)
    assert usage.drafts_verified >= usage.drafts_accepted > 0  # spec 125


async def test_a_block_ends_where_the_text_does(drafting: Stack) -> None:  # spec 114 R23: in the middle of accepted drafts
    async with AsyncClient(drafting.address, lost_after_s=60.0) as client:
        whole = await client.generate("hello", schema=LONG_KEYS, temperature=1.0, seed=8, max_tokens=200)
        for length in range(1, 12):
            cut = await client.generate("hello", schema=LONG_KEYS, temperature=1.0, seed=8, max_tokens=length)
            assert (cut.finish_reason, cut.token_ids) == ("length", whole.token_ids[:length])
        for stop in ("fication_o", "person", "true", "publication"):
            if stop in whole.text:
                found = await client.generate("hello", schema=LONG_KEYS, temperature=1.0, seed=8, max_tokens=200, stop=[stop])
                assert (found.stop_reason, found.text) == (stop, whole.text[: whole.text.index(stop)])
                assert found.token_ids == whole.token_ids[: len(found.token_ids)]
        for cut_at in (1, 5, 9):
            rest = await client.generate(
                "hello", schema=LONG_KEYS, temperature=1.0, seed=8, max_tokens=200, output_token_ids=whole.token_ids[:cut_at]
            )
            assert (rest.token_ids, rest.text) == (whole.token_ids, whole.text)


async def test_a_killed_service_changes_no_token_either(plain: list[Result | str], tmp_path: Path) -> None:  # spec R9 R18 43
    own = flags("ngram+forced", "--forward-ms", "4", "--replay-after-s", "0.5")
    with Stack(tmp_path, model=MODEL, services=2, worker_flags=own) as running:
        async with AsyncClient(running.address, lost_after_s=60.0) as client:
            await running.ready(client)
            for _ in range(6):
                task = asyncio.create_task(run_all(client))
                await asyncio.sleep(0.25)
                assert not task.done()
                running.kill_service(0)
                running.start_service()
                results = await task
                assert [seen(result) for result in results] == [seen(result) for result in plain]
                if sum(result.usage.replays for result in results_of(results)):
                    return
    raise AssertionError("no kill hit a session that was alive: the test has shown nothing")
