"""What almost every entry asks, for many sessions at once and without a generator each: one golden token after a row that is
known, in a guide that goes on. Whatever else an entry may ask is left to ``walks.py`` before anything is touched; both give the
same answers.

The loops here run once a row, so they are written out: a call costs as much as what most of these lines do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from grammar_service.engines.base import Engine
from grammar_service.rows import Row
from grammar_service.sessions import Answer, Session, Sessions
from shared.digest import extend
from shared.errors import MaskstreamError
from shared.protocol import StepEntry, StepStatus


def plain_ones(sessions: Sessions, entries: Iterable[StepEntry]) -> tuple[list[Session], list[StepEntry]]:
    """Sessions whose entry (``walking`` from now on) asks just this, and the entries left to a walk: a new entry whose base is
    where the last walk left the history, with a token that the row there allows and that cannot end the guide."""
    plain: list[Session] = []
    left: list[StepEntry] = []
    size, get = sessions.rows.vocab_size, sessions.get
    for entry in entries:
        session, path, committed = get(entry.handle), entry.path, entry.committed
        if session is None or (row := session.base_row) is None or (answered := session.answered) is None or len(path) != 1:
            left.append(entry)
            continue
        tokens, (token_id,) = session.tokens, path
        start = len(tokens) - len(committed)
        if (
            # Where the verifier's count is that of the committed tokens, ``walks.cross_check`` would find nothing: the last walk
            # has advanced them all.
            entry.accepted in (-1, len(committed))
            and entry.base_length == len(tokens)
            and entry.sequence_number > answered[0].sequence_number
            and entry.epoch == session.epoch
            and entry.prefix_digest == session.digests[-1]
            and start >= 0
            and tokens[start:] == committed
            and not (entry.parents or entry.draft_walk or session.apart)
            and token_id not in session.matcher.ends
            and token_id < size
            and (row.data[token_id >> 3] >> (token_id & 7)) & 1
        ):
            session.walking = entry
            plain.append(session)
        else:
            left.append(entry)
    return plain, left


def advance(engine: Engine, plain: Sequence[Session], now_s: float) -> tuple[list[Session], list[StepEntry]]:
    """Gives the golden tokens to sessions of one engine. Those that took theirs and wait for its row, and the entries of those that
    did not: nothing has changed, or the session has failed."""
    entries = [session.walking for session in plain if session.walking is not None]
    taken = engine.consume([session.matcher.native for session in plain], [entry.path for entry in entries])
    advanced: list[Session] = []
    left: list[StepEntry] = []
    for session, entry, count in zip(plain, entries, taken, strict=True):
        if count != 1:
            if isinstance(count, MaskstreamError):
                session.fail(count)  # which is the answer that the entry finds
            left.append(entry)
            continue
        (token_id,) = entry.path
        session.matcher.took_text()
        session.tokens.append(token_id)
        session.digests.append(extend(entry.prefix_digest, token_id))
        session.last_used_s = now_s
        advanced.append(session)
    return advanced, left


def settle_all(
    sessions: Sequence[Session], rows: Sequence[Row], broken: Sequence[Exception | None]
) -> list[tuple[Session, Answer | Row]]:
    """The answers, once the rows of the new states are filled; the sessions remember them. Just the row stands for the answer that
    is OK with one token taken and this row (``sessions.full``)."""
    answers: list[tuple[Session, Answer | Row]] = []
    for session, row, error in zip(sessions, rows, broken, strict=True):
        entry, base = session.walking, session.base_row
        if entry is None or base is None or error is not None or not row.plain:
            answers.append((session, _settle(session, row, error)))
            continue
        session.before_row, session.base_row = base, row
        session.walk_base, session.walk_advanced = entry.base_length, 1
        session.answered = (entry, row)
        answers.append((session, row))
    return answers


def _settle(session: Session, row: Row, error: Exception | None) -> Answer:
    """Of a row that is dead or has a forced token, or that could not be filled."""
    entry = session.walking
    if error is not None or entry is None:
        return session.fail(error if isinstance(error, MaskstreamError) else MaskstreamError(str(error)))
    session.before_row, session.base_row = session.base_row, row
    session.walk_base, session.walk_advanced = entry.base_length, 1
    try:
        if row.alive:
            answer = Answer(StepStatus.OK, 1, (row,), tuple(session.matcher.forced()[:256]))
        else:
            session.unfold()
            session.cut(len(session.tokens) - 1)  # the roll-back pass must find nothing (spec 33)
            answer, session.walk_advanced = Answer(StepStatus.DEAD_END), 0
    except MaskstreamError as late:
        return session.fail(late)
    session.answered = (entry, answer)
    return answer
