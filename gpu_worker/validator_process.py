"""The validator in a process that can be killed: a schema of a few lines can keep a validator busy for years.

One child, started at the first question and kept; a question and its answer are a line of JSON each. A child that does not answer
in time, or dies, is replaced, and its question has no answer.
"""

from __future__ import annotations

import json
import resource
import select
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from gpu_worker import validator
from shared.errors import MaskstreamError
from shared.guide import Guide

PATIENCE_S = 5.0
MEMORY_BYTES = 2 << 30


class ValidatorLost(MaskstreamError):
    """The validator gave no answer; the message says why."""


class ValidatorProcess:
    """Used by one thread at a time."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._child: subprocess.Popen[bytes] | None = None

    def is_valid(self, guide: Guide, text: str) -> bool | None:
        """What ``validator.is_valid`` says. Raises ValidatorLost where it says nothing in time, or cannot read the guide."""
        child = self._ready()
        question = json.dumps([msgspec.to_builtins(guide), text]).encode() + b"\n"
        try:
            if child.stdin is None or child.stdout is None:
                raise ValidatorLost("its process has no pipes")
            child.stdin.write(question)
            child.stdin.flush()
            if not select.select([child.stdout], [], [], self._patience_s)[0]:
                raise ValidatorLost(f"it took more than {self._patience_s:g} s")
            line = child.stdout.readline()
            if not line:
                raise ValidatorLost("its process ended")
        except (OSError, ValidatorLost) as error:
            self.close()
            raise error if isinstance(error, ValidatorLost) else ValidatorLost(str(error)) from error
        verdict, reason = json.loads(line)
        if reason:
            raise ValidatorLost(reason)
        answer: bool | None = verdict
        return answer

    def _ready(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self.close()
            command = [sys.executable, "-m", "gpu_worker.validator_process"]
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._child

    def close(self) -> None:
        """Ends the child, whatever it is doing."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    _close(pipe)


def _close(pipe: object) -> None:
    try:
        pipe.close()  # type: ignore[attr-defined]
    except BrokenPipeError:  # what was not written yet went with the child
        return


def main(argv: Sequence[str] = ()) -> int:
    """The child: judges line by line until its input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin.buffer:
        guide, text = json.loads(line)
        try:
            verdict, reason = validator.is_valid(msgspec.convert(guide, Guide), text), ""
        except Exception as error:  # a schema that the validator cannot read is not the text's fault
            verdict, reason = None, str(error) or type(error).__name__
        sys.stdout.write(json.dumps([verdict, reason]) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
