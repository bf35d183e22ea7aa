"""The forward's sizes follow from the settings, on any device; a GPU that is not there is said with the reason."""

import pytest
import torch

from gpu_worker.config import WorkerSettings
from gpu_worker.models.device import resolve_device
from gpu_worker.worker import shape_of
from kernels.build import KernelsUnavailable
from shared.errors import ConfigError


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda"])
def test_a_forward_is_as_wide_as_the_drafts(device):  # spec 24
    assert shape_of(WorkerSettings(device=device, max_draft_tokens=4)).max_width == 5
    assert shape_of(WorkerSettings(device=device, max_draft_tokens=4, drafter="none")).max_width == 1
    assert shape_of(WorkerSettings(device=device)).max_width == 1


def test_a_gpu_whose_kernels_cannot_be_built_is_said_with_the_reason(monkeypatch):
    def load(variant):
        raise KernelsUnavailable("NVRTC cannot be used: no library\nLong story.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("gpu_worker.models.device.load", load)
    with pytest.raises(ConfigError, match=r"'cuda', but NVRTC cannot be used: no library: install maskstream\[gpu\]"):
        resolve_device("cuda")
    said: list[str] = []
    assert resolve_device("auto", said.append) == "cpu"
    assert len(said) == 1 and "NVRTC cannot be used" in said[0]


@pytest.mark.parametrize(
    ("built_for", "says"),
    [
        (None, "built without CUDA: install a build"),
        ("13.0", "no device: check the driver with nvidia-smi"),
        ("broken", "no driver"),
    ],
)
def test_a_gpu_that_is_not_there_is_said_with_the_reason(monkeypatch, built_for, says):
    def start():
        if built_for == "broken":
            raise RuntimeError("Found no driver.\nLong story.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.cuda, "init", start)
    with pytest.raises(ConfigError, match=f"device has value 'cuda', but .*{says}.*--device cpu") as raised:
        resolve_device("cuda")
    assert raised.value.field == "device"
    assert "Long story" not in str(raised.value)
    said: list[str] = []
    assert resolve_device("auto", said.append) == "cpu"
    assert len(said) == 1 and says.split(":")[0] in said[0] and "reference instead of the kernels" in said[0]
    assert resolve_device("cpu", said.append) == "cpu" and len(said) == 1
    with pytest.raises(ConfigError, match="one of auto, cpu, cuda"):
        resolve_device("tpu")
