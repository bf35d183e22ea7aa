"""What a forked child does: limits itself, plans and compiles one guide, walks a few rows, writes the result and ends."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec
import numpy as np

from grammar_service.compile import build, plan_of
from grammar_service.engines.base import Matcher
from grammar_service.engines.messages import refusal
from grammar_service.vocabularies import Loaded
from shared.bitmask import token_ids
from shared.errors import BadRequest, GrammarTooLarge, MaskstreamError, StepError
from shared.guide import Guide
from shared.protocol import Plan, WireError

STACK_BYTES = 64 << 20
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
PROBE_ROWS = 16


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
    """The plan that passed, or why it did not."""

    plan: Plan | None = None
    error: WireError | None = None
    out_of_memory: bool = False


def run_trial(trial: Trial, limits: TrialLimits, result: int) -> NoReturn:
    """Never returns: whatever happens, the child ends here."""
    try:
        confine(limits)
        outcome: list[TrialResult] = []
        threading.stack_size(STACK_BYTES)
        thread = threading.Thread(target=lambda: outcome.append(_attempt(trial, limits)))
        thread.start()
        thread.join()
        _write(result, msgspec.msgpack.encode(outcome[0]))
        os._exit(0)
    except BaseException as error:
        os.write(2, f"trial: {type(error).__name__}: {error}\n".encode()[:500])
    finally:
        os._exit(1)


def confine(limits: TrialLimits) -> None:
    """Resource limits, and no life after the zygote's."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    memory = mapped + limits.memory_bytes
    cpu = int(limits.wall_s) + 1
    for kind, value in (
        (resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, cpu), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):  # fmt: skip
        resource.setrlimit(kind, (value, value))
    os.nice(5)
    Path("/proc/self/oom_score_adj").write_text("1000")


def _attempt(trial: Trial, limits: TrialLimits) -> TrialResult:
    try:
        return TrialResult(plan=_checked(trial, limits))
    except MaskstreamError as error:
        return TrialResult(error=WireError.of(error))
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
        probe(grammar.factory.create(()), trial.loaded.vocab_size, limits.row_s)
    except StepError as error:  # what breaks within a few tokens is no grammar to begin with
        raise refusal(error.message) from error
    return plan


def probe(matcher: Matcher, vocab_size: int, row_s: float) -> None:
    """Walks some rows under the mask, always a token in the middle of what is allowed. Raises GrammarTooLarge for a slow one."""
    words = np.zeros((1, (vocab_size + 31) // 32), dtype=np.int32)
    for _ in range(PROBE_ROWS):
        started_s = time.thread_time()
        matcher.fill_next_token_bitmask(words, 0)
        allowed = token_ids(words[0], vocab_size)
        moved = len(allowed) > 0 and matcher.accept_token(int(allowed[len(allowed) // 2]))
        spent_s = time.thread_time() - started_s
        if spent_s > row_s:
            raise GrammarTooLarge(f"one token takes {spent_s * 1000:.0f} ms, {row_s * 1000:.0f} allowed", field="guide")
        if not moved:
            return


def _write(result: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(result, view) :]
    sys.stderr.flush()
