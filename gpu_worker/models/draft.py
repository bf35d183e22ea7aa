"""From the setting ``draft_model`` to a second runner: a model folder, or ``synthetic:AGREEMENT`` beside a synthetic model.

A folder may hold ``d2t.npy`` (int32 [n]): the model then guesses n ids only, column i of its logits being id i + d2t[i].
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gpu_worker.models.base import RunnerShape
from gpu_worker.models.load import SYNTHETIC, LoadedModel, Say, check_folder, load_runner, step
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.models.vocabulary import load_vocabulary
from gpu_worker.speculation.draft_model import FED, DraftRunner
from shared.errors import ConfigError
from shared.tokenizer import Vocabulary

D2T = "d2t.npy"


def load_draft_model(
    spec: str, shape: RunnerShape, model: LoadedModel, *, synthetic: SyntheticOptions, say: Say = print
) -> DraftRunner:
    """Loads and warms up, as many slots and positions as ``shape`` has, on the CPU. Raises ConfigError naming the field
    ``draft_model``: no folder, a vocabulary that differs from the model's, a d2t that does not fit it."""
    if model.runner.device.type != "cpu":
        raise _wrong(spec, "a draft model is for the CPU pipeline; this model is on a GPU")
    shape = replace(shape, max_width=min(FED, shape.max_length))
    kind, colon, rest = spec.partition(":")
    if kind == SYNTHETIC and colon:
        draft = DraftRunner(_twin(rest, spec, shape, model, synthetic))
    else:
        draft = _from_folder(spec, shape, model.vocabulary, say)
    with step(say, "warm-up of the draft model"):
        draft.runner.warm_up()
    return draft


def _twin(agreement: str, spec: str, shape: RunnerShape, model: LoadedModel, synthetic: SyntheticOptions) -> SyntheticRunner:
    if not isinstance(model.runner, SyntheticRunner):
        raise _wrong(spec, "a synthetic draft model guesses for a synthetic model only")
    try:
        options = replace(synthetic, agreement=float(agreement), forward_ms=0.0)
    except (ValueError, ConfigError) as error:
        raise _wrong(spec, f"{agreement!r} is no agreement between 0 and 1") from error
    return SyntheticRunner(model.vocabulary, shape, options)


def _from_folder(spec: str, shape: RunnerShape, vocabulary: Vocabulary, say: Say) -> DraftRunner:
    try:
        folder = check_folder(spec)
        check_same(vocabulary, load_vocabulary(folder), spec)
        return DraftRunner(load_runner(folder, shape, device="cpu", say=say), load_d2t(folder / D2T, vocabulary.size, spec))
    except ConfigError as error:
        if error.field == "draft_model":
            raise
        raise _wrong(spec, str(error)) from error


def check_same(vocabulary: Vocabulary, drafted: Vocabulary, spec: str) -> None:
    """Raises ConfigError where an id stands for other bytes, or there are more or fewer ids."""
    if drafted.size != vocabulary.size:
        raise _wrong(spec, f"its vocabulary has {drafted.size} ids, the model's {vocabulary.size}")
    for token_id, (mine, wanted) in enumerate(zip(drafted.token_bytes, vocabulary.token_bytes, strict=True)):
        if mine != wanted:
            raise _wrong(spec, f"its vocabulary differs from the model's: id {token_id} is {mine!r}, not {wanted!r}")


def load_d2t(file: Path, vocab_size: int, spec: str) -> torch.Tensor | None:
    """The offset table of a draft vocabulary, None where there is no file. Raises ConfigError where it is none."""
    if not file.is_file():
        return None
    table = np.load(file, allow_pickle=False)
    if table.dtype != np.int32 or table.ndim != 1 or not table.size:
        raise _wrong(spec, f"{D2T} must be int32 [n], not {table.dtype} {list(table.shape)}")
    targets = np.arange(len(table)) + table
    if targets[0] < 0 or targets[-1] >= vocab_size or not (np.diff(targets) > 0).all():
        raise _wrong(spec, f"{D2T} must give ascending ids below {vocab_size}")
    return torch.from_numpy(table)


def _wrong(spec: str, why: str) -> ConfigError:
    return ConfigError(f"draft_model has value {spec!r}: {why}", field="draft_model")
