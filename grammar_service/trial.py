"""What a forked child does: limits itself, plans and compiles one guide, walks a few rows, writes the result and ends.

A child that was forked ahead (a spare) first compiles a guide of its own, so that the pages which that touches are copied before
anyone waits, and then does the same for the one guide that it is handed. No child ever sees two guides of others.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec
import numpy as np

from grammar_service.compile import build, plan_of
from grammar_service.engines.base import Matcher
from grammar_service.engines.messages import cause_of
from grammar_service.vocabularies import Loaded
from shared.bitmask import Words
from shared.errors import BadRequest, GrammarTooLarge, MaskstreamError, StepError
from shared.guide import Guide
from shared.protocol import Plan, WireError

STACK_BYTES = 64 << 20
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
PROBE_ROWS = 16
PROBE_SHARES = (0.5, 0.1)  # two paths: 2 ms together for an ordinary schema at 151,936 tokens
RESULT_HEADER = struct.Struct("<I")  # length of what follows
WARM = Guide(
    kind="json_schema", text='{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array","items":{"enum":[1,null]}}}}'
)


class Trial(NamedTuple):
    """Either a guide or a plan, and the vocabulary (None: it could not be loaded)."""

    guide: Guide | None
    plan: Plan | None
    loaded: Loaded | None


class TrialLimits(msgspec.Struct, frozen=True, array_like=True):
    """Wall and CPU seconds, bytes beyond what the zygote maps, and the longest row that is let through."""

    wall_s: float
    memory_bytes: int
    row_s: float


class TrialResult(msgspec.Struct, frozen=True, array_like=True):
    """The plan that passed, or why it did not, and what an engine said of it (for the log)."""

    plan: Plan | None = None
    error: WireError | None = None
    out_of_memory: bool = False
    notes: tuple[str, ...] = ()


class Request(msgspec.Struct, frozen=True, array_like=True):
    """A guide to try (or the plan of one) on a vocabulary."""

    fingerprint: str
    limits: TrialLimits
    guide: Guide | None = None
    plan: Plan | None = None


def run_child(body: Callable[[], None]) -> NoReturn:
    """Runs ``body`` on a deep stack. Never returns: whatever happens, the child ends here."""
    try:
        done: list[None] = []
        threading.stack_size(STACK_BYTES)

        def run() -> None:
            body()
            done.append(None)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        os._exit(0 if done else 1)
    except BaseException as error:
        os.write(2, f"trial: {type(error).__name__}: {error}\n".encode()[:500])
    finally:
        os._exit(1)


def run_trial(trial: Trial, limits: TrialLimits, result: int) -> None:
    """Tries one guide and writes how it went: its length, then a TrialResult."""
    confine(limits)
    data = msgspec.msgpack.encode(_attempt(trial, limits))
    view = memoryview(RESULT_HEADER.pack(len(data)) + data)
    while view:
        view = view[os.write(result, view) :]
    sys.stderr.flush()


def run_spare(control: socket.socket, loaded: Mapping[str, Loaded]) -> None:
    """Warms up until a request comes (or the zygote goes away), and tries its guide."""
    die_with_parent()
    for steps in [_warm(vocabulary) for vocabulary in loaded.values()]:
        while not select.select([control], [], [], 0)[0] and next(steps, None) is not None:
            pass
    head, descriptors, _, _ = socket.recv_fds(control, RESULT_HEADER.size, 1)
    if len(head) < RESULT_HEADER.size:
        return
    request = msgspec.msgpack.decode(receive_exactly(control, RESULT_HEADER.unpack(head)[0]), type=Request)
    run_trial(Trial(request.guide, request.plan, loaded.get(request.fingerprint)), request.limits, descriptors[0])


def _warm(loaded: Loaded) -> Iterator[bool]:
    """Copies the pages that a trial writes to, about 12 MB: most of the time that a guide takes in a child just forked."""
    plan = plan_of(WARM, {name: engine.version for name, engine in loaded.engines.items()})
    yield True
    grammar = build(plan, loaded)
    yield True
    probe(grammar.factory.create(()), loaded.vocab_size, float("inf"))


def receive_exactly(control: socket.socket, length: int) -> bytes:
    """``length`` bytes. Raises EOFError where the other side went away in the middle."""
    parts = bytearray()
    while len(parts) < length:
        piece = control.recv(min(1 << 20, length - len(parts)))
        if not piece:
            raise EOFError("the control socket was closed inside a message")
        parts += piece
    return bytes(parts)


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def confine(limits: TrialLimits) -> None:
    """Resource limits, and no life after the zygote's."""
    die_with_parent()
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    memory = mapped + limits.memory_bytes
    cpu = int(limits.wall_s + time.process_time()) + 1  # a spare has spent some already
    for kind, value in (
        (resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, cpu), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):  # fmt: skip
        resource.setrlimit(kind, (value, value))
    Path("/proc/self/oom_score_adj").write_text("1000")


def _attempt(trial: Trial, limits: TrialLimits) -> TrialResult:
    try:
        return TrialResult(plan=_checked(trial, limits))
    except MaskstreamError as error:
        return TrialResult(error=WireError.of(error), notes=tuple(getattr(error, "__notes__", ())))
    except MemoryError:
        return TrialResult(out_of_memory=True)
    except RecursionError:
        return TrialResult(error=WireError.of(GrammarTooLarge("the guide is nested too deeply", field="guide")))
    except Exception as error:  # an engine's surprise is an answer about this guide
        return TrialResult(error=WireError.of(MaskstreamError(f"{type(error).__name__}: {str(error)[:200]}")))


def _checked(trial: Trial, limits: TrialLimits) -> Plan:
    if trial.loaded is None:
        raise BadRequest("the vocabulary is not loaded", field="fingerprint")
    plan = trial.plan
    if plan is None and trial.guide is not None:
        plan = plan_of(trial.guide, {name: engine.version for name, engine in trial.loaded.engines.items()})
    if plan is None:
        raise BadRequest("nothing to try", field="guide")
    grammar = build(plan, trial.loaded)
    try:
        for share in PROBE_SHARES:
            probe(grammar.factory.create(()), trial.loaded.vocab_size, limits.row_s, share)
    except StepError as error:  # what breaks within a few tokens is no grammar to begin with
        raise cause_of(error) from error
    return plan


def probe(matcher: Matcher, vocab_size: int, row_s: float, share: float = 0.5) -> None:
    """Walks some rows under the mask: the token at ``share`` of those allowed. Raises GrammarTooLarge for a slow row."""
    words = np.zeros((1, (vocab_size + 31) // 32), dtype=np.int32)
    for _ in range(PROBE_ROWS):
        started_s = time.thread_time()
        matcher.fill_next_token_bitmask(words, 0)
        token_id = allowed_at(words[0], share)
        moved = token_id is not None and token_id < vocab_size and matcher.accept_token(token_id)
        spent_s = time.thread_time() - started_s
        if spent_s > row_s:
            raise GrammarTooLarge(f"one token takes {spent_s * 1000:.0f} ms, {row_s * 1000:.0f} allowed", field="guide")
        if not moved:
            return


def allowed_at(words: Words, share: float) -> int | None:
    """The allowed token at ``share`` (below 1) of all allowed ones; None for none. 30 us, where listing all of them takes 1 ms."""
    upto = np.cumsum(np.bitwise_count(words.view(np.uint32)), dtype=np.int64)
    if not (total := int(upto[-1])):
        return None
    rank = int(total * share)
    word = int(np.searchsorted(upto, rank, side="right"))
    bits = np.flatnonzero(np.unpackbits(words[word : word + 1].view(np.uint8), bitorder="little"))
    return word * 32 + int(bits[rank - int(upto[word - 1] if word else 0)])
