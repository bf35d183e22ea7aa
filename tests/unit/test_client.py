"""The client against a real front door: pieces, results, errors by class, and a worker that is lost."""

import asyncio
import threading
from contextlib import ExitStack

import msgspec
import pytest
import zmq

from shared import sockets
from shared.client import AsyncClient, Client, Result, make_generate
from shared.errors import BadRequest, Overloaded, TooLarge, WorkerLost
from shared.protocol import Delta, Health, decode_client, encode
from tests.echo import HEALTH, Bench


@pytest.fixture
def make():
    with ExitStack() as stack:
        yield lambda **settings: Bench(stack, **settings)


@pytest.fixture
def bench(make):
    return make()


def client_of(bench, **options):
    return AsyncClient(bench.door.address, **options)


async def test_pieces_then_the_result(bench):
    async with client_of(bench) as client:
        pieces = [piece async for piece in client.stream("abc")]
    assert [piece.text for piece in pieces[:-1]] == ["a", "b", "c"]
    assert isinstance(pieces[-1], Result)
    assert (pieces[-1].text, pieces[-1].finish_reason, pieces[-1].valid) == ("abc", "stop", None)


async def test_many_at_once(bench):
    async with client_of(bench) as client:
        results = await asyncio.gather(*(client.generate(f"text {i}") for i in range(50)))
    assert [result.text for result in results] == [f"text {i}" for i in range(50)]


async def test_errors_by_class(make):
    bench = make(max_slots=1, max_waiting=0)
    async with client_of(bench) as client:
        with pytest.raises(BadRequest) as caught:
            await client.generate("x", temperatur=1)
        assert caught.value.field == "temperatur"
        with pytest.raises(TooLarge):
            await client.generate("x" * 100)
        waiting = asyncio.create_task(client.generate("wait", request_id="w"))
        await until(lambda: bench.loop.open)
        with pytest.raises(Overloaded):
            await client.generate("abc")
        await client.cancel("w")
        assert (await waiting).finish_reason == "cancelled"


async def test_an_id_in_use_is_refused_before_it_is_sent(bench):
    async with client_of(bench) as client:
        waiting = asyncio.create_task(client.generate("wait", request_id="w"))
        await until(lambda: bench.loop.open)
        with pytest.raises(BadRequest, match="in use"):
            await client.generate("abc", request_id="w")
        await client.cancel("w")
        assert (await waiting).finish_reason == "cancelled"  # the first one is unharmed


async def test_a_caller_that_stops_listening_cancels(bench):
    async with client_of(bench) as client:
        task = asyncio.create_task(client.generate("wait", request_id="w"))
        await until(lambda: bench.loop.open)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: [name for _, name in bench.loop.cancelled] == ["w"])


async def test_a_frame_that_is_too_long_is_not_sent(bench):
    async with client_of(bench) as client:
        with pytest.raises(TooLarge, match="a frame holds"):
            await client.generate("x" * (5 << 20))
        assert (await client.generate("abc")).text == "abc"  # the connection is still there


async def test_health(bench):
    async with client_of(bench) as client:
        assert (await client.health()).model == HEALTH.model


async def test_no_worker_at_all():
    async with AsyncClient("tcp://127.0.0.1:1", lost_after_s=0.2) as client:
        with pytest.raises(WorkerLost, match="no answer"):
            await client.health(timeout_s=0.2)
        with pytest.raises(WorkerLost, match=r"no worker|no sign of life"):
            await client.generate("x")


class Worker:
    """The worker's end of the link, by hand: answers what a test tells it to."""

    def __init__(self):
        self.context = zmq.Context()
        self.socket = sockets.bind_router(self.context, "tcp://127.0.0.1:*", insecure=False)
        self.address = sockets.last_endpoint(self.socket)

    async def receive(self):
        while not self.socket.poll(0):
            await asyncio.sleep(0.01)
        client, frame = self.socket.recv_multipart()
        return client, decode_client(frame)

    def send(self, client, message):
        self.socket.send_multipart([client, message if isinstance(message, bytes) else encode(message)])

    def close(self):
        self.socket.close(0)
        self.context.term()


@pytest.fixture
def worker():
    made = Worker()
    yield made
    made.close()


async def test_a_worker_that_restarted_is_noticed(worker):  # spec R25
    """It answers health and does not know the request: lost, with the tokens to go on from."""
    async with AsyncClient(worker.address, heartbeat_s=0.05, lost_after_s=30.0) as client:
        task = asyncio.create_task(client.generate("x", request_id="r"))
        peer, _ = await worker.receive()
        for number, token in enumerate((65, 66)):
            worker.send(peer, Delta(request_id="r", choice=0, sequence_number=number, text="a", token_ids=[token]))
        while not task.done():
            peer, message = await worker.receive()
            if isinstance(message, Health):
                worker.send(peer, msgspec.structs.replace(HEALTH, nonce=message.nonce, requests=[]))
                await asyncio.sleep(0.05)
        with pytest.raises(WorkerLost, match="does not know") as caught:
            await task
        assert caught.value.token_ids == [65, 66]


async def test_a_silent_worker_is_noticed(worker):
    async with AsyncClient(worker.address, heartbeat_s=0.05, lost_after_s=0.4) as client:
        with pytest.raises(WorkerLost, match="no sign of life"):
            await client.generate("x")


async def test_a_worker_that_cannot_be_read_is_noticed(worker):
    """A reader that dies quietly would leave every caller waiting."""
    async with AsyncClient(worker.address, lost_after_s=30.0) as client:
        task = asyncio.create_task(client.generate("x", request_id="r"))
        peer, _ = await worker.receive()
        worker.send(peer, b"\xc1 what is this")
        with pytest.raises(WorkerLost, match="cannot be read"):
            await task
        again = asyncio.create_task(client.health())
        peer, message = await worker.receive()
        while not isinstance(message, Health):
            peer, message = await worker.receive()
        worker.send(peer, msgspec.structs.replace(HEALTH, nonce=message.nonce))
        assert (await again).live


def test_the_blocking_face(bench):
    with Client(bench.door.address) as client:
        assert client.health().model == "echo"
        assert client.generate("abc").text == "abc"
        assert [piece.text for piece in client.stream("ab")] == ["a", "b", "ab"]
        with pytest.raises(BadRequest):
            list(client.stream("ab", nonsense=1))
        first = next(client.stream("abc"))
        assert first.text == "a"
    assert not [thread for thread in threading.enumerate() if thread.name == "client"]


@pytest.mark.parametrize(
    ("arguments", "structured_outputs"),
    [
        ({"schema": {"type": "object"}}, {"json": {"type": "object"}}),
        ({"schema": False}, {"json": False}),
        ({"regex": "a"}, {"regex": "a"}),
        ({"choice": ["a"]}, {"choice": ["a"]}),
        ({"regex": "a", "structured_outputs": {"engine": "xgrammar"}}, {"engine": "xgrammar", "regex": "a"}),
        ({}, None),
    ],
)
def test_short_names(arguments, structured_outputs):
    message = make_generate("x", temperature=0.5, **arguments)
    assert message.structured_outputs == structured_outputs
    assert message.sampling_params == {"temperature": 0.5}
    assert decode_client(encode(message)) == message


async def until(condition):
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not come to pass")
