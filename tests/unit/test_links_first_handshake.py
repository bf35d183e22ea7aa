"""A service greets a worker that answers at once: no handshake is too quick to be seen."""

import queue

import zmq

from grammar_service.links import Connected, Links
from shared.sockets import bind_router, connect_dealer, last_endpoint


def test_a_dealer_is_watched_before_it_connects():
    context, seen = zmq.Context(), []
    router = bind_router(context, "tcp://127.0.0.1:*", insecure=False)
    dealer = connect_dealer(context, last_endpoint(router), watch=lambda socket: seen.append(socket.getsockopt(zmq.LAST_ENDPOINT)))
    for socket in (dealer, router):
        socket.close(0)
    context.term()
    assert seen == [b"\0"] or seen == [b""]  # connected to nothing yet


def test_every_first_handshake_is_reported():
    context = zmq.Context()
    router = bind_router(context, "tcp://127.0.0.1:*", insecure=False)
    inboxes = [queue.SimpleQueue() for _ in range(30)]
    links = [Links([last_endpoint(router)], insecure=False, resolve_s=5.0, inbox=inbox) for inbox in inboxes]
    try:
        for link in links:
            link.start()
        assert {type(inbox.get(timeout=10)) for inbox in inboxes} == {Connected}
    finally:
        for link in links:
            link.close()
        router.close(0)
        context.term()
