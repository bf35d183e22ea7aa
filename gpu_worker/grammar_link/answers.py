"""Does an answer fit the walk that it claims to answer? An answer that does not is refused and counted, never used."""

from __future__ import annotations

from gpu_worker.grammar_link.partitions import Partition, ids_fit
from gpu_worker.grammar_link.sessions import Session
from shared.bitmask import RowKind
from shared.protocol import StepAnswerEntry, StepStatus, WireRow

_ROWLESS = (StepStatus.DEAD_END, StepStatus.REFUSED, StepStatus.FAILED, StepStatus.RESYNC)


def stale(session: Session | None, peer: bytes, entry: StepAnswerEntry) -> str:
    """Why an answer is of no current walk ("" if it is of one)."""
    if session is None:
        return "unknown_session"
    if session.peer != peer or session.epoch != entry.epoch:
        return "stale_epoch"
    if session.pending is None or session.sequence_number != entry.sequence_number:
        return "stale_sequence_number"
    return "duplicate" if session.pending.answered else ""


def is_plain(session: Session, peer: bytes, entry: StepAnswerEntry, vocab_size: int, partition: Partition | None) -> bool:
    """True for what almost every answer is: of the current walk of a golden token without drafts, OK, one row that needs no frame.
    ``stale`` and ``misfit`` would find nothing."""
    pending = session.pending
    return (
        pending is not None
        and not pending.answered
        and entry.sequence_number == session.sequence_number
        and entry.epoch == session.epoch
        and entry.digest == pending.digest
        and entry.status == entry.num_advanced - 1 == entry.num_guided - 1 == len(entry.rows) - 1 == len(pending.walk.path) - 1 == 0
        and session.peer == peer
        and not (entry.forced or pending.walk.parents)
        and _is_light(entry.rows[0], vocab_size, partition)
    )


def _is_light(row: WireRow, vocab_size: int, partition: Partition | None) -> bool:
    if row.kind == RowKind.POOL:
        return partition is not None and partition.holds(row)
    return row.value < vocab_size if row.kind == RowKind.SINGLE else row.kind in (RowKind.ALL, RowKind.STOP_ONLY)


def misfit(
    session: Session, entry: StepAnswerEntry, frame_bytes: tuple[int, ...], vocab_size: int, partition: Partition | None
) -> str:
    """Why an answer to the current walk cannot be right ("" if it can); ``pool``: it refers to a row that is not there."""
    pending = session.pending
    if pending is None or entry.digest != pending.digest:
        return "digest"
    if entry.status not in StepStatus._value2member_map_:
        return "status"
    if not _counts_fit(len(pending.walk.path), bool(pending.walk.parents), entry):
        return "counts"
    if not all(_row_fits(row, frame_bytes, vocab_size) for row in entry.rows):
        return "row"
    if not all(partition is not None and partition.holds(row) for row in entry.rows if row.kind == RowKind.POOL):
        return "pool"
    return "" if all(0 <= token_id < vocab_size for token_id in entry.forced) else "forced"


def _counts_fit(path_length: int, is_tree: bool, entry: StepAnswerEntry) -> bool:
    advanced, guided = entry.num_advanced, entry.num_guided
    if guided != len(entry.rows) or not 0 <= advanced <= path_length:
        return False
    if entry.status in _ROWLESS:
        return guided == 0
    if path_length == 0:
        return guided == 1 and entry.status == StepStatus.OK
    if guided > path_length or advanced == 0 or (not is_tree and guided > advanced):
        return False
    return entry.status == StepStatus.TERMINATED or guided >= 1


def _row_fits(row: WireRow, frame_bytes: tuple[int, ...], vocab_size: int) -> bool:
    if row.kind == RowKind.DENSE:
        return 0 <= row.value < len(frame_bytes) and frame_bytes[row.value] == 4 * ((vocab_size + 31) // 32)
    if row.kind == RowKind.SINGLE:
        return 0 <= row.value < vocab_size
    if row.kind == RowKind.SPARSE:
        return ids_fit(row.ids, vocab_size)
    return row.kind in (RowKind.ALL, RowKind.STOP_ONLY, RowKind.POOL)
