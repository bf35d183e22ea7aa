"""From the setting ``model`` to a runner, its vocabulary and its chat: a folder, or ``synthetic:SIZE[:TOKENIZER_FILE]``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gpu_worker.models.base import ModelRunner, RunnerShape
from gpu_worker.models.chat import Chat, TableChat, TemplateChat
from gpu_worker.models.device import resolve_device
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.models.vocabulary import (
    invented_vocabulary,
    load_vocabulary,
    vocabulary_of_tiktoken,
    vocabulary_of_tokenizer,
)
from shared.errors import ConfigError
from shared.tokenizer import Vocabulary

Say = Callable[[str], None]
SYNTHETIC = "synthetic"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""``auto`` is float32 on the CPU (bfloat16 gains little there, and rounds logits to 1/8) and bfloat16 on a GPU."""


class LoadedModel(NamedTuple):
    """What the worker takes from a model."""

    runner: ModelRunner
    vocabulary: Vocabulary  # as wide as the runner's logits
    chat: Chat


def load_model(
    spec: str, shape: RunnerShape, *, device: str = "auto", dtype: str = "auto", threads: int = 0,
    synthetic: SyntheticOptions | None = None, vocabulary: Vocabulary | None = None, say: Say = print,
) -> LoadedModel:  # fmt: skip
    """Loads and warms up. ``vocabulary`` replaces the invented one of ``synthetic:SIZE``. Raises ConfigError."""
    place = resolve_device(device, say)
    torch.set_num_threads(threads or os.cpu_count() or 1)
    kind, colon, rest = spec.partition(":")
    if kind == SYNTHETIC and colon:
        vocabulary = vocabulary or synthetic_vocabulary(rest)
        runner: ModelRunner = SyntheticRunner(vocabulary, shape, synthetic, place)
        chat: Chat = TableChat(vocabulary)
    else:
        folder = check_folder(spec)
        vocabulary, chat = load_vocabulary(folder), TemplateChat(folder)
        runner = load_runner(folder, shape, device=place, dtype=dtype, say=say)
    with step(say, f"warm-up of {shape.max_slots} slots"):
        runner.warm_up()
    return LoadedModel(runner, vocabulary, chat)


def load_runner(folder: Path, shape: RunnerShape, *, device: str, dtype: str = "auto", say: Say = print) -> ModelRunner:
    """The runner of a model folder, not yet warm. Raises ConfigError naming the setting and its value."""
    if dtype not in ("auto", *DTYPES):
        raise ConfigError(f"dtype has value {dtype!r}; one of auto, {', '.join(DTYPES)}", field="dtype")
    chosen = DTYPES.get(dtype, torch.float32 if device == "cpu" else torch.bfloat16)
    with step(say, f"loading {folder.name} as {str(chosen).removeprefix('torch.')} on {device}"):
        from gpu_worker.models.transformers_runner import TransformersRunner

        return TransformersRunner(_read_model(folder, chosen, device), shape)


def _read_model(folder: Path, dtype: torch.dtype, device: str) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as library_logging

    from gpu_worker.models.attention import NAME

    library_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=NAME, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"model has value {str(folder)!r}: {error}", field="model") from error
    model, info = loaded
    # The library fills what a file lacks with random numbers and a warning.
    if info["missing_keys"]:
        raise ConfigError(f"model has value {str(folder)!r}: no weights for {sorted(info['missing_keys'])[:3]}", field="model")
    return model.to(device)


def check_folder(spec: str) -> Path:
    """The folder of a model. Raises ConfigError where it is none."""
    folder = Path(spec).expanduser()
    if not (folder / "config.json").is_file():
        text = f"model has value {spec!r}: no folder with a config.json, nor {SYNTHETIC}:SIZE[:TOKENIZER_FILE]"
        raise ConfigError(text, field="model")
    return folder


def synthetic_vocabulary(text: str) -> Vocabulary:
    """The vocabulary of ``SIZE[:TOKENIZER_FILE]``; SIZE 0 takes the file's own. Raises ConfigError."""
    size, _, file = text.partition(":")
    if not size.isdecimal() or len(size) > 7:
        raise ConfigError(f"model has value {SYNTHETIC + ':' + text!r}: {size!r} is no vocabulary size", field="model")
    if not file:
        return invented_vocabulary(int(size))
    read = vocabulary_of_tiktoken if file.endswith(".tiktoken") else vocabulary_of_tokenizer
    return read(Path(file).expanduser(), int(size))


@contextmanager
def step(say: Say, what: str) -> Iterator[None]:
    """Says that a long step began, and how long it took."""
    say(f"model: {what} ...")
    begun = time.monotonic()
    yield
    say(f"model: {what}: {time.monotonic() - begun:.1f} s")
