"""Loading a draft model: what does not fit is refused by name."""

import numpy as np
import pytest

from gpu_worker.config import WorkerSettings
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.draft import check_same, load_d2t, load_draft_model
from gpu_worker.models.load import load_model
from gpu_worker.models.synthetic import SyntheticOptions
from gpu_worker.models.vocabulary import invented_vocabulary
from gpu_worker.worker import _draft_runner
from shared.errors import ConfigError

SHAPE = RunnerShape(max_slots=2, max_length=64, max_width=4, prefill_chunk=16)


def quiet(text):
    return


def loaded():
    return load_model("synthetic:300", SHAPE, device="cpu", say=quiet)


def test_a_synthetic_twin_is_two_wide():
    draft = load_draft_model("synthetic:0.5", SHAPE, loaded(), synthetic=SyntheticOptions(), say=quiet)
    assert (draft.runner.max_width, draft.runner.max_slots, draft.d2t) == (2, 2, None)


@pytest.mark.parametrize(
    ("spec", "says"),
    [("synthetic:much", "no agreement"), ("synthetic:2", "no agreement"), ("/nowhere", "no folder with a config.json")],
)
def test_what_is_no_draft_model_is_refused_by_name(spec, says):
    with pytest.raises(ConfigError, match=f"draft_model has value '{spec}'.*{says}") as raised:
        load_draft_model(spec, SHAPE, loaded(), synthetic=SyntheticOptions(), say=quiet)
    assert raised.value.field == "draft_model"


def test_another_vocabulary_is_refused():
    with pytest.raises(ConfigError, match="has 300 ids, the model's 310"):
        check_same(invented_vocabulary(310), invented_vocabulary(300), "x")
    mine, other = invented_vocabulary(300), invented_vocabulary(300)
    table = list(other.token_bytes)
    table[7] = b"~~"
    other = type(other)(**{name: getattr(other, name) for name in other.__struct_fields__} | {"token_bytes": table})
    with pytest.raises(ConfigError, match="id 7 is b'~~'"):
        check_same(mine, other, "x")


def test_a_d2t_must_fit(tmp_path):  # spec 62
    file = tmp_path / "d2t.npy"
    assert load_d2t(file, 10, "x") is None
    np.save(file, np.array([1, 1, 3], np.int32))
    assert load_d2t(file, 10, "x").tolist() == [1, 1, 3]
    for table, says in (
        (np.array([1.0]), "must be int32"), (np.array([1, 0, -2], np.int32), "ascending"),
        (np.array([9, 9], np.int32), "ascending"),
    ):  # fmt: skip
        np.save(file, table)
        with pytest.raises(ConfigError, match=says):
            load_d2t(file, 10, "x")


def test_the_drafter_and_its_model_come_together():
    for chosen in ({"drafter": "model"}, {"draft_model": "synthetic:1"}):
        settings = WorkerSettings(max_draft_tokens=3, **chosen)
        with pytest.raises(ConfigError, match="draft_model has value") as raised:
            _draft_runner(settings, SHAPE, loaded(), SyntheticOptions(), quiet)
        assert raised.value.field == "draft_model"
    assert _draft_runner(WorkerSettings(), SHAPE, loaded(), SyntheticOptions(), quiet) is None
