"""Ranks as processes over gloo: 200 random batches equal to the reference, and agreement on who holds."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from kernels.reference import SampleStatus
from tests.tensor_parallel_rank import BATCHES, HOLD_STEPS

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def run_ranks(ranks):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "tests.tensor_parallel_rank"]
    commands = [[*command, str(rank), str(ranks), str(port)] for rank in range(ranks)]
    at_work = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for c in commands]
    try:
        said = [p.communicate(timeout=170) for p in at_work]
    finally:
        for p in at_work:
            p.kill()
            p.communicate()
    assert [p.returncode for p in at_work] == [0] * ranks, said
    return [json.loads(out) for out, _ in said]


@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_agree_with_the_reference_and_with_each_other(ranks):  # spec R14, R15, R16, R17, 61, 62
    said = run_ranks(ranks)
    assert not said[0]["wrong"]
    assert len(said[0]["digests"]) == sum(count for count, _, _ in BATCHES) == 200
    assert all(s["digests"] == said[0]["digests"] for s in said)
    for step in range(HOLD_STEPS):
        late = {s["holds"][step][0] for s in said} - {-1}
        tokens, statuses = said[0]["holds"][step][1:]
        assert all(s["holds"][step][1:] == [tokens, statuses] for s in said)
        assert {row for row, status in enumerate(statuses) if status == SampleStatus.HELD} == late
        assert all(tokens[row] == -1 for row in late)
