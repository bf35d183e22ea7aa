"""Sockets: the options that close known traps, exposure, and addresses."""

import pytest
import zmq

from shared import sockets
from shared.errors import ConfigError
from shared.protocol import MAX_FRAME_BYTES


@pytest.fixture
def context():
    with zmq.Context() as made:
        yield made


@pytest.fixture
def pair(context):
    router = sockets.bind_router(context, "tcp://127.0.0.1:*", insecure=False)
    dealer = sockets.connect_dealer(context, sockets.last_endpoint(router))
    yield router, dealer
    dealer.close()
    router.close()


def receive(socket, timeout_ms=5000):
    assert socket.poll(timeout_ms), "nothing came"
    return socket.recv_multipart()


def test_options_that_close_traps(pair):
    for socket in pair:
        assert socket.getsockopt(zmq.LINGER) == 0
        assert socket.getsockopt(zmq.MAXMSGSIZE) == MAX_FRAME_BYTES
        assert socket.getsockopt(zmq.SNDHWM) == socket.getsockopt(zmq.RCVHWM) == 1000
        assert 0 < socket.getsockopt(zmq.HEARTBEAT_IVL) < socket.getsockopt(zmq.HEARTBEAT_TIMEOUT)
        assert socket.getsockopt(zmq.HANDSHAKE_IVL) > 0
    assert pair[1].getsockopt(zmq.IMMEDIATE) == 1


def test_there_and_back(pair):
    router, dealer = pair
    dealer.send(b"hello")
    client, frame = receive(router)
    assert frame == b"hello"
    router.send_multipart([client, b"there"])
    assert receive(dealer) == [b"there"]


def test_an_unknown_peer_is_an_error_and_no_silence(pair):
    with pytest.raises(zmq.ZMQError) as caught:
        pair[0].send_multipart([b"nobody", b"x"])
    assert caught.value.errno == zmq.EHOSTUNREACH


def test_an_over_long_frame_never_arrives(pair):
    router, dealer = pair
    dealer.send(b"first")
    receive(router)
    dealer.send(bytes(MAX_FRAME_BYTES + 1))
    assert not router.poll(300)


def test_nothing_is_queued_for_a_peer_that_is_not_there(context):
    dealer = sockets.connect_dealer(context, "tcp://127.0.0.1:1")
    with pytest.raises(zmq.Again):
        dealer.send(b"x", zmq.NOBLOCK)
    dealer.close()


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("tcp://127.0.0.1:5555", True), ("tcp://127.9.9.9:1", True), ("tcp://localhost:5555", True), ("tcp://[::1]:5555", True),
        ("ipc:///tmp/x", True), ("inproc://x", True), ("tcp://0.0.0.0:5555", False), ("tcp://*:5555", False),
        ("tcp://10.0.0.1:5555", False), ("tcp://worker:5555", False), ("tcp://[::]:5555", False), ("nonsense", False),
    ],
)  # fmt: skip
def test_exposure(address, local):
    assert sockets.is_local(address) is local
    if local:
        sockets.check_exposure(address, insecure=False)
    else:
        with pytest.raises(ConfigError, match="insecure=true"):
            sockets.check_exposure(address, insecure=False)
    sockets.check_exposure(address, insecure=True)


def test_an_exposed_bind_without_keys_stops_the_start(context):
    with pytest.raises(ConfigError) as caught:
        sockets.bind_router(context, "tcp://0.0.0.0:*", insecure=False)
    assert caught.value.field == "insecure"


@pytest.mark.parametrize("address", ["tcp://127.0.0.1", "nonsense://x", "tcp://127.0.0.1:99999999"])
def test_a_bad_address_is_named(context, address):
    for make in (sockets.bind_router, sockets.connect_dealer):
        with pytest.raises(ConfigError) as caught:
            make(context, address, insecure=True)
        assert address in str(caught.value)


def test_a_port_in_use_is_named(context, pair):
    address = sockets.last_endpoint(pair[0])
    with pytest.raises(ConfigError, match="Address already in use"):
        sockets.bind_router(context, address, insecure=False)


def test_every_address_of_a_name():
    assert sockets.resolve_all("tcp://localhost:7") == ["tcp://127.0.0.1:7"]
    assert sockets.resolve_all("ipc:///tmp/x") == ["ipc:///tmp/x"]
    with pytest.raises(OSError, match=r"\w"):
        sockets.resolve_all("tcp://no.such.name.invalid:7")
