"""The examples, as a reader runs them: against a front door over a real socket."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.echo import Bench

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench():
    with ExitStack() as stack:
        yield Bench(stack)


@pytest.mark.parametrize(("name", "ask"), [("client.py", "Describe a person as JSON."), ("plain_client.py", "A city and a year?")])
def test_an_example_runs(bench, name, ask):
    command = [sys.executable, ROOT / "examples" / name, bench.door.address]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    streamed, summary = done.stdout.splitlines()
    assert streamed == f"user: {ask}"  # the echo of the conversation
    assert f"{len(streamed)} tokens" in summary
    (client, _), *_ = bench.loop.seen
    assert len(client) > 0


def test_the_plain_client_needs_no_library_of_ours():
    text = (ROOT / "examples" / "plain_client.py").read_text()
    assert {line.split()[1] for line in text.splitlines() if line.startswith(("import ", "from "))} == {"sys", "msgpack", "zmq"}


def test_the_client_is_short():
    assert len((ROOT / "examples" / "client.py").read_text().splitlines()) <= 25
