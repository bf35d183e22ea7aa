"""The only place that makes ZMQ sockets and sets options. One comment an option, with the trap that it closes."""

from __future__ import annotations

import ipaddress
import socket as stdlib_socket
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import zmq

from shared.errors import ConfigError
from shared.protocol import MAX_FRAME_BYTES

SocketT = TypeVar("SocketT", bound="zmq.Socket[Any]")

HEARTBEAT_INTERVAL_MS = 500
HEARTBEAT_TIMEOUT_MS = 2_000
HANDSHAKE_TIMEOUT_MS = 2_000


def configure(socket: zmq.Socket[Any], *, high_water_mark: int = 1_000, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
    """Options that every socket has."""
    socket.setsockopt(zmq.LINGER, 0)  # default -1 keeps a process from ending while a peer is dead
    socket.setsockopt(zmq.SNDHWM, high_water_mark)  # the last bound behind credits
    socket.setsockopt(zmq.RCVHWM, high_water_mark)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)  # an over-long frame drops the connection, not the process
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_INTERVAL_MS)  # a stopped or cut peer otherwise looks alive for ever
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_TIMEOUT_MS)  # half-open connections go away
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)


def bind_router(
    context: zmq.Context[SocketT], address: str, *, insecure: bool, high_water_mark: int = 1_000, never_stop_input: bool = False
) -> SocketT:
    """ROUTER bound to ``address``; ``never_stop_input`` for peers that nobody trusts. Raises ConfigError for an address that is not
    loopback unless ``insecure`` says so."""
    check_address(address)
    check_exposure(address, insecure)
    socket = context.socket(zmq.ROUTER)
    configure(socket, high_water_mark=high_water_mark)
    if never_stop_input:
        # libzmq 4.3.5 can abort the process where a peer closes while its input is stopped at the mark
        socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else a message to a gone or full peer is dropped in silence
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close(0)
        raise ConfigError(f"cannot bind {address}: {error}", field="bind") from error
    return socket


def connect_dealer(
    context: zmq.Context[SocketT], address: str, *, insecure: bool = True, high_water_mark: int = 1_000,
    watch: Callable[[SocketT], None] | None = None,
) -> SocketT:  # fmt: skip
    """DEALER connected to ``address``; its identity is random, fresh for each connection (HANDOVER is never needed).

    ``watch`` gets the socket before it connects: a monitor that is attached later can miss the first handshake."""
    check_address(address)
    check_exposure(address, insecure)
    socket = context.socket(zmq.DEALER)
    configure(socket, high_water_mark=high_water_mark)
    socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for a peer that is not there
    if watch is not None:
        watch(socket)
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        socket.close(0)
        raise ConfigError(f"cannot connect to {address}: {error}", field="connect") from error
    return socket


def check_address(address: str) -> None:
    """Raises ConfigError for a tcp address whose port is none: libzmq takes the lower 16 bits of any number."""
    if address.startswith("tcp://"):
        port = address.rpartition(":")[2]
        if port != "*" and not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise ConfigError(f"{address} has no port between 0 and 65535", field="address")


def check_exposure(address: str, insecure: bool) -> None:
    """Raises ConfigError where ``address`` leaves this host and nothing says that this is meant."""
    if not insecure and not is_local(address):
        raise ConfigError(
            f"{address} can be reached from other hosts and the link has no keys; set insecure=true where the network is private",
            field="insecure",
        )


def is_local(address: str) -> bool:
    """True for ipc, inproc and loopback tcp addresses."""
    parts = urlsplit(address)
    if parts.scheme in ("ipc", "inproc"):
        return True
    host = (parts.hostname or "").strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def resolve_all(address: str) -> list[str]:
    """Every address of a tcp name, so that scaled workers are all reached; other transports as they are. OSError if unknown."""
    parts = urlsplit(address)
    if parts.scheme != "tcp" or parts.hostname is None:
        return [address]
    found = stdlib_socket.getaddrinfo(parts.hostname, parts.port, type=stdlib_socket.SOCK_STREAM, family=stdlib_socket.AF_INET)
    return sorted({f"tcp://{entry[4][0]}:{parts.port}" for entry in found})


def last_endpoint(socket: zmq.Socket[Any]) -> str:
    """The address a socket is bound to (the port chosen for ``tcp://127.0.0.1:*``)."""
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    return bytes(endpoint).rstrip(b"\0").decode() if not isinstance(endpoint, int) else ""
