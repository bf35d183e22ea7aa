"""From the setting ``model`` to a runner: what is loaded, what is said, and what a wrong value is answered with."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from gpu_worker.models.base import RunnerShape
from gpu_worker.models.chat import TableChat, TemplateChat
from gpu_worker.models.load import load_model
from gpu_worker.models.synthetic import SyntheticOptions
from gpu_worker.models.vocabulary import invented_vocabulary
from shared.errors import ConfigError
from tests.unit.test_models_chat import template_chat

SHAPE = RunnerShape(max_slots=2, max_length=32, max_width=1, prefill_chunk=8)


def silent(line: str) -> None:
    """For tests that do not look at the progress."""


def load(spec: str, **options: Any) -> Any:
    return load_model(spec, SHAPE, threads=1, **{"say": silent, **options})


def model_folder(folder: Path, vocab_size: int = 320) -> Path:
    template_chat(folder)
    config = transformers.LlamaConfig(
        vocab_size=vocab_size, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_a_folder_becomes_runner_vocabulary_and_chat(tmp_path: Path) -> None:
    said: list[str] = []
    loaded = load(str(model_folder(tmp_path)), say=said.append, device="cpu")
    assert loaded.vocabulary.size == loaded.runner.vocab_size == 320
    assert isinstance(loaded.chat, TemplateChat)
    ids = loaded.chat.encode("hello")
    logits = loaded.runner.prefill(0, ids, 0, last=True)
    assert logits.shape == (320,)
    assert logits.dtype == torch.float32
    assert [line for line in said if "loading" in line and line.endswith(" s")]
    assert [line for line in said if "warm-up" in line and line.endswith(" s")]


def test_bfloat16_gives_float32_logits(tmp_path: Path) -> None:
    runner = load(str(model_folder(tmp_path)), device="cpu", dtype="bfloat16").runner
    zeros = torch.zeros(2, dtype=torch.int64)
    logits = runner.decode(torch.zeros(2, 1, dtype=torch.int64), zeros, zeros + 1)
    assert runner.cache.keys.dtype == torch.bfloat16
    assert logits.dtype == torch.float32


def test_the_synthetic_runner_is_as_wide_as_asked() -> None:
    loaded = load("synthetic:1000", synthetic=SyntheticOptions(seed=7))
    assert loaded.runner.vocab_size == loaded.vocabulary.size == 1000
    assert isinstance(loaded.chat, TableChat)


def test_the_synthetic_runner_takes_any_vocabulary(tmp_path: Path) -> None:
    given = invented_vocabulary(400)
    assert load("synthetic:0", vocabulary=given).vocabulary is given
    template_chat(tmp_path)
    loaded = load(f"synthetic:512:{tmp_path / 'tokenizer.json'}")
    assert loaded.vocabulary.size == 512
    assert loaded.vocabulary.definition_kind == "huggingface"


@pytest.mark.parametrize(
    ("spec", "options", "reason"),
    [
        ("/nowhere", {}, "model has value '/nowhere'"),
        ("", {}, "model has value ''"),
        ("synthetic", {}, "model has value 'synthetic'"),
        ("synthetic:", {}, "'' is no vocabulary size"),
        ("synthetic:-5", {}, "'-5' is no vocabulary size"),
        ("synthetic:99999999", {}, "'99999999' is no vocabulary size"),
        ("synthetic:12", {}, "12 tokens"),
        ("synthetic:1000:/nowhere.tiktoken", {}, "nowhere"),
        ("synthetic:1000", {"device": "tpu"}, "device has value 'tpu'"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(spec: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(spec, **options)


def test_a_wrong_dtype_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dtype has value 'int3'"):
        load(str(model_folder(tmp_path)), dtype="int3")


def test_weights_that_are_no_safetensors_are_refused(tmp_path: Path) -> None:
    (model_folder(tmp_path) / "model.safetensors").unlink()
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="model has value"):
        load(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ConfigError, match="model has value"):
        load(str(tmp_path))


def test_weights_that_lack_a_layer_are_refused(tmp_path: Path) -> None:
    file = model_folder(tmp_path) / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="up_proj"):
        load(str(tmp_path))


def test_the_environment_is_set_before_torch_reads_it() -> None:
    assert os.environ["MKL_CBWR"] == "AVX2,STRICT"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"]
