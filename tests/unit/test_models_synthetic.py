"""The model without weights: its logits are a pure function of seed and prefix, whatever the slot, batch, width and history."""

import random
import time

import pytest
import torch

from gpu_worker.models.base import RunnerShape
from gpu_worker.models.prefix_hash import extend, extend_all
from gpu_worker.models.synthetic import SyntheticOptions, SyntheticRunner
from gpu_worker.models.vocabulary import invented_vocabulary
from shared.errors import ConfigError
from shared.tokenizer import Vocabulary

VOCABULARY = invented_vocabulary(1000)
PREFIX = [5, 999, 0, 300, 17, 17, 256, 42]


def make(slots: int = 3, width: int = 1, chunk: int = 4, **options: int) -> SyntheticRunner:
    shape = RunnerShape(max_slots=slots, max_length=64, max_width=width, prefill_chunk=chunk)
    return SyntheticRunner(VOCABULARY, shape, SyntheticOptions(**options))


def feed(runner: SyntheticRunner, slot: int, prefix: list[int], start: int = 0) -> torch.Tensor:
    """Prefills in chunks; logits of the last token."""
    chunk, logits = runner.prefill_chunk, None
    for begin in range(0, len(prefix), chunk):
        logits = runner.prefill(slot, prefix[begin : begin + chunk], start + begin, last=begin + chunk >= len(prefix))
    assert logits is not None
    return logits.clone()


def decode(runner: SyntheticRunner, rows: dict[int, tuple[list[int], int]]) -> torch.Tensor:
    """``rows``: slot -> (tokens, position)."""
    tokens = torch.full((runner.max_slots, runner.max_width), -1)
    positions, lengths = torch.zeros(runner.max_slots, dtype=torch.int64), torch.zeros(runner.max_slots, dtype=torch.int64)
    for slot, (row, position) in rows.items():
        tokens[slot, : len(row)] = torch.tensor(row)
        positions[slot], lengths[slot] = position, len(row)
    return runner.decode(tokens, positions, lengths).clone()


def reference(prefix: list[int], **options: int) -> torch.Tensor:
    return feed(make(slots=1, chunk=64, **options), 0, prefix)


def test_the_hash_is_the_same_in_integers_and_tensors() -> None:
    tokens = [random.Random(1).randrange(200_000) for _ in range(200)]
    expected = extend_all(-(1 << 63), tokens)
    current, found = torch.tensor(-(1 << 63)), []
    for token in tokens:
        current = extend(current, torch.tensor(token))
        found.append(int(current))
    assert found == expected
    assert len(set(expected)) == len(expected)
    assert 0 not in expected


def test_neither_slot_nor_batch_nor_chunks_nor_width_change_a_bit() -> None:
    # spec R18
    expected = [reference(PREFIX[: n + 1]) for n in range(len(PREFIX))]
    for width in (1, 2, 5):
        for slot in (0, 2):
            runner = make(slots=3, width=width, chunk=3)
            feed(runner, 1, [1, 2, 3])
            for begin in range(0, len(PREFIX), width):
                row = PREFIX[begin : begin + width]
                logits = decode(runner, {slot: (row, begin), 1: ([begin], 3)})
                for j in range(len(row)):
                    assert torch.equal(logits[slot, j], expected[begin + j])


def test_a_repeated_row_gets_the_same_logits() -> None:
    runner = make()
    feed(runner, 0, PREFIX)
    first = decode(runner, {0: ([7], len(PREFIX))})
    decode(runner, {1: ([7], 0)})
    assert torch.equal(first[0], decode(runner, {0: ([7], len(PREFIX))})[0])


def test_rolling_back_is_writing_again() -> None:
    # spec 42
    runner = make(width=4)
    feed(runner, 0, PREFIX)
    at = len(PREFIX)
    decode(runner, {0: ([1, 2, 3, 4], at)})
    after = decode(runner, {0: ([1, 2, 9], at)})
    assert torch.equal(after[0, 2], reference([*PREFIX, 1, 2, 9]))
    assert torch.equal(decode(runner, {0: ([8], at + 3)})[0, 0], reference([*PREFIX, 1, 2, 9, 8]))


def test_an_idle_slot_keeps_what_it_holds() -> None:
    runner = make()
    feed(runner, 0, PREFIX)
    decode(runner, {1: ([3], 0)})
    assert torch.equal(decode(runner, {0: ([4], len(PREFIX))})[0, 0], reference([*PREFIX, 4]))


def test_a_gap_in_the_prefix_is_an_error() -> None:
    runner = make()
    feed(runner, 0, PREFIX)
    with pytest.raises(ValueError, match="slot 0 holds no token at 8"):
        decode(runner, {0: ([4], len(PREFIX) + 1)})
    runner.reset(0)
    with pytest.raises(ValueError, match="slot 0 holds no token at 7"):
        runner.prefill(0, [4], len(PREFIX))


def test_the_seed_and_every_token_of_the_prefix_matter() -> None:
    base = reference(PREFIX)
    assert torch.equal(base, reference(PREFIX, seed=0))
    assert not torch.equal(base, reference(PREFIX, seed=1))
    for i in range(len(PREFIX)):
        assert not torch.equal(base, reference([*PREFIX[:i], (PREFIX[i] + 1) % 1000, *PREFIX[i + 1 :]]))


def test_unguided_text_ends_and_is_text() -> None:
    runner, ends = make(mean_length=16), []
    for start in range(8):
        tokens = [start]
        while tokens[-1] not in VOCABULARY.stop_ids and len(tokens) < 64:
            logits = decode(runner, {0: ([tokens[-1]], len(tokens) - 1)})[0, 0]
            generator = torch.Generator().manual_seed(len(tokens))
            tokens.append(int(torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)))
        ends.append(tokens[-1] in VOCABULARY.stop_ids)
    assert sum(ends) >= 6


def test_special_and_empty_ids_are_never_likely() -> None:
    table = [*(bytes([i]) for i in range(256)), b"<end>", b"<pad>", b"", b""]
    vocabulary = Vocabulary(token_bytes=table, special_ids=[256, 257], stop_ids=[256])
    runner = SyntheticRunner(vocabulary, RunnerShape(max_slots=1, max_length=64, prefill_chunk=1))
    for position in range(60):
        logits = runner.prefill(0, [position], position, last=True)
        assert logits is not None
        assert float(torch.softmax(logits, -1)[257:].sum()) < 1e-20


def test_a_forward_takes_at_least_its_time() -> None:
    shape = RunnerShape(max_slots=1, max_length=8, prefill_chunk=4)
    runner = SyntheticRunner(VOCABULARY, shape, SyntheticOptions(forward_ms=30.0))
    begun = time.monotonic()
    runner.prefill(0, [1], 0)
    decode(runner, {0: ([2], 1)})
    assert time.monotonic() - begun >= 0.06


@pytest.mark.parametrize(("field", "value"), [("seed", -1), ("forward_ms", -0.5), ("mean_length", 0), ("forward_ms", float("nan"))])
def test_a_wrong_option_names_itself(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} has value {value}"):
        SyntheticOptions(**{field: value})
