"""What every runner refuses, and the sizes that it takes."""

import pytest
import torch

from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticRunner
from gpu_worker.models.vocabulary import invented_vocabulary
from shared.errors import ConfigError

SHAPE = RunnerShape(max_slots=3, max_length=16, max_width=2, prefill_chunk=4)


def runner() -> SyntheticRunner:
    return SyntheticRunner(invented_vocabulary(300), SHAPE)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_slots", 0), ("max_length", 0), ("max_width", -1), ("prefill_chunk", 0), ("max_width", 99), ("prefill_chunk", 99)],
)
def test_a_wrong_size_names_itself_and_its_value(field: str, value: int) -> None:
    sizes = {"max_slots": 3, "max_length": 16, "max_width": 2, "prefill_chunk": 4, field: value}
    with pytest.raises(ConfigError, match=f"{field} has value {value}") as caught:
        RunnerShape(**sizes)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("slot", "tokens", "start", "reason"),
    [
        (3, [1], 0, "slot 3"),
        (-1, [1], 0, "slot -1"),
        (0, [], 0, "not 0"),
        (0, [1] * 5, 0, "not 5"),
        (0, [1], 16, "outside"),
        (0, [1, 2], 15, "outside"),
        (0, [1], -1, "outside"),
        (0, [300], 0, "token id"),
        (0, [-1], 0, "token id"),
    ],
)
def test_a_prefill_that_does_not_fit_is_refused(slot: int, tokens: list[int], start: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        runner().prefill(slot, tokens, start)


@pytest.mark.parametrize(
    ("tokens", "positions", "lengths", "reason"),
    [
        ([[0, 0]] * 3, [0, 0, 0], [3, 0, 0], "length 3"),
        ([[0, 0]] * 3, [0, 0, 0], [-1, 0, 0], "length -1"),
        ([[0, 0]] * 3, [15, 0, 0], [2, 0, 0], "2 tokens at 15"),
        ([[0, 0]] * 3, [-1, 0, 0], [1, 0, 0], "1 tokens at -1"),
        ([[0, 0], [0, 300], [0, 0]], [0, 0, 0], [0, 2, 0], "slot 1: a token id"),
        ([[0, 0]] * 2, [0, 0, 0], [1, 0, 0], "tokens must be"),
        ([[0] * 3] * 3, [0, 0, 0], [1, 0, 0], "tokens must be"),
        ([[0, 0]] * 3, [0, 0], [1, 0, 0], "positions must be"),
    ],
)
def test_a_decode_that_does_not_fit_is_refused(
    tokens: list[list[int]], positions: list[int], lengths: list[int], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        runner().decode(torch.tensor(tokens), torch.tensor(positions), torch.tensor(lengths))


def test_a_decode_of_the_wrong_type_is_refused() -> None:
    zeros = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="lengths must be"):
        runner().decode(torch.zeros(3, 2, dtype=torch.int64), zeros, zeros.int())


def test_an_idle_row_may_hold_anything() -> None:
    tokens, positions = torch.full((3, 2), -7), torch.full((3,), 10**6)
    positions[1] = 0
    tokens[1, 0] = 65
    logits = runner().decode(tokens, positions, torch.tensor([0, 1, 0]))
    assert logits.shape == (3, 2, 300)
    assert torch.isfinite(logits[1, 0]).all()
