"""The mailbox: any thread puts, one takes, and a poll wakes."""

import select
import threading
import time

import pytest

from shared.mailbox import Mailbox


@pytest.fixture
def mailbox():
    made = Mailbox()
    yield made
    made.close()


def readable(mailbox, timeout_s=0.0):
    return bool(select.select([mailbox.fileno()], [], [], timeout_s)[0])


def test_order(mailbox):
    for item in (1, 2, 3):
        mailbox.put(item)
    assert readable(mailbox)
    assert mailbox.take_all() == [1, 2, 3]
    assert mailbox.take_all() == []
    assert not readable(mailbox)


def test_a_wake_without_an_item(mailbox):
    mailbox.wake()
    assert readable(mailbox)
    assert mailbox.take_all() == []
    assert not readable(mailbox)


def test_wait_ends_when_something_comes(mailbox):
    thread = threading.Timer(0.05, mailbox.put, [5])
    thread.start()
    begun = time.monotonic()
    mailbox.wait(60.0)
    thread.join()
    assert time.monotonic() - begun < 30
    assert mailbox.take_all() == [5]


def test_wait_ends_when_the_time_is_over(mailbox):
    mailbox.wait(0.01)
    assert mailbox.take_all() == []


def test_nothing_is_lost_between_threads(mailbox):
    def put(start):
        for item in range(start, start + 500):
            mailbox.put(item)

    threads = [threading.Thread(target=put, args=(start,)) for start in (0, 500, 1000)]
    for thread in threads:
        thread.start()
    taken, end_s = [], time.monotonic() + 30
    while len(taken) < 1500 and time.monotonic() < end_s:
        mailbox.wait(1.0)
        taken += mailbox.take_all()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1500))
    assert [item for item in taken if item < 500] == list(range(500))
