"""The table of what every parameter does (``tests/effects.py``) over the captured step: the formulas, and the host's tokens."""

from functools import partial

import pytest

from gpu_worker.cuda_pipeline import CudaPipeline
from tests.effects import ALL, ALLOWED, BASE, NOT_CAPTURED, SHAPES, SHOWN, UNGUIDED, EffectBench, check_shapes, run_all, run_one

pytestmark = pytest.mark.gpu
make = partial(EffectBench, pipeline=CudaPipeline, device="cuda")


@pytest.mark.parametrize("guide", [None, ALLOWED], ids=["free", "guided"])
def test_each_token_has_the_distribution_of_the_formulas(guide):  # spec 69 93 94 100 101 102 103 105 106 R11 R19
    runs = check_shapes(make, guide, tolerance=1e-4)
    cases = {field: {**BASE, **params, **ALL} for field, (params, _) in SHAPES.items()}
    on_host = run_all(EffectBench, guide, cases)
    drafted = run_all(make, guide, cases, scripts={field: run.tokens for field, run in runs.items()})
    for field, run in runs.items():
        assert run.tokens == on_host[field].tokens == drafted[field].tokens, field


@pytest.mark.parametrize("guide", [None, ALLOWED], ids=["free", "guided"])
def test_what_shows_in_the_reply(guide):  # spec 73 101 111 114 115 116 118 127 128 R11
    plain = run_one(EffectBench, guide, BASE)
    fields = [field for field in SHOWN if field not in NOT_CAPTURED and (guide is None or field not in UNGUIDED)]
    cases = {field: {**BASE, **SHOWN[field][0](plain)} for field in fields}
    neutral = {field: {**BASE, **SHOWN[field][1]} for field in fields}
    on_host = run_all(EffectBench, guide, cases)
    for field, run in run_all(make, guide, cases).items():
        assert run.tokens == on_host[field].tokens, field
        assert run.choice.text == on_host[field].choice.text, field
    for field, run in run_all(make, guide, neutral).items():
        assert run.tokens == plain.tokens, field
