"""The front door over real sockets, before a small step loop: bad peers are told, and nobody else notices."""

import random
import socket
import time
from contextlib import ExitStack

import msgspec
import pytest

from gpu_worker.config import WorkerSettings
from gpu_worker.front_door import FrontDoor
from shared import protocol
from shared.clock import MonotonicClock
from shared.errors import ConfigError
from shared.protocol import (
    Accepted,
    Cancel,
    Choice,
    Delta,
    Done,
    Failed,
    Generate,
    Health,
    HealthReply,
    Usage,
    decode_reply,
    encode,
)
from tests.echo import HEALTH, Bench, EchoLoop
from tests.leaks import held
from tests.requests_of import make_model

PATIENCE_S = 20.0


@pytest.fixture
def make():
    with ExitStack() as stack:
        yield lambda **settings: Bench(stack, **settings)


@pytest.fixture
def bench(make):
    return make()


def receive(client, timeout_s=PATIENCE_S):
    assert client.poll(int(timeout_s * 1000)), "no answer"
    return decode_reply(client.recv())


def ask(client, message):
    client.send(message if isinstance(message, bytes) else encode(message))
    return receive(client)


def quiet(client):
    return not client.poll(100)


def until(condition):
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "did not come to pass"
        time.sleep(0.01)


def generate(client, request_id="r", prompt="abc", **fields):
    return ask(client, Generate(request_id=request_id, prompt=prompt, **fields))


def first_seen(bench):
    until(lambda: bench.loop.seen)  # it is accepted before the loop hears of it
    return bench.loop.seen[0]


def works(bench):
    """A new client gets a whole request through."""
    client = bench.client()
    assert isinstance(generate(client, "works"), Accepted)
    assert [receive(client).text for _ in range(3)] == ["a", "b", "c"]
    done = receive(client)
    assert isinstance(done, Done)
    assert done.choices[0].text == "abc"


def test_a_request(bench):
    works(bench)
    assert len(bench.loop.seen) == 1


def test_accepted_counts_the_prompt(bench):
    assert generate(bench.client()).prompt_tokens == 4


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"garbage", b"\x80", b"\xdd\xff\xff\xff\xff", b"\x91" * 1_000_000, bytes(4 << 20)])
def test_garbage_is_answered(bench, frame):
    reply = ask(bench.client(), frame)
    assert isinstance(reply, Failed)
    assert (reply.request_id, reply.error.code) == ("", "bad_request")
    works(bench)


def test_several_frames_are_no_message(bench):
    client = bench.client()
    client.send_multipart([encode(Health()), b"more"])
    reply = receive(client)
    assert (reply.error.code, "not 2" in reply.error.message) == ("bad_request", True)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"temprature": 1}, "temprature"),
        ({"sampling_params": {"temprature": 1}}, "temprature"),
        ({"sampling_params": {"temperature": float("nan")}}, "temperature"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"response_format": {"type": []}}, "response_format.type"),
        ({"prompt": 5}, "prompt"),
    ],
)
def test_wrong_fields_are_named(bench, fields, field):
    frame = msgspec.msgpack.encode({"type": "generate", "request_id": "mine", "prompt": "x", **fields})
    reply = ask(bench.client(), frame)
    assert isinstance(reply, Failed)
    assert (reply.request_id, reply.error.field) == ("mine", field)  # the sender can tell which request it was
    assert bench.loop.seen == []
    works(bench)


def test_a_refused_id_can_be_used_again(bench):
    client = bench.client()
    assert isinstance(generate(client, "r", prompt="x" * 100), Failed)
    assert isinstance(generate(client, "r"), Accepted)


def test_an_over_long_frame_costs_its_sender_alone(bench):
    bad, good = bench.client(), bench.client()
    assert isinstance(generate(good, "waits", prompt="wait"), Accepted)
    bad.send(bytes(protocol.MAX_FRAME_BYTES + 1))
    assert quiet(bad)
    assert ask(good, Health(nonce=3)).requests == ["waits"]
    works(bench)


def test_what_is_no_zeromq_peer(bench):
    host, port = bench.door.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"\xff" * 200)
        works(bench)


def test_random_frames_over_the_socket(bench):
    """Each gets exactly one answer, and the door stands. Requests that happen to be right are answered as such."""
    chosen = random.Random(7)  # one seed, so that a failure can be repeated
    client = bench.client()
    whole = encode(
        Generate(request_id="fuzz", prompt="abc", sampling_params={"temperature": 0.5}, structured_outputs={"regex": "a"})
    )
    for _ in range(300):
        frame = bytearray(whole if chosen.random() < 0.7 else chosen.randbytes(40))
        for _ in range(chosen.randint(1, 3)):
            frame[chosen.randrange(len(frame))] ^= 1 << chosen.randrange(8)
        client.send(bytes(frame[: chosen.randint(1, len(frame))] if chosen.random() < 0.3 else frame))
        reply = receive(client)
        while not isinstance(reply, Failed | Done | HealthReply):
            reply = receive(client)
    assert quiet(client)
    works(bench)


def test_an_id_in_use(bench):
    client = bench.client()
    assert isinstance(generate(client, "r", prompt="wait"), Accepted)
    again = generate(client, "r")
    assert again.error.field == "request_id"
    assert again.request_id == ""  # its own ending is still to come
    ending = ask(client, Cancel(request_id="r"))
    assert isinstance(ending, Done)
    assert ending.choices[0].finish_reason == "cancelled"
    assert quiet(client)


def test_the_same_id_of_two_clients(bench):
    one, other = bench.client(), bench.client()
    assert isinstance(generate(one, "r", prompt="wait"), Accepted)
    assert isinstance(generate(other, "r", prompt="wait"), Accepted)
    assert isinstance(ask(one, Cancel(request_id="r")), Done)
    assert quiet(other)
    assert ask(other, Health()).requests == ["r"]


def test_overload_is_said_at_once(make):
    bench = make(max_slots=1, max_waiting=1)
    client = bench.client()
    for name in ("1", "2"):
        assert isinstance(generate(client, name, prompt="wait"), Accepted)
    third = generate(bench.client(), "3", prompt="wait")
    assert (third.request_id, third.error.code) == ("3", "overloaded")
    assert isinstance(ask(client, Cancel(request_id="1")), Done)
    assert isinstance(generate(bench.client(), "3", prompt="wait"), Accepted)


def test_one_client_cannot_take_all_places(make):
    bench = make(max_requests_per_client=2)
    greedy = bench.client()
    for name in ("1", "2"):
        assert isinstance(generate(greedy, name, prompt="wait"), Accepted)
    assert generate(greedy, "3", prompt="wait").error.code == "overloaded"
    works(bench)


def test_cancel_of_what_is_not_open(bench):
    client = bench.client()
    client.send(encode(Cancel(request_id="never")))
    assert ask(client, Health(nonce=5)).nonce == 5
    assert bench.loop.cancelled == []


def test_only_the_first_ending_is_sent(bench):
    client = bench.client()
    assert isinstance(generate(client, "r", prompt="wait"), Accepted)
    key = first_seen(bench)
    done = Done(
        request_id="r",
        choices=[Choice(choice=0, text="", token_ids=[], finish_reason="stop")],
        usage=Usage(prompt_tokens=0, completion_tokens=0),
    )
    bench.door.reply(key[0], done)
    bench.door.reply(key[0], done)
    bench.door.reply(key[0], Delta(request_id="r", choice=0, sequence_number=9, text="late", token_ids=[]))
    assert receive(client) == done
    assert quiet(client)


def test_health_names_the_connections_own_requests(bench):
    client = bench.client()
    assert isinstance(generate(client, "mine", prompt="wait"), Accepted)
    assert isinstance(generate(bench.client(), "other", prompt="wait"), Accepted)
    assert ask(client, Health(nonce=7)).requests == ["mine"]


def test_a_client_that_goes_loses_its_requests(bench):
    client = bench.client()
    assert isinstance(generate(client, "r", prompt="wait"), Accepted)
    key = first_seen(bench)
    client.close()
    delta = Delta(request_id="r", choice=0, sequence_number=0, text="x", token_ids=[])

    def told():
        bench.door.reply(key[0], delta)
        return key in bench.loop.cancelled

    until(told)
    works(bench)


def test_a_client_that_never_reads_loses_its_requests(bench):
    """4,000 pieces of 10 KB for one that reads none: cancelled, and the memory of its queue is bounded."""
    deaf = bench.client(high_water_mark=1)
    deaf.send(encode(Generate(request_id="deaf", prompt="flood")))
    until(lambda: [name for _, name in bench.loop.cancelled] == ["deaf"])
    works(bench)


def test_a_prompt_that_the_tokenizer_chokes_on(bench, monkeypatch):
    def choke(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("tests.requests_of.ByteEncoder.encode", choke)
    reply = generate(bench.client())
    assert (reply.error.code, "ZeroDivisionError" in reply.error.message) == ("internal", True)
    monkeypatch.undo()
    works(bench)


def test_an_address_in_use_leaves_nothing_behind(bench):
    before = held()
    settings = WorkerSettings(client_bind=bench.door.address)
    with pytest.raises(ConfigError):
        FrontDoor(settings, make_model(), EchoLoop(), MonotonicClock(), lambda: HEALTH)
    assert held().beyond(before) == []
