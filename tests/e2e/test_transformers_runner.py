"""The real model: what it says, and that a row's logits are bitwise its own whatever the batch around it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gpu_worker.models.base import ModelRunner, RunnerShape
from gpu_worker.models.load import LoadedModel, load_model
from gpu_worker.models.prepare import default_folder, prepare
from shared.tokenizer import decode

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SLOTS, CHUNK = 5, 16


def load(width: int, **options: Any) -> LoadedModel:
    shape = RunnerShape(max_slots=SLOTS, max_length=640, max_width=width, prefill_chunk=CHUNK)
    return load_model(str(default_folder()), shape, device="cpu", threads=1, say=lambda line: None, **options)


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    prepare(default_folder(), say=lambda line: None)
    yield load(width=1)


def feed(runner: ModelRunner, slot: int, token_ids: list[int]) -> None:
    for begin in range(0, len(token_ids), CHUNK):
        runner.prefill(slot, token_ids[begin : begin + CHUNK], begin)


def step(runner: ModelRunner, rows: dict[int, tuple[list[int], int]]) -> torch.Tensor:
    """``rows``: slot -> (tokens, position)."""
    tokens = torch.zeros(SLOTS, runner.max_width, dtype=torch.int64)
    positions, lengths = torch.zeros(SLOTS, dtype=torch.int64), torch.zeros(SLOTS, dtype=torch.int64)
    for slot, (row, position) in rows.items():
        tokens[slot, : len(row)] = torch.tensor(row)
        positions[slot], lengths[slot] = position, len(row)
    return runner.decode(tokens, positions, lengths)


def ask(model: LoadedModel, question: str) -> list[int]:
    return model.chat.encode_messages([{"role": "user", "content": question}])


def test_it_answers(model: LoadedModel) -> None:
    prompt, answer = ask(model, "What is the capital of France?"), []
    feed(model.runner, 1, prompt[:-1])
    token, position = prompt[-1], len(prompt) - 1
    while token not in model.vocabulary.stop_ids and len(answer) < 12:
        token = int(step(model.runner, {1: ([token], position)})[1, 0].argmax())
        answer.append(token)
        position += 1
    assert decode(model.vocabulary, answer) == "The capital of France is Paris."


def test_the_vocabulary_is_that_of_the_tokenizer(model: LoadedModel) -> None:
    vocabulary, text = model.vocabulary, 'naïve 日本語 \U0001f600\t{"a": [1, 2]}\n'
    assert vocabulary.size == model.runner.vocab_size
    assert vocabulary.stop_ids == [2]
    assert vocabulary.token_bytes[2] == b"<|im_end|>"
    assert decode(vocabulary, model.chat.encode(text)) == text
    assert {bytes([i]) for i in range(0x20, 0x7F)} <= set(vocabulary.token_bytes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [1, 3])
def test_a_row_is_bitwise_its_own(model: LoadedModel, width: int, dtype: str) -> None:
    # spec R18
    runner = load(width, dtype=dtype).runner
    prompts = [ask(model, f"Tell me {n} things about the number {n}.") + list(range(100, 100 + 3 * n)) for n in range(SLOTS)]
    prompts[3] = (prompts[3] * 12)[:560]  # over a block of keys: the other rows then attend over more, masked, keys
    row = prompts[0][-width:]
    feed(runner, 0, prompts[0])
    alone = step(runner, {0: (row, len(prompts[0]))})[0].clone()
    for slot in range(1, SLOTS):
        feed(runner, slot, prompts[slot])
    others = {slot: ([slot] * width, len(prompts[slot])) for slot in range(1, SLOTS)}
    held = step(runner, {**others, 0: (row, len(prompts[0]))})[0].clone()
    assert torch.equal(alone, held)
    for slot in range(1, SLOTS):
        runner.reset(slot)
        feed(runner, slot, prompts[0])
        busy = {**others, 0: ([9] * width, len(prompts[0])), slot: (row, len(prompts[0]))}
        assert torch.equal(alone, step(runner, busy)[slot])


def test_drafts_agree_with_single_steps_up_to_rounding(model: LoadedModel) -> None:
    wide = load(width=4).runner
    prompt = ask(model, "Count to ten.")
    feed(wide, 0, prompt[:-4])
    feed(model.runner, 0, prompt[:-4])
    together = step(wide, {0: (prompt[-4:], len(prompt) - 4)})[0]
    single = [step(model.runner, {0: ([prompt[j]], j)})[0, 0].clone() for j in range(len(prompt) - 4, len(prompt))]
    torch.testing.assert_close(together, torch.stack(single), rtol=1e-3, atol=1e-3)
