"""The sampler's parameters through the whole system: worker and grammar services as processes, the synthetic model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from shared import errors
from shared.client import AsyncClient
from shared.protocol import Delta
from tests.e2e.sample_requests import PERSON
from tests.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
FREE = {"temperature": 1.0, "ignore_eos": True, "max_tokens": 40}
EVERYTHING: dict[str, Any] = {
    "temperature": 1.2, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "prompt_ignore_length": 1,
    "no_repeat_ngram_size": 4, "bad_words": ["zz", "q"], "logit_bias": {"97": 2.0, "98": -1.0}, "min_tokens": 4, "top_p": 0.98,
    "top_p_decay": 0.99, "top_p_reset_id": 34, "stop_token_sequences": [[120, 121, 122]], "logprobs": 2, "max_tokens": 120,
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    flags = ("--max-slots", "6", "--max-length", "256")
    with Stack(tmp_path_factory.mktemp("stack"), model="synthetic:4096", services=2, worker_flags=flags) as running:
        async with AsyncClient(running.address, lost_after_s=60.0) as client:
            await running.ready(client)
        yield running


def guided(number: int) -> dict[str, Any]:
    guide = {"schema": PERSON, "verify": True} if number % 3 else {}
    return {"prompt": f"request {number}", "seed": number, **guide, **EVERYTHING}


async def refused(client: AsyncClient, **arguments: Any) -> errors.MaskstreamError:
    with pytest.raises(errors.MaskstreamError) as caught:
        await client.generate("hello", **arguments)
    return caught.value


# spec 101 102 105
async def test_bans_and_bias_hold(client: AsyncClient) -> None:
    plain = await client.generate("hello", seed=1, **FREE)
    some = sorted(set(plain.token_ids))[:20]
    allowed = await client.generate("hello", seed=1, **FREE, allowed_token_ids=some)
    assert set(allowed.token_ids) <= set(some)
    once = await client.generate("hello", seed=1, **FREE, no_repeat_ngram_size=1)
    assert len(set(once.token_ids)) == 40
    forced = await client.generate("hello", seed=1, **FREE, logit_bias={str(some[0]): 1000.0})
    assert set(forced.token_ids) == {some[0]}
    word = plain.text[3:6]
    without = await client.generate("hello", seed=1, **FREE, bad_words=[word], logprobs=0)
    assert without.token_ids != plain.token_ids or word in plain.text


# spec 88 R18
async def test_alone_and_in_company(client: AsyncClient) -> None:
    alone = [await client.generate(**guided(number)) for number in range(4)]
    company = await asyncio.gather(*(client.generate(**guided(number)) for number in (7, 3, 1, 5, 0, 4, 2, 6)))
    together = dict(zip((7, 3, 1, 5, 0, 4, 2, 6), company, strict=True))
    for number, result in enumerate(alone):
        assert together[number].token_ids == result.token_ids
        assert together[number].choices[0].logprobs == result.choices[0].logprobs
        assert result.finish_reason != "stop" or result.valid is not False


# spec 59 R25
async def test_continuations(client: AsyncClient) -> None:
    for number in (0, 1):
        whole = await client.generate(**guided(number))
        for cut in (1, len(whole.token_ids) // 2, len(whole.token_ids) - 1):
            rest = await client.generate(**guided(number), output_token_ids=whole.token_ids[:cut])
            assert (rest.token_ids, rest.text) == (whole.token_ids, whole.text)


# spec 59 60 136 R25
async def test_a_prompts_side_hands_its_first_token_over(client: AsyncClient) -> None:
    """One side writes the prompt and samples one token; the other goes on from there, also where that token is the last."""
    for number in range(3):
        arguments = {**guided(number), "min_tokens": 0}
        whole = await client.generate(**arguments)
        first = await client.generate(**{**arguments, "max_tokens": 1})
        assert first.token_ids == whole.token_ids[:1]
        rest = await client.generate(**arguments, output_token_ids=first.token_ids)
        assert (rest.token_ids, rest.text, rest.finish_reason) == (whole.token_ids, whole.text, whole.finish_reason)
        ends_there = await client.generate(**arguments, output_token_ids=first.token_ids, stop_token_ids=first.token_ids)
        assert (ends_there.token_ids, ends_there.stop_reason) == (first.token_ids, first.token_ids[0])


# spec 129
async def test_best_of(client: AsyncClient) -> None:
    singles = [await client.generate("hello", seed=5 + i, **FREE, logprobs=0) for i in range(4)]
    ranked = sorted(singles, key=lambda result: -(result.choices[0].cumulative_logprob or 0.0))
    pieces = [piece async for piece in client.stream("hello", seed=5, n=2, best_of=4, **FREE)]
    assert not any(isinstance(piece, Delta) for piece in pieces)
    assert [choice.token_ids for choice in pieces[-1].choices] == [result.token_ids for result in ranked[:2]]
    assert [choice.choice for choice in pieces[-1].choices] == [0, 1]


# spec 107 110 129 R21
async def test_beams(client: AsyncClient) -> None:
    arguments: dict[str, Any] = {"use_beam_search": True, "best_of": 4, "n": 3, "max_tokens": 40, "length_penalty": 2.0}
    pieces = [piece async for piece in client.stream("hello", schema=PERSON, verify=True, logprobs=0, **arguments)]
    assert not any(isinstance(piece, Delta) for piece in pieces)  # a beam search says nothing before its end
    choices = pieces[-1].choices
    assert [choice.choice for choice in choices] == [0, 1, 2]
    assert len({choice.text for choice in choices}) == 3
    scores = [(choice.cumulative_logprob or 0.0) / len(choice.token_ids) ** 2.0 for choice in choices]
    assert scores == sorted(scores, reverse=True)
    assert all(choice.valid is not False or choice.finish_reason == "length" for choice in choices)
    again = await client.generate("hello", schema=PERSON, **arguments)
    assert [choice.token_ids for choice in again.choices] == [choice.token_ids for choice in choices]


# spec 111 128
async def test_the_prompt_in_the_reply(client: AsyncClient) -> None:
    plain = await client.generate("hello there", seed=1, temperature=1.0, max_tokens=5)
    assert plain.prompt_logprobs is None
    shown = await client.generate(
        "hello there", seed=1, temperature=1.0, max_tokens=5, prompt_logprobs=2, exclude_input_from_output=False
    )
    assert shown.token_ids == plain.token_ids
    assert shown.text == "hello there" + plain.text
    assert shown.prompt_logprobs is not None
    assert len(shown.prompt_logprobs) == shown.usage.prompt_tokens - 1
    assert all(len(entry.top) == 2 and entry.logprob <= 0 for entry in shown.prompt_logprobs)


# spec 126 127
async def test_the_prompts_logits_come_first(client: AsyncClient) -> None:
    arguments: dict[str, Any] = {"seed": 1, "temperature": 1.0, "max_tokens": 3, "return_context_logits": True}
    pieces = [piece async for piece in client.stream("hello there", **arguments)]
    told = [piece for piece in pieces if isinstance(piece, Delta) and piece.context_logits is not None]
    rows = [row for piece in told for row in piece.context_logits or []]
    assert pieces[: len(told)] == told
    assert len(rows) == pieces[-1].usage.prompt_tokens
    assert {len(row) for row in rows} == {4 * 4096}


# spec 76
async def test_clashes_and_bad_values_are_named(client: AsyncClient) -> None:
    clash = await refused(client, regex="[ab]+", allowed_token_ids=[99], temperature=1.0)
    assert isinstance(clash, errors.NoAllowedToken)
    assert (clash.field, "guide and allowed_token_ids" in clash.message) == ("allowed_token_ids", True)
    early = await refused(client, choice=["a"], min_tokens=5)
    assert isinstance(early, errors.NoAllowedToken)
    assert early.field == "min_tokens"
    for arguments, field in (
        ({"logit_bias": {"4096": 1.0}}, "logit_bias"), ({"logits_processors": ["nobody"]}, "logits_processors[0]"),
        ({"stop_token_sequences": [[4096]]}, "stop_token_sequences[0]"), ({"best_of": 2, "temperature": 0}, "best_of"),
        ({"use_beam_search": True, "best_of": 7}, "best_of"),
        ({"use_beam_search": True, "return_context_logits": True}, "return_context_logits"),
        ({"use_beam_search": True, "output_token_ids": [5]}, "output_token_ids"),
    ):  # fmt: skip
        assert (await refused(client, **arguments)).field == field


# spec R9 R18: last, since it leaves one service
async def test_a_service_that_dies_changes_no_token(stack: Stack, client: AsyncClient) -> None:
    numbers = [1, 2, 4, 5, 7, 8]
    expected = [await client.generate(**guided(number)) for number in numbers]
    running = [asyncio.create_task(client.generate(**guided(number))) for number in numbers]
    await asyncio.sleep(0.3)
    await asyncio.to_thread(stack.kill_service, 0)
    results = await asyncio.gather(*running)
    assert [result.token_ids for result in results] == [result.token_ids for result in expected]
