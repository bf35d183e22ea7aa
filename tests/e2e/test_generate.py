"""Requests through the whole system (worker and grammar service as processes, synthetic runner): what a client can ask and see."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import zmq

from shared import errors
from shared.client import AsyncClient, Result
from shared.protocol import Delta, Failed, decode_reply
from tests.e2e.sample_requests import PERSON, request
from tests.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    flags = ("--max-slots", "8", "--max-length", "256", "--max-waiting", "64")
    with Stack(tmp_path_factory.mktemp("stack"), model="synthetic:49152", services=1, worker_flags=flags) as running:
        async with AsyncClient(running.address, lost_after_s=60.0) as client:
            await running.ready(client)
        yield running


async def refused(client: AsyncClient, **arguments: Any) -> errors.MaskstreamError:
    with pytest.raises(errors.MaskstreamError) as caught:
        await client.generate(**({"prompt": "hello", "max_tokens": 8} | arguments))
    return caught.value


# spec 88 129 R18
async def test_a_seeded_request_is_the_same_alone_and_in_company(client: AsyncClient) -> None:
    alone = [await client.generate(**request(number)[0]) for number in range(6)]
    company = await asyncio.gather(*(client.generate(**request(number)[0]) for number in (9, 3, 5, 1, 8, 0, 4, 2, 7, 6)))
    by_number = dict(zip((9, 3, 5, 1, 8, 0, 4, 2, 7, 6), company, strict=True))
    assert [by_number[number].token_ids for number in range(6)] == [result.token_ids for result in alone]


# spec 129
async def test_n_children_have_seed_plus_i(client: AsyncClient) -> None:
    both = await client.generate("hello", n=2, temperature=1.0, seed=5, max_tokens=12)
    second = await client.generate("hello", temperature=1.0, seed=6, max_tokens=12)
    assert both.choices[1].token_ids == second.token_ids
    assert both.choices[0].token_ids != both.choices[1].token_ids
    guided = await client.generate("hello", n=3, temperature=1.0, seed=5, schema=PERSON, verify=True, max_tokens=200)
    assert [choice.valid for choice in guided.choices if choice.finish_reason == "stop"].count(False) == 0


# spec 59 60 R25
async def test_continuation_goes_on_bitwise(client: AsyncClient) -> None:
    whole = await client.generate("hello", schema=PERSON, temperature=1.0, seed=11, max_tokens=160, verify=True)
    for cut in (1, 2, len(whole.token_ids) // 2, len(whole.token_ids) - 1):
        rest = await client.generate(
            "hello", schema=PERSON, temperature=1.0, seed=11, max_tokens=160, verify=True, output_token_ids=whole.token_ids[:cut]
        )
        assert (rest.token_ids, rest.text, rest.valid) == (whole.token_ids, whole.text, whole.valid)
    ended = await client.generate("hello", temperature=1.0, max_tokens=2, seed=1, stop_token_ids=[300], output_token_ids=[300])
    assert (ended.finish_reason, ended.stop_reason) == ("stop", 300)


# spec 103 114 115 116
async def test_finish_rules(client: AsyncClient) -> None:
    free = await client.generate("hello", temperature=1.0, seed=2, max_tokens=40, ignore_eos=True)
    assert (free.finish_reason, len(free.token_ids)) == ("length", 40)
    stop_id = free.token_ids[7]
    by_id = await client.generate("hello", temperature=1.0, seed=2, max_tokens=40, ignore_eos=True, stop_token_ids=[stop_id])
    first = free.token_ids.index(stop_id)
    assert (by_id.token_ids, by_id.stop_reason) == (free.token_ids[: first + 1], stop_id)
    long = await client.generate("hello", temperature=1.0, seed=2, max_tokens=120, min_tokens=100)
    assert len(long.token_ids) >= 100


# spec R23
async def test_stop_string_across_tokens_and_hold_back(client: AsyncClient) -> None:
    free = await client.generate("hello", temperature=1.0, seed=4, max_tokens=40, ignore_eos=True)
    stop = free.text[len(free.text) // 2 : len(free.text) // 2 + 4]
    shown = ""
    async for piece in client.stream("hello", temperature=1.0, seed=4, max_tokens=40, ignore_eos=True, stop=[stop]):
        if isinstance(piece, Delta):
            shown += piece.text
            assert stop not in shown
        else:
            assert (piece.finish_reason, piece.stop_reason) == ("stop", stop)
            assert shown == piece.text == free.text[: free.text.index(stop)]
    kept = await client.generate("hello", temperature=1.0, seed=4, max_tokens=40, ignore_eos=True, stop=[stop], include_stop=True)
    assert kept.text == free.text[: free.text.index(stop) + len(stop)]


# spec 111 112
async def test_logprobs_of_the_sampled_token(client: AsyncClient) -> None:
    result = await client.generate("hello", temperature=1.0, seed=3, max_tokens=10, logprobs=3, schema=PERSON)
    entries = result.choices[0].logprobs
    assert entries is not None and len(entries) == len(result.token_ids)
    for entry, token_id in zip(entries, result.token_ids, strict=True):
        assert entry.token_id == token_id and entry.logprob <= 0 and entry.rank >= 1
        assert len(entry.top) == 3 and (entry.rank > 3 or token_id in [i for i, _ in entry.top])
    greedy = await client.generate("hello", temperature=0, max_tokens=5, logprobs=0)
    assert [entry.rank for entry in greedy.choices[0].logprobs or []] == [1] * len(greedy.token_ids)


async def test_engines_and_row_kinds_are_named(client: AsyncClient) -> None:
    chosen = await client.generate("hello", choice=["yes", "no"], verify=True)
    assert chosen.engine.startswith("llguidance") and chosen.stop_reason == "grammar" and chosen.valid is True
    assert sum(chosen.usage.rows.values()) == len(chosen.token_ids)
    ebnf = await client.generate("hello", structured_outputs={"grammar": 'root ::= "ab" | "cd"'})
    assert ebnf.engine.startswith("xgrammar") and ebnf.text in ("ab", "cd")


# spec 10 76
async def test_bad_requests_name_the_field_and_harm_nothing(client: AsyncClient) -> None:
    good = asyncio.create_task(client.generate(**request(0)[0]))
    for arguments, code, field in (
        ({"temperature": float("nan")}, "bad_request", "temperature"),
        ({"frobnicate": 1}, "bad_request", "frobnicate"),
        ({"repetition_penalty": 0}, "bad_request", "repetition_penalty"),
        ({"prompt": None, "prompt_token_ids": [1, 1 << 20]}, "bad_request", "prompt_token_ids[1]"),
        ({"prompt": None, "prompt_token_ids": [5] * 300}, "too_large", "prompt"),
        ({"regex": "a", "choice": ["b"]}, "bad_request", "structured_outputs"),
        ({"regex": "a", "ignore_eos": True}, "bad_request", "ignore_eos"),
        ({"schema": {"type": "object", "properties": 3}}, None, "structured_outputs.json"),
        ({"regex": "(ab"}, None, "structured_outputs.regex"),
        ({"schema": {"$ref": "http://example.com/x.json"}}, "unsupported_schema", "structured_outputs.json"),
        ({"schema": False}, "unsatisfiable", "structured_outputs.json"),
        ({"response_format": {"type": "lark", "grammar": 'start: "a" start'}}, "unsatisfiable", "response_format"),
    ):
        error = await refused(client, **arguments)
        assert code is None or error.code == code, (arguments, error)
        assert field is None or error.field == field, (arguments, error)
    assert (await good).valid is not False


async def test_cancel_and_deadline_end_once(client: AsyncClient) -> None:
    pieces: list[Delta] = []
    async for piece in client.stream("hello", temperature=1.0, seed=1, max_tokens=200, ignore_eos=True, request_id="to-cancel"):
        if isinstance(piece, Result):
            assert piece.finish_reason == "cancelled" and len(piece.token_ids) < 200
            break
        pieces.append(piece)
        if len(pieces) == 3:
            await client.cancel("to-cancel")
    error = await refused(client, regex="[ab]{200}", max_tokens=200, deadline_s=0.05)
    assert isinstance(error, errors.DeadlineExceeded)
    health = await client.health()
    assert health.requests == []


async def test_a_client_that_leaves_frees_its_slots(stack: Stack, client: AsyncClient) -> None:
    async with AsyncClient(stack.address, lost_after_s=60.0) as other:
        stream = other.stream("hello", temperature=1.0, max_tokens=240, ignore_eos=True)
        await anext(stream)
        await stream.aclose()
    for _ in range(100):
        if (await client.health()).active == 0:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the slot is still taken")


async def test_overload_is_said_at_once(stack: Stack, client: AsyncClient) -> None:
    async with AsyncClient(stack.address, lost_after_s=60.0) as crowd:
        outcomes = await asyncio.gather(
            *(crowd.generate("hello", temperature=1.0, max_tokens=20, ignore_eos=True) for _ in range(120)), return_exceptions=True
        )
    refusals = [outcome for outcome in outcomes if isinstance(outcome, errors.Overloaded)]
    finished = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    assert len(refusals) + len(finished) == 120 and refusals and len(finished) >= 72


async def test_garbage_on_both_sockets_harms_nobody(stack: Stack, client: AsyncClient) -> None:
    good = asyncio.create_task(client.generate(**request(0)[0]))
    await asyncio.to_thread(_throw_garbage, stack)
    assert (await good).valid is not False
    assert (await client.generate(**request(2)[0])).valid is True


def _throw_garbage(stack: Stack) -> None:
    frames = [b"", b"\xc1", b"\x00" * 1000, b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, json.dumps({"type": "generate"}).encode()]
    frames += [
        msgspec.msgpack.encode(value) for value in ({"type": "nope"}, {"type": "step_answer", "step": -1}, [1, 2], "generate")
    ]
    for address in (stack.address, stack.grammar_address):
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket_:
            socket_.linger = 0
            socket_.connect(address)
            for frame in frames:
                socket_.send(frame)
                socket_.send_multipart([frame, frame])
            if address == stack.address:
                assert socket_.poll(5000)
                reply = decode_reply(socket_.recv())
                assert isinstance(reply, Failed) and reply.error.code == "bad_request"
            socket_.poll(300)
        host, port = address.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)


async def test_a_killed_worker_is_noticed(tmp_path: Path) -> None:
    with Stack(tmp_path, model="synthetic:4096", services=0, worker_flags=("--forward-ms", "20")) as own:
        async with AsyncClient(own.address, lost_after_s=3.0) as lonely:
            await own.ready(lonely)
            stream = lonely.stream("hello", temperature=1.0, seed=9, max_tokens=100, ignore_eos=True)
            first = await anext(stream)
            assert isinstance(first, Delta)
            own.worker.kill()
            with pytest.raises(errors.WorkerLost) as caught:
                async for _ in stream:
                    pass
            had = caught.value.token_ids
            own.worker.wait()
            own.start_worker()  # R25: the tokens that were there are sent again, and the text goes on as it would have
            await own.ready(lonely)
            rest = await lonely.generate("hello", temperature=1.0, seed=9, max_tokens=100, ignore_eos=True, output_token_ids=had)
            whole = await lonely.generate("hello", temperature=1.0, seed=9, max_tokens=100, ignore_eos=True)
            assert rest.token_ids == whole.token_ids


# spec 12 13 R5 R26
async def test_a_thought_comes_before_the_answer_and_is_not_judged(client: AsyncClient) -> None:
    gate = {"end": "</think>", "budget": 20}
    sampling = {"temperature": 1.0, "seed": 21, "max_tokens": 200, "verify": True}
    result = await client.generate("hello", schema=PERSON, reasoning=gate, **sampling)
    assert result.reasoning.endswith("</think>") and result.text == result.reasoning + result.answer
    assert set(json.loads(result.answer)) >= {"name", "age"} and result.valid is True and result.stop_reason == "grammar"
    marker = (result.choices[0].reasoning_tokens or 0) - 20
    assert 0 < marker <= len("</think>")
    cut = 23  # inside the marker, on another session
    again = await client.generate(
        "hello", schema=PERSON, reasoning=gate, output_token_ids=result.token_ids[:cut], **sampling
    )  # fmt: skip
    assert again.choices[0].token_ids == result.token_ids
    free = await client.generate("hello", reasoning={"end": "</think>", "start": "<think>", "budget": 3}, **sampling)
    assert free.reasoning.startswith("<think>") and free.reasoning.endswith("</think>")
    assert (free.valid, free.guide_kind) == (None, "") and len(free.answer) > 0
    none = await client.generate("hello", choice=["a", "b"], reasoning={"end": "</think>"}, thinking_token_budget=0, **sampling)
    assert none.reasoning == "</think>" and none.answer in ("a", "b") and none.valid is True
    cut_short = await client.generate("hello", choice=["a"], reasoning=gate, **(sampling | {"max_tokens": 5}))
    assert (cut_short.answer, cut_short.valid, cut_short.finish_reason) == ("", False, "length")


# spec 12 13
async def test_a_gate_that_cannot_be_is_refused_by_name(client: AsyncClient) -> None:
    wrong = (({"end": "e"}, "reasoning.end"), ({"end": [1 << 20]}, "reasoning.end[0]"), (None, "thinking_token_budget"))
    for reasoning, field in wrong:
        error = await refused(client, regex="a", reasoning=reasoning, thinking_token_budget=3)
        assert (error.code, error.field) == ("bad_request", field)
