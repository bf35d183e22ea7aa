"""The front door's books: room, names in use, one ending each."""

import pytest

from gpu_worker.clients import Clients
from shared.errors import BadRequest, Overloaded


def test_room():
    clients = Clients(max_requests=3, max_requests_per_client=2)
    clients.add(b"a", "1")
    clients.add(b"a", "2")
    with pytest.raises(Overloaded, match="2 are allowed"):
        clients.add(b"a", "3")
    clients.add(b"b", "1")  # the same id of another connection is another request
    with pytest.raises(Overloaded, match="takes 3"):
        clients.add(b"c", "1")
    assert clients.finish(b"a", "1")
    clients.add(b"c", "1")
    assert clients.total == 3
    clients.validate()


def test_an_id_in_use():
    clients = Clients(9, 9)
    clients.add(b"a", "1")
    with pytest.raises(BadRequest) as caught:
        clients.add(b"a", "1")
    assert caught.value.field == "request_id"
    assert clients.total == 1
    clients.finish(b"a", "1")
    clients.add(b"a", "1")


def test_one_ending():
    clients = Clients(9, 9)
    clients.add(b"a", "1")
    assert not clients.finish(b"b", "1")
    assert not clients.finish(b"a", "2")
    assert clients.finish(b"a", "1")
    assert not clients.finish(b"a", "1")
    assert clients.total == 0
    clients.validate()


def test_a_connection_that_goes():
    clients = Clients(9, 9)
    for name in ("2", "1"):
        clients.add(b"a", name)
    clients.add(b"b", "1")
    assert clients.of(b"a") == ["1", "2"]
    assert clients.drop(b"a") == ["1", "2"]
    assert clients.drop(b"a") == []
    assert clients.of(b"a") == []
    assert not clients.is_open(b"a", "1")
    assert clients.is_open(b"b", "1")
    clients.validate()


def test_books_that_disagree_are_noticed():
    clients = Clients(9, 9)
    clients.add(b"a", "1")
    clients._total = 5
    with pytest.raises(RuntimeError, match="disagree"):
        clients.validate()
