"""The demo: the real model, real processes, four requests; and that its verdict can be bad."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]


def run_demo(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "shared.cli", "demo", *flags], capture_output=True, text=True, timeout=200)


def test_demo_is_right() -> None:
    done = run_demo()
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in ("json_schema", "regex", "choice", "none", "all requests ended and every guided text is valid"):
        assert expected in done.stdout


def test_demo_without_a_model_says_why() -> None:
    done = run_demo("--model", "/nonexistent", "--start-s", "30")
    assert done.returncode == 1
    assert "/nonexistent" in done.stderr
