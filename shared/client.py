"""The ZMQ client: ``AsyncClient`` for asyncio programs, ``Client`` as its blocking face.

    with Client("tcp://127.0.0.1:5555") as client:
        result = client.generate("Who are you?", schema={"type": "object", ...}, max_tokens=100)
        print(result.text, result.valid)

A worker that dies or restarts is noticed within ``lost_after_s``: its requests raise ``WorkerLost``, whose ``token_ids`` can be
sent again as ``output_token_ids`` (a seeded request goes on exactly where it was).
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from shared import protocol
from shared.connection import Connection
from shared.errors import BadRequest, TooLarge, WorkerLost
from shared.gate import Gate
from shared.protocol import (
    Accepted,
    Cancel,
    ChatMessage,
    Delta,
    Done,
    Failed,
    Generate,
    Health,
    HealthReply,
)
from shared.result import Result as Result

DEFAULT_ADDRESS = "tcp://127.0.0.1:5555"
ResultT = TypeVar("ResultT")


def make_generate(
    prompt: str | None = None, *, messages: Sequence[Any] | None = None, prompt_token_ids: Sequence[int] | None = None,
    output_token_ids: Sequence[int] = (), schema: Any = None, regex: str | None = None, choice: Sequence[str] | None = None,
    response_format: dict[str, Any] | None = None, structured_outputs: dict[str, Any] | None = None,
    reasoning: Gate | dict[str, Any] | None = None, tools: Sequence[dict[str, Any]] | None = None,
    tool_choice: str | dict[str, Any] | None = None, parallel_tool_calls: bool = True, stream: bool = True,
    verify: bool = False, deadline_s: float | None = None, request_id: str | None = None, **sampling_params: Any,
) -> Generate:  # fmt: skip
    """A Generate message; ``schema``, ``regex`` and ``choice`` are short for ``structured_outputs``. Other names are parameters."""
    short = {name: value for name, value in (("json", schema), ("regex", regex), ("choice", choice)) if value is not None}
    if short:
        structured_outputs = {**(structured_outputs or {}), **short}
    gate = msgspec.convert(reasoning, Gate) if isinstance(reasoning, dict) else reasoning
    chat = [m if isinstance(m, ChatMessage) else ChatMessage(**m) for m in messages] if messages is not None else None
    return Generate(
        request_id=request_id or secrets.token_hex(8), prompt=prompt, messages=chat,
        prompt_token_ids=list(prompt_token_ids) if prompt_token_ids is not None else None,
        output_token_ids=list(output_token_ids), sampling_params=sampling_params, response_format=response_format,
        structured_outputs=structured_outputs, reasoning=gate, tools=list(tools) if tools is not None else None,
        tool_choice=tool_choice, parallel_tool_calls=parallel_tool_calls, stream=stream, verify=verify, deadline_s=deadline_s,
    )  # fmt: skip


class AsyncClient:
    """One connection to a worker; any number of requests at once. Use as an async context manager."""

    def __init__(self, address: str = DEFAULT_ADDRESS, *, lost_after_s: float = 5.0, heartbeat_s: float = 1.0) -> None:
        self._address, self._lost_after_s, self._heartbeat_s = address, lost_after_s, heartbeat_s
        self._pending: dict[str, asyncio.Queue[Accepted | Delta | Done | Failed | WorkerLost]] = {}
        self._health_waiters: dict[int, asyncio.Future[HealthReply]] = {}
        self._known_at_ping: dict[int, frozenset[str]] = {}
        self._nonce = 0
        self._last_heard_s = 0.0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()

        def on_frame(frame: bytes) -> None:
            loop.call_soon_threadsafe(self._heard, frame)

        self._connection = Connection(self._address, on_frame)
        self._last_heard_s = loop.time()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._watcher.cancel()
        await asyncio.gather(self._watcher, return_exceptions=True)
        await asyncio.to_thread(self._connection.close)

    async def stream(self, prompt: str | None = None, **arguments: Any) -> AsyncIterator[Delta | Result]:
        """Yields Delta pieces as they come, then the Result. Raises the error the worker reports, by its class."""
        message = make_generate(prompt, **arguments)
        if message.request_id in self._pending:
            raise BadRequest(f"{message.request_id!r} is in use by an unfinished request", field="request_id")
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._pending[message.request_id] = inbox
        tokens: list[int] = []
        ended = False
        try:
            self._send(message)
            while not ended:
                reply = await inbox.get()
                ended = isinstance(reply, Done | Failed | WorkerLost)
                if isinstance(reply, Delta):
                    tokens += reply.token_ids if reply.choice == 0 else []
                    yield reply
                elif isinstance(reply, Failed):
                    raise reply.error.exception()
                elif isinstance(reply, WorkerLost):
                    reply.token_ids = tokens
                    raise reply
                elif isinstance(reply, Done):
                    yield Result.of(reply)
        finally:
            self._pending.pop(message.request_id, None)
            if not ended:  # the caller has stopped listening; an ended request is not known there and nothing happens
                self._send(Cancel(request_id=message.request_id))

    async def generate(self, prompt: str | None = None, **arguments: Any) -> Result:
        """The finished request."""
        async for piece in self.stream(prompt, **arguments):
            if isinstance(piece, Result):
                return piece
        raise WorkerLost("the stream ended without a result")

    async def cancel(self, request_id: str) -> None:
        """Asks for an early end: the request still gets its one ending, with what it has."""
        self._send(Cancel(request_id=request_id))

    async def health(self, timeout_s: float = 5.0) -> HealthReply:
        """A real round trip through the worker's front door. Raises WorkerLost after ``timeout_s``."""
        nonce = self._next_nonce()
        waiter: asyncio.Future[HealthReply] = asyncio.get_running_loop().create_future()
        self._health_waiters[nonce] = waiter
        try:
            self._send(Health(nonce=nonce))
            await asyncio.wait_for(waiter, timeout_s)
        except TimeoutError:
            raise WorkerLost(f"no answer from {self._address} in {timeout_s} s") from None
        finally:
            self._health_waiters.pop(nonce, None)
        return waiter.result()

    def _next_nonce(self) -> int:
        """A new number for a Health message, with the requests that were queued before it."""
        self._nonce += 1
        self._known_at_ping[self._nonce] = frozenset(self._pending)
        return self._nonce

    def _send(self, message: Generate | Cancel | Health) -> None:
        frame = protocol.encode(message)
        if len(frame) > protocol.MAX_FRAME_BYTES:
            raise TooLarge(f"{len(frame)} bytes; a frame holds {protocol.MAX_FRAME_BYTES}", field="request")
        self._connection.send(frame)

    def _heard(self, frame: bytes) -> None:
        self._last_heard_s = asyncio.get_running_loop().time()
        try:
            self._dispatch(protocol.decode_reply(frame))
        except BadRequest as error:
            self._give_up(f"the worker at {self._address} sent what cannot be read: {error.message}")

    def _dispatch(self, message: protocol.WorkerReply) -> None:
        if isinstance(message, HealthReply):
            self._compare(message)
            waiter = self._health_waiters.get(message.nonce)
            if waiter is not None and not waiter.done():
                waiter.set_result(message)
        elif (inbox := self._pending.get(message.request_id)) is not None:
            inbox.put_nowait(message)

    def _compare(self, message: HealthReply) -> None:
        """Requests sent before the question that the worker does not know any more were lost with it."""
        asked = self._known_at_ping.pop(message.nonce, frozenset())
        self._known_at_ping = {n: known for n, known in self._known_at_ping.items() if n > message.nonce}
        for request_id in (asked & set(self._pending)) - set(message.requests):
            inbox = self._pending[request_id]
            if inbox.empty():
                inbox.put_nowait(WorkerLost(f"the worker at {self._address} does not know {request_id} any more"))

    async def _watch(self) -> None:
        """While requests are open and the line is quiet, asks for health; gives up on a worker that does not answer."""
        while True:
            await asyncio.sleep(self._heartbeat_s)
            quiet_s = asyncio.get_running_loop().time() - self._last_heard_s
            if not self._pending:
                self._last_heard_s = asyncio.get_running_loop().time()
            elif quiet_s > self._lost_after_s:
                self._give_up(f"no sign of life from {self._address} for {quiet_s:.1f} s")
            else:
                self._send(Health(nonce=self._next_nonce()))

    def _give_up(self, reason: str) -> None:
        self._connection.drop_unsent()
        for inbox in self._pending.values():
            inbox.put_nowait(WorkerLost(reason))


class Client:
    """Blocking face of AsyncClient, for scripts and threads. Use as a context manager."""

    def __init__(self, address: str = DEFAULT_ADDRESS, *, lost_after_s: float = 5.0) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="client", daemon=True)
        self._client = AsyncClient(address, lost_after_s=lost_after_s)

    def __enter__(self) -> Self:
        self._thread.start()
        self._wait(self._client.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._wait(self._client.__aexit__(kind, error, trace))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def generate(self, prompt: str | None = None, **arguments: Any) -> Result:
        """The finished request; see ``make_generate`` for the arguments."""
        result: Result = self._wait(self._client.generate(prompt, **arguments))
        return result

    def stream(self, prompt: str | None = None, **arguments: Any) -> Iterator[Delta | Result]:
        """Delta pieces as they come, then the Result."""
        pieces: queue.SimpleQueue[Delta | Result | BaseException | None] = queue.SimpleQueue()
        future = asyncio.run_coroutine_threadsafe(self._pump(pieces, prompt, arguments), self._loop)
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            future.cancel()

    def health(self, timeout_s: float = 5.0) -> HealthReply:
        reply: HealthReply = self._wait(self._client.health(timeout_s))
        return reply

    def cancel(self, request_id: str) -> None:
        self._wait(self._client.cancel(request_id))

    async def _pump(
        self, pieces: queue.SimpleQueue[Delta | Result | BaseException | None], prompt: str | None, arguments: dict[str, Any]
    ) -> None:
        try:
            async for piece in self._client.stream(prompt, **arguments):
                pieces.put(piece)
            pieces.put(None)
        except Exception as error:
            pieces.put(error)

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
