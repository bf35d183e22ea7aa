"""A TCP proxy between a service and a worker, in a thread: delays, stops, cuts and refuses what passes through it."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from urllib.parse import urlsplit

CHUNK_BYTES = 1 << 16


class _Pipe:
    """One direction of one connection: bytes wait in ``queue`` until they are due."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.queue: deque[tuple[float, bytes]] = deque()


class Proxy(threading.Thread):
    """Listens on ``address``. ``delay_s`` holds each piece back; ``hold()`` lets nothing through while connections stay up (a
    partition); ``cut()`` closes every connection; ``refuse`` takes no new ones."""

    def __init__(self, target: str) -> None:
        super().__init__(name="proxy", daemon=True)
        parts = urlsplit(target)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pipes: list[_Pipe] = []
        self._stopping, self._cutting = threading.Event(), threading.Event()
        self.delay_s = 0.0
        self.refuse = False
        self.held = threading.Event()
        self.start()

    def hold(self) -> None:
        self.held.set()

    def release(self) -> None:
        self.held.clear()

    def cut(self) -> None:
        self._cutting.set()
        while self._cutting.is_set() and self.is_alive():
            time.sleep(0.002)

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._turn()
        finally:
            self._close_all()
            self._listener.close()

    def _turn(self) -> None:
        if self._cutting.is_set():
            self._close_all()
            self._cutting.clear()
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            for pipe in self._pipes:
                selector.register(pipe.source, selectors.EVENT_READ, pipe)
            for key, _ in selector.select(0.002):
                if key.data is None:
                    self._accept()
                else:
                    self._read(key.data)
        self._write()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = None
        if not self.refuse:
            with contextlib.suppress(OSError):
                far = socket.create_connection(self._target, timeout=2)
        if far is None:
            near.close()
            return
        near.settimeout(5)
        self._pipes += [_Pipe(near, far), _Pipe(far, near)]

    def _read(self, pipe: _Pipe) -> None:
        try:
            data = pipe.source.recv(CHUNK_BYTES)
        except OSError:
            data = b""
        if data:
            pipe.queue.append((time.monotonic() + self.delay_s, data))
        else:
            self._close(pipe.source)

    def _write(self) -> None:
        for pipe in list(self._pipes):
            while pipe.queue and pipe.queue[0][0] <= time.monotonic() and not self.held.is_set():
                try:
                    pipe.target.sendall(pipe.queue.popleft()[1])
                except OSError:
                    self._close(pipe.source)

    def _close(self, end: socket.socket) -> None:
        for pipe in [pipe for pipe in self._pipes if end in (pipe.source, pipe.target)]:
            pipe.source.close()
            pipe.target.close()
            self._pipes.remove(pipe)

    def _close_all(self) -> None:
        for pipe in list(self._pipes):
            self._close(pipe.source)
