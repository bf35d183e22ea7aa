"""The forward's sizes follow from the settings; drafts are refused where the step cannot take them."""

import pytest
import torch

from gpu_worker.config import WorkerSettings
from gpu_worker.worker import shape_of
from shared.errors import ConfigError


def test_a_forward_is_as_wide_as_the_drafts():  # spec 24
    assert shape_of(WorkerSettings(device="cpu", max_draft_tokens=4)).max_width == 5
    assert shape_of(WorkerSettings(device="cpu", max_draft_tokens=4, drafter="none")).max_width == 1
    assert shape_of(WorkerSettings(device="cpu")).max_width == 1


def test_drafts_on_a_gpu_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for device in ("auto", "cuda"):
        with pytest.raises(ConfigError, match="max_draft_tokens has value 3"):
            shape_of(WorkerSettings(device=device, max_draft_tokens=3))
        assert shape_of(WorkerSettings(device=device)).max_width == 1
