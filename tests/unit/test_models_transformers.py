"""The slot KV cache over small random models of several architectures: the logits are those of the library's own forward."""

import random
from typing import Any

import pytest
import torch
import transformers

from gpu_worker.models.attention import NAME
from gpu_worker.models.base import RunnerShape
from gpu_worker.models.transformers_runner import TransformersRunner, cache_argument
from shared.errors import ConfigError

SIZES: dict[str, Any] = {
    "vocab_size": 160, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 1200,
}  # fmt: skip
ARCHITECTURES = {
    "llama": lambda **extra: transformers.LlamaConfig(**SIZES, **extra),
    "qwen3": lambda **extra: transformers.Qwen3Config(**SIZES, head_dim=8, **extra),
    "granite": lambda **extra: transformers.GraniteConfig(**SIZES, logits_scaling=2.0, **extra),
}
TOKENS = [random.Random(3).randrange(160) for _ in range(40)]


def model_of(architecture: str = "llama", **extra: Any) -> Any:
    torch.manual_seed(0)
    config = ARCHITECTURES[architecture](**extra)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=NAME)


def make(model: Any, slots: int = 4, width: int = 1, chunk: int = 8, length: int = 64) -> TransformersRunner:
    return TransformersRunner(model, RunnerShape(max_slots=slots, max_length=length, max_width=width, prefill_chunk=chunk))


def library_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), V] of one plain forward without a cache."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    model.set_attn_implementation(NAME)
    return logits


def feed(runner: TransformersRunner, slot: int, tokens: list[int]) -> torch.Tensor:
    chunk, logits = runner.prefill_chunk, None
    for begin in range(0, len(tokens), chunk):
        logits = runner.prefill(slot, tokens[begin : begin + chunk], begin, last=begin + chunk >= len(tokens))
    assert logits is not None
    return logits


def decode(runner: TransformersRunner, rows: dict[int, tuple[list[int], int]]) -> torch.Tensor:
    """``rows``: slot -> (tokens, position)."""
    tokens = torch.full((runner.max_slots, runner.max_width), 10**6)
    positions, lengths = torch.zeros(runner.max_slots, dtype=torch.int64), torch.zeros(runner.max_slots, dtype=torch.int64)
    for slot, (row, position) in rows.items():
        tokens[slot, : len(row)] = torch.tensor(row)
        positions[slot], lengths[slot] = position, len(row)
    return runner.decode(tokens, positions, lengths)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("width", [1, 3])
def test_logits_are_those_of_the_library(architecture: str, width: int) -> None:
    model = model_of(architecture)
    expected = library_logits(model, TOKENS)
    runner = make(model, width=width)
    torch.testing.assert_close(feed(runner, 2, TOKENS[:11]), expected[10], rtol=1e-4, atol=1e-5)
    for begin in range(11, len(TOKENS), width):
        row = TOKENS[begin : begin + width]
        logits = decode(runner, {2: (row, begin)})
        torch.testing.assert_close(logits[2, : len(row)], expected[begin : begin + len(row)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("slots", "width"), [(4, 1), (7, 1), (4, 3), (1, 1), (1, 3)])
def test_a_row_does_not_depend_on_the_others(slots: int, width: int) -> None:
    # spec R18
    model, row = model_of(), TOKENS[20 : 20 + width]
    alone, busy = make(model, slots, width), make(model, slots, width)
    for slot in range(slots):
        for other in range(slots):
            feed(busy, other, TOKENS[: other + 5])
        for runner in (alone, busy):
            feed(runner, slot, TOKENS[:20])
        others = {s: ([s] * (1 + s % width), s + 5) for s in range(slots) if s != slot}
        assert torch.equal(decode(alone, {slot: (row, 20)})[slot], decode(busy, {**others, slot: (row, 20)})[slot])


def test_a_block_of_keys_that_another_row_needs_changes_no_bit() -> None:
    model = model_of()
    runner = make(model, slots=4, length=1100)
    feed(runner, 0, TOKENS)
    alone = decode(runner, {0: ([1], 40)})[0].clone()
    for begin in range(0, 1048, 8):
        runner.prefill(1, [begin % 160] * 8, begin)
    assert torch.equal(alone, decode(runner, {0: ([1], 40), 1: ([2], 1048)})[0])


def test_a_held_row_repeats_bitwise_and_rolling_back_is_writing_again() -> None:
    # spec 42
    runner = make(model_of(), width=3)
    feed(runner, 0, TOKENS[:10])
    first = decode(runner, {0: (TOKENS[10:13], 10)})[0].clone()
    decode(runner, {1: ([4], 0)})
    assert torch.equal(first, decode(runner, {0: (TOKENS[10:13], 10)})[0])
    decode(runner, {0: ([1, 2, 3], 10)})
    decode(runner, {0: ([7], 13)})
    assert torch.equal(first, decode(runner, {0: (TOKENS[10:13], 10)})[0])


def test_a_prompt_fed_between_steps_is_not_touched_by_them() -> None:
    runner, undisturbed = make(model_of()), make(model_of())
    expected = feed(undisturbed, 1, TOKENS[:16])
    feed(runner, 0, TOKENS[:4])
    runner.prefill(1, TOKENS[:8], 0)
    decode(runner, {0: ([5], 4)})
    last = runner.prefill(1, TOKENS[8:16], 8, last=True)
    assert last is not None
    assert torch.equal(last, expected)


def test_the_last_position_can_be_used() -> None:
    runner = make(model_of(), width=3, length=16)
    feed(runner, 0, TOKENS[:13])
    logits = decode(runner, {0: (TOKENS[13:16], 13)})
    expected = library_logits(runner._model, TOKENS[:16])
    torch.testing.assert_close(logits[0], expected[13:], rtol=1e-4, atol=1e-5)


def test_nothing_of_a_slot_is_left_after_a_reset() -> None:
    runner = make(model_of())
    feed(runner, 0, TOKENS)
    runner.cache.keys[:, 1:] = float("nan")
    runner.cache.values[:, 1:] = float("nan")
    for slot in (1, 2, 3):
        runner.reset(slot)
    assert not torch.isnan(runner.cache.keys).any()
    assert torch.isfinite(feed(runner, 1, TOKENS)).all()
    assert torch.equal(runner.cache.keys[:, 0, :, :40], runner.cache.keys[:, 1, :, :40])


def test_warm_up_leaves_every_slot_empty() -> None:
    runner = make(model_of(), width=2)
    runner.warm_up()
    assert not runner.cache.keys.any()
    assert torch.equal(feed(runner, 0, TOKENS), feed(make(model_of(), width=2), 0, TOKENS))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (transformers.LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), "dynamic"),
        (transformers.Gemma2Config(**SIZES, head_dim=8), "sliding_attention"),
        (transformers.MistralConfig(**SIZES, sliding_window=32), "sliding_window is 32"),
        (transformers.LlamaConfig(**{**SIZES, "max_position_embeddings": 32}), "max_position_embeddings is 32"),
        (transformers.T5Config(vocab_size=160, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2), "is_encoder_decoder"),
    ],
)
def test_a_model_that_cannot_be_served_exactly_is_refused_by_name(config: Any, reason: str) -> None:
    from gpu_worker.models.model_config import check_model_config

    with pytest.raises(ConfigError, match=reason):
        check_model_config(config, RunnerShape(max_length=64))


def test_another_attention_is_refused() -> None:
    model = transformers.AutoModelForCausalLM.from_config(ARCHITECTURES["llama"](), attn_implementation="eager")
    with pytest.raises(ConfigError, match="slot_sdpa"):
        make(model)


def test_an_attention_that_needs_more_is_refused() -> None:
    from gpu_worker.models.attention import slot_sdpa

    states = torch.zeros(1, 2, 1, 4)
    with pytest.raises(ConfigError, match="softcap"):
        slot_sdpa(torch.nn.Identity(), states, states, states, torch.ones(1, 1, 1, 1, dtype=torch.bool), softcap=3.0)


def test_the_cache_goes_in_under_the_name_that_the_library_has() -> None:
    class Old:
        def forward(self, past_key_values: object = None) -> None: ...

    class New:
        def forward(self, cache: object = None, past_key_values: object = None) -> None: ...

    class Without:
        def forward(self, input_ids: object = None) -> None: ...

    assert (cache_argument(Old()), cache_argument(New())) == ("past_key_values", "cache")
    with pytest.raises(ConfigError, match="takes no cache"):
        cache_argument(Without())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_node_of_a_tree_sees_its_own_path(architecture: str) -> None:  # spec R10
    model, runner = model_of(architecture), make(model_of(architecture), width=6)
    feed(runner, 1, TOKENS[:9])
    nodes, parents = [TOKENS[9], 40, 50, 60, 70, 80], [-1, 0, 0, 2, 1, 3]
    tokens, above = torch.zeros((4, 6), dtype=torch.int64), torch.arange(-1, 5).repeat(4, 1)
    tokens[1], above[1] = torch.tensor(nodes), torch.tensor(parents)
    position = torch.tensor([0, 9, 0, 0])
    logits = runner.decode(tokens, position, torch.tensor([0, 6, 0, 0]), above)[1].clone()
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), nodes[node]])
        expected = library_logits(model, [*TOKENS[:9], *paths[node]])[-1]
        torch.testing.assert_close(logits[node], expected, rtol=1e-4, atol=1e-5)
    runner.keep(1, 9, [0, 2, 3])  # its content goes on behind the second child of the root
    text = [*TOKENS[:9], *paths[3]]
    after = decode(runner, {1: ([90, 91], 12)})[1, :2]
    torch.testing.assert_close(after, library_logits(model, [*text, 90, 91])[-2:], rtol=1e-4, atol=1e-5)


def test_what_is_no_tree_is_refused() -> None:
    runner = make(model_of(), width=3)
    feed(runner, 0, TOKENS[:4])
    tokens, lengths = torch.zeros((4, 3), dtype=torch.int64), torch.tensor([3, 0, 0, 0])
    with pytest.raises(ValueError, match="must stand before it"):
        runner.decode(tokens, lengths + 1, lengths, torch.tensor([[-1, 1, 0]] * 4))
    for nodes in ([0, 2, 1], [0, 3], [0, 0]):
        with pytest.raises(ValueError, match="no path"):
            runner.keep(0, 4, nodes)
    with pytest.raises(ValueError, match="leave"):
        runner.keep(0, 63, [0, 2])
