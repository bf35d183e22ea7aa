"""The leak check itself: it sees each kind of thing that a test can leave, and nothing where nothing is left."""

import os
import socket
import subprocess
import sys
import threading

import zmq

from tests.leaks import held, leaks_since


def test_nothing_left_nothing_found():
    assert leaks_since(held(), grace_s=0.0) == []


def test_a_thread_is_found_until_it_ends():
    before, stop = held(), threading.Event()
    thread = threading.Thread(target=stop.wait, name="left-behind")
    thread.start()
    found = leaks_since(before, grace_s=0.0)
    stop.set()
    thread.join()
    assert found == ["thread left-behind"]
    assert leaks_since(before) == []


def test_a_child_is_found_until_it_is_reaped():
    before = held()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = leaks_since(before, grace_s=0.0)
    child.communicate(b"\n")
    assert any(line.startswith(f"child {child.pid}") for line in found)
    assert leaks_since(before) == []


def test_a_descriptor_is_found(tmp_path):
    before = held()
    number = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    found = leaks_since(before, grace_s=0.0)
    os.close(number)
    assert found == [f"descriptor {number} -> {tmp_path / 'file'}"]


def test_a_plain_socket_is_found():
    before = held()
    with socket.socket() as opened:
        found = leaks_since(before, grace_s=0.0)
        assert len(found) == 1
        assert found[0].startswith(f"descriptor {opened.fileno()} -> socket:")


def test_a_zmq_socket_is_found():
    before, context = held(), zmq.Context()
    opened = context.socket(zmq.DEALER)
    found = leaks_since(before, grace_s=0.0)
    opened.close(linger=0)
    context.term()
    assert found
    assert leaks_since(before) == []
