"""Around every test: a leak check. A test that leaves a thread, a child, a descriptor or a socket behind fails."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.leaks import held, leaks_since

# Before any test imports torch: sums over threads would differ from machine to machine, and two cores are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    before = held()
    yield
    found = leaks_since(before)
    if found:
        pytest.fail("left behind:\n  " + "\n  ".join(found), pytrace=False)
