"""The accounting of one step entry: bring the history to the base, walk the path, say which rows it made (spec 42-48, R6-R8).

A walk is a generator: it yields the matcher whose row it needs next and is sent that row, so that the rows of many sessions are
filled in one native call, and so that a test can drive it with a scripted matcher.
"""

from __future__ import annotations

from collections.abc import Generator

from grammar_service.engines.base import Matcher
from grammar_service.rows import Row, RowStore
from grammar_service.sessions import Answer, Session, Walking
from shared import digest
from shared.bitmask import RowKind
from shared.errors import AccountingError, BadRequest
from shared.protocol import StepEntry, StepStatus

Filling = Generator[Matcher, Row, Row]


def walk(session: Session, entry: StepEntry, store: RowStore) -> Walking:
    """The walk of one entry. Raises MaskstreamError where the request fails; the session is then of no more use."""
    if not align(session, entry):
        return Answer(StepStatus.RESYNC)
    known, session.rows = session.rows, {}
    base = known.get(session.digests[-1]) if len(entry.path) == 1 and not entry.parents else None
    if base is not None and session.matcher.is_guided():
        answer = yield from _golden(session, entry, base, store)
    else:
        path = Path(session, known, store)
        answer = yield from (_tree(path, entry) if entry.parents else _chain(path, entry))
    if not entry.draft_walk:
        session.walk_base, session.walk_advanced = entry.base_length, answer.num_advanced
    return answer


def align(session: Session, entry: StepEntry) -> bool:
    """Brings the history to ``base_length``: rolls back what was not committed, replays what is missing. False: resync."""
    start, tokens = entry.base_length - len(entry.committed), session.tokens
    if entry.base_length == len(tokens) and start >= 0 and tokens[start:] == entry.committed:  # as the last walk left it
        if session.digests[-1] != entry.prefix_digest:
            return False
        cross_check(session, entry, start)
        return True
    if not 0 <= start <= len(session.tokens):
        return False
    keep = start
    for mine, committed in zip(session.tokens[start:], entry.committed, strict=False):
        if mine != committed:
            break
        keep += 1
    missing = entry.committed[keep - start :]
    if digest.chain(session.digests[keep], missing)[-1] != entry.prefix_digest:
        return False
    cross_check(session, entry, start)
    session.cut(keep)
    session.replay(missing)
    return True


def cross_check(session: Session, entry: StepEntry, start: int) -> None:
    """The verifier's count against ours, once a walk: the base moved by min(accepted, num_advanced) (spec 43, 45)."""
    if entry.accepted < 0 or start != session.walk_base:
        return
    kept, advanced = entry.base_length - start, session.walk_advanced
    if kept != min(entry.accepted, advanced):
        raise AccountingError(f"{entry.accepted} of {advanced} tokens were accepted, but {kept} are committed")
    if kept:
        session.walk_base = -1


class Path:
    """One walk's session, the rows it can reuse, and those it made."""

    __slots__ = ("_known", "_rows", "session", "store")

    def __init__(self, session: Session, known: dict[bytes, Row], store: RowStore) -> None:
        self.session = session
        self.store = store
        self._known = known
        self._rows = session.rows

    def row(self) -> Filling:
        """The row of the state that the matcher stands at."""
        row = self._known.get(self.session.digests[-1])
        if row is None:
            row = yield self.session.matcher
        return self.keep(row)

    def keep(self, row: Row) -> Row:
        """Notes the row of the current state, for the mask check and for a repetition."""
        session = self.session
        self._rows[session.digests[-1]] = row
        session.matcher.note_row(row.words)
        return row

    def take_back_dead(self, token_id: int, before: Row) -> Row:
        """Leaves a state with a dead row; where another token is allowed, the one that led there is forbidden (R6)."""
        self.session.cut(len(self.session.tokens) - 1)
        edited = self.store.without(before, token_id)
        return self.keep(edited if edited.alive else before)

    def ended(self) -> bool:
        """True where a stop token was accepted and nothing may follow."""
        return self.session.matcher.is_terminated() and not self.session.matcher.is_unguided()


def _golden(session: Session, entry: StepEntry, base: Row, store: RowStore) -> Walking:
    """``_chain`` for a golden token without drafts after a known row, in few calls: what almost every entry asks."""
    matcher, rows, digests = session.matcher, session.rows, session.digests
    rows[digests[-1]] = base
    matcher.note_row(base.words)
    if not session.accept(entry.path[0]):
        return Answer(StepStatus.REFUSED)
    if matcher.is_terminated() and not matcher.is_unguided():
        return Answer(StepStatus.TERMINATED, 1)
    row = yield matcher
    rows[digests[-1]] = row
    matcher.note_row(row.words)
    path = Path(session, {}, store)
    return _last(path, row, 1, (row,)) if row.alive else _dead_golden(path, entry)


def _chain(path: Path, entry: StepEntry) -> Walking:
    if path.ended():
        return Answer(StepStatus.TERMINATED if not entry.path else StepStatus.REFUSED)
    row = yield from path.row()
    if not entry.path:
        return _last(path, row, 0, (row,)) if row.alive else Answer(StepStatus.DEAD_END)
    rows: list[Row] = []
    for position, token_id in enumerate(entry.path):
        if not path.session.accept(token_id):
            break
        if path.ended():
            return Answer(StepStatus.TERMINATED, position + 1, tuple(rows))
        row = yield from path.row()
        if not row.alive:
            if position == 0:
                return _dead_golden(path, entry)
            rows[-1] = path.take_back_dead(token_id, rows[-1])
            break
        rows.append(row)
    if not rows:
        return Answer(StepStatus.REFUSED)
    return _last(path, rows[-1], len(rows), tuple(rows))


def _dead_golden(path: Path, entry: StepEntry) -> Answer:
    if entry.draft_walk:  # the matcher did move, and the drafting loop gives it back (spec 34)
        return Answer(StepStatus.DEAD_END, 1)
    path.session.cut(len(path.session.tokens) - 1)  # the roll-back pass must find nothing (spec 33)
    return Answer(StepStatus.DEAD_END, 0)


def _last(path: Path, row: Row, num_advanced: int, rows: tuple[Row, ...]) -> Answer:
    forced = tuple(path.session.matcher.forced()[:256]) if row.kind is RowKind.SINGLE else ()
    return Answer(StepStatus.OK, num_advanced, rows, forced)


def _tree(path: Path, entry: StepEntry) -> Walking:
    """Depth first: accept on entering a node, fill its row, take back on leaving. A node that is refused, ends the guide or leads
    to a dead state has the row that allows nothing; the session stands at the base afterwards (spec 48, R10)."""
    children = _children(entry)
    if path.ended():
        return Answer(StepStatus.REFUSED)
    session, rows = path.session, [path.store.nothing] * len(entry.path)
    base = yield from path.row()
    base_length, accepted, status = len(session.tokens), 0, StepStatus.REFUSED
    pending = [(node, 0) for node in reversed(children[-1])]
    while pending:
        node, depth = pending.pop()
        parent = entry.parents[node]
        session.cut(base_length + depth)
        above = path.keep(rows[parent] if parent >= 0 else base)
        if not session.accept(entry.path[node]):
            continue
        if path.ended():
            accepted, status = accepted + 1, StepStatus.TERMINATED if parent < 0 else status
            continue
        row = yield from path.row()
        if row.alive:
            accepted, status, rows[node] = accepted + 1, StepStatus.OK, row
            pending += [(child, depth + 1) for child in reversed(children[node])]
        elif parent >= 0:
            rows[parent] = path.take_back_dead(entry.path[node], above)
        else:
            status = StepStatus.DEAD_END if status is StepStatus.REFUSED else status
    session.cut(base_length)
    return Answer(status, accepted, tuple(rows) if status is StepStatus.OK else ())


def _children(entry: StepEntry) -> dict[int, list[int]]:
    """Children by node, -1 for the roots. Raises BadRequest where the parents are not those of a tree in depth order."""
    if len(entry.parents) != len(entry.path) or any(parent >= node for node, parent in enumerate(entry.parents)):
        raise BadRequest("each parent must come before its child, one for each node of the path", field="parents")
    children: dict[int, list[int]] = {node: [] for node in range(-1, len(entry.path))}
    for node, parent in enumerate(entry.parents):
        children[parent].append(node)
    return children
