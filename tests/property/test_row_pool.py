"""The remote row pool end to end, without sockets: what a service writes and refers to, through the worker's router and pool, under
eviction, refused answers, lost messages, late answers, retries, reconnects and other services that want the same rows."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.grammar_link import events
from gpu_worker.grammar_link.router import Router
from gpu_worker.grammar_link.row_pool import RowPool as HostPool
from gpu_worker.grammar_link.rows import sources, write_rows
from gpu_worker.grammar_link.settings import LinkSettings, VocabularyInfo
from gpu_worker.grammar_link.walks import Walk
from grammar_service.frames import Frames
from grammar_service.row_pool import RowPool
from grammar_service.rows import RowStore
from shared.bitmask import RowKind, num_words, pack
from shared.digest import of_walk
from shared.protocol import Hello, Plan, Pong, Ready, Step, StepAnswer, StepAnswerEntry, StepStatus, Welcome, decode_service, encode

SIZE, ROWS, SESSIONS = 2_100, 3, 3
INFO = VocabularyInfo(fingerprint="f" * 32, vocab_size=SIZE, num_bytes=10, num_chunks=1)
PLAN = Plan(engine="toy", engine_version="1", guide_kind="regex", grammar_kind="toy", text="x")
STOPS = (3, 2_099)
CONTENTS = [
    pack(ids, SIZE)
    for ids in (
        range(700), range(1, 701), range(0, SIZE, 2), range(5, 1_005), [7], [1, 2, 3, 4, 5], [31, 32, 63, 64, 2_098, 2_099],
        range(600, 1_200), list(STOPS), range(SIZE), [0, 1],
    )
]  # fmt: skip


class Received:
    """A frame as the worker's socket gives it."""

    def __init__(self, data: bytes) -> None:
        self.buffer = memoryview(data)


class Service:
    """The service's part: its pool and store, and what it has said and the worker has not heard yet."""

    def __init__(self, peer: bytes) -> None:
        self.peer = peer
        self.store = RowStore(SIZE, 4_000)  # so small that rows are dropped and made anew
        self.pool = RowPool()
        self.inbox: list[object] = []
        self.outbox: list[list[bytes]] = []
        self.num_welcomes = 0

    def work(self, choose) -> None:
        """Takes one message; ``choose`` gives the content for a row."""
        message = self.inbox.pop(0)
        if isinstance(message, Welcome):
            self.num_welcomes += 1
            self.pool = self.pool.grant(message.pool_base, message.pool_rows)
        elif isinstance(message, Step):
            self.pool.begin(message.step, message.retired_step)
            frames = Frames(self.pool)
            entries = [self._entry(entry, frames, choose) for entry in message.entries]
            self.outbox.append([encode(StepAnswer(step=message.step, entries=entries, writes=frames.writes)), *frames.frames])
            assert len(self.pool) <= self.pool.rows

    def _entry(self, entry, frames: Frames, choose) -> StepAnswerEntry:
        rows = [self.store.intern(CONTENTS[choose(entry)]) for _ in entry.path or [0]]
        walk = of_walk(entry.prefix_digest, entry.path, entry.parents)
        wire = [frames.wire(row, frozenset(STOPS)) for row in rows]
        return StepAnswerEntry(
            entry.handle, entry.epoch, entry.sequence_number, walk, StepStatus.OK, len(entry.path), len(rows), wire
        )


class World:
    """A worker with a router and a host pool; sessions whose rows are compared with what the service filled."""

    def __init__(self, services: int, *, pool_services: int = 2, rows: int = ROWS) -> None:
        self.router = Router(LinkSettings(pool_rows=rows, pool_services=pool_services, max_replays=1000, dead_after_s=15.0), INFO)
        self.host = HostPool(rows * pool_services, SIZE)
        self.services: dict[bytes, Service] = {}
        self.filled: dict[tuple[int, int, int], int] = {}
        self.kept: dict[int, tuple[object, object]] = {}
        self.delivered: dict[int, int] = {}
        self.step = self.num_read = self.num_pooled = 0
        self.counts: list[str] = []
        self._connections = 0
        self.retired = 0
        self.referred: dict[int, int] = {}  # index to the last step that was answered with it
        self.now_s = 0.0
        for _ in range(services):
            self.connect()
        for session in range(1, SESSIONS + 1):
            self.tell(events.OpenSession(session, "k", PLAN, STOPS, ()))

    def connect(self, instance: str = "") -> None:
        self._connections += 1
        peer = b"p%d" % self._connections
        self.services[peer] = Service(peer)
        hello = Hello(service="s", instance=instance or peer.decode(), engines={"toy": "1"})
        self.tell(events.Received(peer, hello))
        self.tell(events.Received(peer, Ready(fingerprint=INFO.fingerprint)))

    def reconnect(self, peer: bytes) -> None:
        """The same process, a new connection: what was on its way is gone."""
        known = self.router.services.get(peer)
        del self.services[peer]
        self.connect(known.instance if known is not None else "")

    def tell(self, event, frames=()) -> None:
        for action in self.router.handle(event, self.now_s):
            self._act(action, frames)
        self.router.validate()

    def _act(self, action, frames) -> None:
        if isinstance(action, events.Send) and action.peer in self.services:
            self.services[action.peer].inbox.append(action.message)
        elif isinstance(action, events.WritePool):
            assert self.referred.get(action.write.index, -1) <= self.retired, "written while a step may still read it"
            self.host.write(action.write, frames)
        elif isinstance(action, events.Deliver):
            self.kept[action.session] = (action.entry, sources(action.entry, frames, self.host))
            self.read(action.session)
        elif isinstance(action, events.Redeliver):
            self.read(action.session)
        elif isinstance(action, events.Count):
            self.counts.append(action.label)
        assert not isinstance(action, events.SessionFailed), action

    def read(self, session: int) -> None:
        """The row read through the index equals the row filled."""
        entry, rows = self.kept[session]
        out = np.full((len(entry.rows), num_words(SIZE)), 0x55, dtype=np.int32)
        write_rows(entry, rows, out, 0, len(out), frozenset(STOPS))
        for index, words in enumerate(out):
            wanted = CONTENTS[self.filled[session, entry.sequence_number, index]].copy()
            got = words.copy()
            wanted[-1] &= (1 << SIZE % 32) - 1
            got[-1] &= (1 << SIZE % 32) - 1
            assert (got == wanted).all(), (session, entry, index)
        self.num_read += len(out)
        self.num_pooled += sum(row.kind == RowKind.POOL for row in entry.rows)
        self.delivered[session] = entry.sequence_number

    def submit(self, sessions, retired: int, depth: int) -> None:
        """The next walk of sessions that have their rows; a retry of those that wait."""
        self.step += 1
        walks = []
        for session in sessions:
            known = self.router.sessions.by_id[session]
            if known.pending is None:
                walks.append(Walk(session))
            elif known.unanswered:
                walks.append(known.pending.walk._replace(committed=()))
            else:
                walks.append(
                    Walk(session, committed=known.pending.walk.path[:1], path=[(self.step + i) % 90 for i in range(depth)])
                )
        self.retired = max(self.retired, self.step - retired)
        self.tell(events.SubmitStep(self.step, max(self.step - retired, 0), tuple(walks)))

    def retry(self, session: int) -> None:
        known = self.router.sessions.by_id[session]
        if known.pending is not None and not known.unanswered:
            self.tell(events.SubmitStep(self.step, 0, (known.pending.walk._replace(committed=()),)))

    def work(self, peer: bytes, choice) -> None:
        def choose(entry) -> int:
            nth = sum((entry.handle, entry.sequence_number, n) in self.filled for n in range(8))
            key = (entry.handle, entry.sequence_number, nth if nth < max(len(entry.path), 1) else 0)
            return self.filled.setdefault(key, next(choice) % len(CONTENTS))

        if self.services[peer].inbox:
            self.services[peer].work(choose)

    def hear(self, peer: bytes, tamper: str = "") -> None:
        """One answer reaches the worker: as it is, not at all, or with entries that are refused."""
        outbox = self.services[peer].outbox
        if not outbox:
            return
        message, *frames = outbox.pop(0)
        if tamper == "lost":
            return
        answer = decode_service(message)
        if tamper == "refused":
            wrong = [StepAnswerEntry(e.handle, e.epoch, e.sequence_number, b"x" * 8, *_rest(e)) for e in answer.entries]
            answer = StepAnswer(step=answer.step, entries=wrong, writes=answer.writes)
        parts = [Received(frame) for frame in frames]
        pooled = [row.value for entry in answer.entries for row in entry.rows if row.kind == RowKind.POOL]
        self.tell(events.Received(peer, answer, tuple(len(f) for f in frames)), parts)
        self.referred.update(dict.fromkeys(pooled, answer.step))

    def settle(self, choice) -> None:
        """Everything that is on its way arrives."""
        for _ in range(200):
            busy = [s for s in list(self.services.values()) if s.inbox or s.outbox]
            if not busy and not self.router.sessions.unanswered:
                return
            if not busy:
                self._wait()
            for service in busy:
                self.work(service.peer, choice)
                self.hear(service.peer)
        raise AssertionError("the two sides never agree")

    def _wait(self) -> None:
        """So long that what was lost is asked for again."""
        self.now_s += 20.0
        for peer in self.services:
            self.tell(events.Received(peer, Pong(nonce=0)))
        self.tell(events.Tick())


def _rest(entry):
    return entry.status, entry.num_advanced, entry.num_guided, entry.rows


def numbers(seed: int):
    rng = np.random.default_rng(seed)
    while True:
        yield int(rng.integers(0, 1 << 30))


MOVES = ["submit"] * 5 + ["work"] * 9 + ["hear"] * 7 + ["retry"] * 2
FAULTS = ["lost", "refused", "reconnect"]


@pytest.mark.parametrize("services", [1, 2, 3])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 20), faults=st.sampled_from([0.0, 0.02, 0.1]), contents=st.sampled_from([4, len(CONTENTS)]))
def test_the_row_read_is_the_row_filled(services: int, seed: int, faults: float, contents: int) -> None:  # spec R13
    world, choice = World(services), (number % contents for number in numbers(seed))
    rng = random.Random(seed)
    world.settle(choice)
    for _ in range(400):
        peer = rng.choice(list(world.services))
        move = rng.choice(FAULTS if rng.random() < faults else MOVES)
        if move == "submit":
            sessions = [session for session in range(1, SESSIONS + 1) if rng.random() < 0.6]
            world.submit(sessions, retired=rng.choice([1, 1, 2, 5]), depth=rng.choice([1, 1, 1, 2]))
        elif move == "work":
            world.work(peer, choice)
        elif move == "retry":
            world.retry(rng.randint(1, SESSIONS))
        elif move == "reconnect":
            world.reconnect(peer)
        else:
            world.hear(peer, move)
    world.settle(choice)
    world.submit(range(1, SESSIONS + 1), 1, 1)
    world.settle(choice)
    assert not world.router.sessions.unanswered
    for session in range(1, SESSIONS + 1):
        world.retry(session)


def test_rows_are_read_through_the_pool_and_indices_change_hands() -> None:  # spec R13
    world, choice = World(1), numbers(7)
    for _ in range(200):
        world.submit(range(1, SESSIONS + 1), 1, 1)
        world.settle(choice)
    (service,) = world.services.values()
    assert world.num_pooled > 200
    assert service.pool._generation > 5 * ROWS  # evicted and written again
    assert service.num_welcomes == 1


def test_a_lost_write_is_noticed_and_the_service_begins_again() -> None:  # spec R13
    world = World(1)
    world.submit([1], 1, 1)
    (service,) = world.services.values()
    while not service.outbox:
        world.work(service.peer, iter([0] * 50))
    world.hear(service.peer, "lost")
    world.submit([2], 1, 1)
    world.settle(iter([0] * 50))
    assert service.num_welcomes == 2
    assert 2 in world.delivered
    assert "pool" in world.counts


def test_writes_count_where_the_answer_is_refused() -> None:  # spec R13
    world = World(1)
    world.submit([1], 1, 1)
    (service,) = world.services.values()
    while not service.outbox:
        world.work(service.peer, iter([0] * 50))
    world.hear(service.peer, "refused")
    world.settle(iter([0] * 50))
    assert world.delivered and service.num_welcomes == 1 and service.pool._generation == 1


def test_a_third_service_sends_its_rows_inline_and_gets_a_partition_when_one_is_free() -> None:  # spec R13
    world, choice = World(3), numbers(1)
    world.settle(choice)
    assert sorted(s.pool.rows for s in world.services.values()) == [0, ROWS, ROWS]
    world.submit(range(1, SESSIONS + 1), 1, 1)
    granted = next(s.peer for s in world.services.values() if s.pool.rows)
    world.tell(events.SendFailed(granted, "gone"))
    del world.services[granted]
    assert world.router.partitions.grant(world.step - 1) is None  # step 1 may still read from it
    world.submit(range(1, SESSIONS + 1), 0, 1)
    world.connect()
    world.settle(choice)
    assert sorted(s.pool.rows for s in world.services.values()) == [0, ROWS, ROWS]
