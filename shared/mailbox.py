"""A queue between threads whose reader can also be woken out of a ZMQ poll."""

from __future__ import annotations

import os
import queue
import select
from collections.abc import Iterable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class Mailbox(Generic[ItemT]):
    """Any thread puts, one thread takes. ``fileno`` is readable while items wait: register it with a poller."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[ItemT] = queue.SimpleQueue()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._event

    def put(self, item: ItemT) -> None:
        self._items.put(item)
        self.wake()

    def put_all(self, items: Iterable[ItemT]) -> None:
        """Several items, one wake: a reader that is woken for each would fight the writer for the interpreter."""
        for item in items:
            self._items.put(item)
        self.wake()

    def wake(self) -> None:
        """Ends the reader's poll without an item."""
        os.eventfd_write(self._event, 1)

    def take_all(self) -> list[ItemT]:
        """Everything that waits, without blocking."""
        self.clear()
        taken: list[ItemT] = []
        while True:
            try:
                taken.append(self._items.get_nowait())
            except queue.Empty:
                return taken

    def wait(self, timeout_s: float) -> None:
        """Blocks until an item (or ``wake``) comes or the time has passed."""
        select.select([self._event], [], [], timeout_s)

    def clear(self) -> None:
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:  # nobody has put since the last read
            return

    def close(self) -> None:
        os.close(self._event)
