"""Each variant of the sampler once, on rows of a few tiles: what compute-sanitizer looks at (tests/gpu/sanitize.sh)."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.reference import sample
from kernels.sample import CLUSTERS
from tests.gpu import cases
from tests.gpu.test_sample import compare, differences, launch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mask", ["none", "half", "few", "dead"])
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_samplers(dtype: str, mask: str) -> None:  # spec R16
    rng = np.random.default_rng(21)
    for width, kind in ((5001, "middle"), (9216, "flat"), (2500, "ties")):
        logits = cases.logits(rng, kind, 16, width, cases.DTYPES[dtype])
        more = {"vocab_size": width, "bitmask": cases.bitmask(rng, mask, 16, width)}
        rows, greedy = cases.rows(rng, 16, "mixed"), cases.rows(rng, 16, "greedy")
        compare(CLUSTERS, logits, rows, **more)
        compare(CLUSTERS, logits, rows, **more, overlay=cases.overlay(rng, 16, width, 40))
        want = sample(logits, greedy, return_descriptor=True, **more)
        for cluster in CLUSTERS:
            assert not differences(launch(logits, greedy, cluster=cluster, greedy_only=True, **more), want)
