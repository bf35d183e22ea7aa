"""The real conversion of the real model: what is written reads back, and speaks."""

import pytest

from gpu_worker.models.prepare import MARKER, is_prepared, prepare

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_the_model_is_converted_and_reads_back(tmp_path):
    folder, said = tmp_path / "model", []
    assert prepare(folder, said.append) is True
    assert is_prepared(folder)
    assert {"config.json", "model.safetensors", "tokenizer.json", MARKER} <= {file.name for file in folder.iterdir()}
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in folder.iterdir())
    assert len([line for line in said if line.endswith(" s")]) == 3  # one line with its time for each long step
    assert [path.name for path in tmp_path.iterdir()] == ["model"]

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    tokens = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :])
