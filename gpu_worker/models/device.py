"""Where the model runs: what was asked for, or what is there; and why it is not the GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernels import weights
from kernels.build import KernelsUnavailable, load
from shared.errors import ConfigError


def resolve_device(device: str, say: Callable[[str], None] = print) -> str:
    """``auto`` to cuda where a device and its kernels can be used, else to cpu, and says once why. Raises ConfigError for a device
    that is not there, with the reason and what can be done."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device has value {device!r}; one of auto, cpu, cuda", field="device")
    if device == "cpu":
        return "cpu"
    missing = why_no_kernels() if torch.cuda.is_available() else why_no_cuda()
    if not missing:
        return "cuda"
    if device == "cuda":
        raise ConfigError(f"device has value 'cuda', but {missing}; --device cpu runs everything without a GPU", field="device")
    say(f"model: on the CPU, by the reference instead of the kernels: {missing}")
    return "cpu"


def why_no_cuda() -> str:
    """Why no CUDA device can be used, and what to do."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA: install a build for your CUDA version"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f"CUDA does not start ({str(error).splitlines()[0]}): check the driver with nvidia-smi and CUDA_VISIBLE_DEVICES"
    return "CUDA sees no device: check the driver with nvidia-smi, CUDA_VISIBLE_DEVICES, and that the container was given the GPU"


def why_no_kernels() -> str:
    """Why the kernels cannot be built or loaded here, by trying the smallest; empty where they can."""
    try:
        load(weights.variants()[0])
    except KernelsUnavailable as error:
        return f"{str(error).splitlines()[0]}: install maskstream[gpu]"
    return ""
