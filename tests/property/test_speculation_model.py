"""A draft model in the real step loop, guided by a real grammar service: texts are those without drafts, whatever it guesses; under
rejection, each is one that the target might have written."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.speculation import Drafting
from gpu_worker.speculation.draft_model import DraftModel, DraftRunner
from gpu_worker.speculation.draft_rows import DraftRows
from tests.property.test_speculation_engine import SLOTS, WIDTH, Bench

calm = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


class ModelBench(Bench):
    """Draft models of several agreements, side by side."""

    def use(self, agreement, *, rejection=False, branches=1, d2t=None):
        engine, vocabulary = self.engine, self.real.vocabulary
        shape = RunnerShape(max_slots=SLOTS, max_length=128, max_width=2, prefill_chunk=16)
        runner = SyntheticRunner(vocabulary, shape, SyntheticOptions(seed=5, mean_length=30, agreement=agreement))
        rows = DraftRows(engine._link, SLOTS, vocabulary.size, WIDTH - 1, engine._settings.hold_after_s)
        model = DraftModel(DraftRunner(runner, d2t), rows, engine._params, vocabulary.size, rejection=rejection, branches=branches)
        engine._drafting = Drafting("model", WIDTH - 1, branches, model)

    def without_drafts(self, guide, sampling):
        self.engine._drafting = self.drafting
        return super().without_drafts(guide, sampling)


@pytest.fixture(scope="module", params=[0.05, 0.0005], ids=["patient", "holding"])
def bench(request, tmp_path_factory):
    made = ModelBench(tmp_path_factory.mktemp("bench"), request.param)
    yield made
    made.close()


@calm
@given(
    guide=st.integers(0, 4), sampling=st.integers(0, 4), agreement=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    copies=st.integers(1, SLOTS - 1), branches=st.integers(1, 2),
)  # fmt: skip
def test_a_draft_model_changes_no_text(bench, guide, sampling, agreement, copies, branches):  # spec 47 124 R18
    expected = bench.without_drafts(guide, sampling)
    bench.use(agreement, branches=branches)
    for ending in bench.run(guide, sampling, copies):
        assert ending.choices[0] == expected


@pytest.mark.parametrize("guide", [0, 1, 3, 4])
def test_a_twin_is_never_wrong(bench, guide):  # spec 47: its guesses are drawn under the guide's own rows
    if bench.engine._settings.hold_after_s < 0.01:
        pytest.skip("a late row ends the drafting")
    expected = bench.without_drafts(guide, 1)
    bench.use(1.0)
    ending = bench.run(guide, 1)[0]
    assert ending.choices[0] == expected
    usage = ending.usage
    assert usage.drafts_accepted >= usage.drafts_verified - WIDTH  # all but those behind the end
    assert usage.drafts_accepted >= len(expected.token_ids) // 2
