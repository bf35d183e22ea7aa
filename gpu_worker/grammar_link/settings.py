"""Settings of the grammar link: how long things may take, and how much is kept."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shared.config import Settings


class LinkSettings(Settings, frozen=True, kw_only=True):
    """Times are seconds. A service that is killed is noticed by the next send; ``dead_after_s`` is for stopped and cut-off ones."""

    hold_after_s: Annotated[float, Meta(gt=0, description="longest wait of a step for rows; who is late holds")] = 0.1
    replay_after_s: Annotated[
        float, Meta(gt=0, description="patience with an unanswered session before it is replayed elsewhere")
    ] = 1.0
    dead_after_s: Annotated[float, Meta(gt=0, description="silence after which a grammar service counts as dead")] = 8.0
    start_after_s: Annotated[float, Meta(gt=0, description="silence allowed to a service that takes in the vocabulary")] = 120.0
    ping_interval_s: Annotated[float, Meta(gt=0, description="ping a silent service that owes nothing this often")] = 0.5
    probe_interval_s: Annotated[float, Meta(gt=0, description="ping a silent service that owes an answer this often")] = 0.1
    orphan_after_s: Annotated[float, Meta(gt=0, description="how long a running text waits for a service that offers its plan")] = (
        10.0
    )
    no_service: Annotated[
        Literal["wait", "refuse"], Meta(description="requests with a guide while no grammar service is there: wait or refuse")
    ] = "wait"
    lease_s: Annotated[float, Meta(gt=0, description="a service ends the sessions of a worker that is silent this long")] = 60.0
    load_factor: Annotated[float, Meta(ge=1, description="a service takes at most this many times the mean number of sessions")] = (
        1.25
    )
    max_services: Annotated[int, Meta(ge=1, description="grammar services registered at most")] = 256
    max_replays: Annotated[int, Meta(ge=1, description="replays of one walk after wrong answers before the session fails")] = 4
    pool_rows: Annotated[
        int, Meta(ge=0, le=4096, description="rows of the pool that a service may write; 0: rows travel inline")
    ] = 1024
    pool_services: Annotated[int, Meta(ge=0, le=256, description="services with a part of the pool; others send rows inline")] = 8
    plan_cache_entries: Annotated[int, Meta(ge=1, description="plans kept by guide key")] = 4096
    plan_cache_bytes: Annotated[int, Meta(ge=1, description="bytes of plan text kept")] = 64 << 20
    failure_ttl_s: Annotated[float, Meta(ge=0, description="how long a failed compilation is remembered")] = 2.0
    poison_ttl_s: Annotated[float, Meta(gt=0, description="how long a guide that ended two services is refused")] = 600.0

    @property
    def num_pool_rows(self) -> int:
        """Rows of the whole pool."""
        return self.pool_rows * self.pool_services


class VocabularyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the router must know of the vocabulary table: its name, its size and its chunks."""

    fingerprint: str
    vocab_size: int
    num_bytes: int
    num_chunks: int
