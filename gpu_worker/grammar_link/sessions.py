"""One session as the worker knows it: plan, committed tokens, where it lives, and the walk that it waits for."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_worker.grammar_link.events import Peer
from gpu_worker.grammar_link.walks import SessionId, Walk
from shared.digest import chain, of_walk
from shared.protocol import Plan, StepEntry


@dataclass(slots=True)
class PendingWalk:
    """The current walk of a session. ``message_number`` names the Step that carries it, None while it waits for credit or place."""

    walk: Walk
    digest: bytes
    since_s: float
    patience_s: float
    message_number: int | None = None
    answered: bool = False


@dataclass(slots=True)
class Session:
    """``told_length`` is the base the service last heard; ``vouched``: the last walk was answered in this epoch, so ``accepted``
    can be checked against it. ``suspect``: it was unanswered when its service died. ``parent`` is used for the first placement.
    ``tried``: services that owe the current walk an answer, or gave a wrong one."""

    session: SessionId
    guide_key: str
    plan: Plan
    plan_digest: bytes
    stop_ids: tuple[int, ...]
    stop_set: frozenset[int]
    committed: list[int]
    prefix_digest: bytes
    parent: SessionId | None = None
    epoch: int = 0
    peer: Peer | None = None
    opened: bool = False
    told_length: int = 0
    sequence_number: int = 0
    vouched: bool = False
    suspect: bool = False
    replays: int = 0
    orphan_since_s: float | None = None
    left_because: str = ""
    pending: PendingWalk | None = None
    tried: set[Peer] = field(default_factory=set)

    @property
    def unanswered(self) -> bool:
        return self.pending is not None and not self.pending.answered

    def is_retry(self, walk: Walk) -> bool:
        """Whether ``walk`` asks again for what the current one asks."""
        if walk.committed or self.pending is None:
            return False
        last = self.pending.walk
        return (list(last.path), list(last.parents), last.draft_walk) == (list(walk.path), list(walk.parents), walk.draft_walk)

    def begin(self, walk: Walk, now_s: float, patience_s: float) -> None:
        """Takes a new walk: commits its tokens and gives it the next sequence number."""
        last = self.pending
        if last is not None and not last.answered:
            self.vouched = False
        committed = walk.committed
        if (
            last is not None
            and len(committed) == len(last.walk.path) == 1
            and committed[0] == last.walk.path[0]
            and not last.walk.parents
        ):
            self.prefix_digest = last.digest  # without drafts that is the digest of the prefix with its golden token
        else:
            self.prefix_digest = chain(self.prefix_digest, committed)[-1]
        self.committed.extend(committed)
        self.sequence_number += 1
        self.pending = PendingWalk(walk, of_walk(self.prefix_digest, walk.path, walk.parents), now_s, patience_s)

    def leave(self, reason: str) -> None:
        """Off its service: what still comes from there is stale."""
        self.peer, self.opened, self.vouched, self.left_because = None, False, False, reason
        if self.pending is not None:
            self.pending.message_number = None

    def settle_on(self, peer: Peer, now_s: float) -> None:
        """A placement: a new epoch, and a new sequence number where a walk is unanswered."""
        self.peer, self.opened, self.vouched = peer, False, False
        self.epoch += 1
        self.told_length = len(self.committed)
        self.orphan_since_s = None
        if self.pending is not None and not self.pending.answered:
            self.sequence_number += 1
            self.pending.since_s = now_s

    def answer(self) -> None:
        """The walk's answer fits."""
        if self.pending is not None:
            self.pending.answered, self.vouched, self.opened, self.replays = True, True, True, 0
            self.tried.clear()

    def entry(self) -> StepEntry:
        """The current walk on the wire."""
        if self.pending is None:
            raise ValueError("no walk")
        walk, base = self.pending.walk, len(self.committed)
        committed, self.told_length = self.committed[self.told_length : base], base
        return StepEntry(
            self.session,
            self.epoch,
            self.sequence_number,
            base,
            self.prefix_digest,
            committed,
            list(walk.path),
            list(walk.parents),
            walk.accepted if self.vouched else -1,
            walk.draft_walk,
        )


def new_session(
    session: SessionId, guide_key: str, plan: Plan, stop_ids: tuple[int, ...], committed: list[int], parent: SessionId | None = None
) -> Session:
    """A session that is placed nowhere yet."""
    digest = plan.digest
    stop_set = frozenset(stop_ids)
    return Session(session, guide_key, plan, digest, stop_ids, stop_set, committed, chain(digest, committed)[-1], parent)
