"""Log-probabilities of the prompt: each token after the first, as the model sees it, however the prompt is cut into chunks."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gpu_worker.models.base import RunnerShape
from gpu_worker.models.synthetic import SyntheticRunner
from gpu_worker.sampler.context_logits import ContextLogits, rows_a_piece
from gpu_worker.sampler.logprobs import PromptScores
from shared.errors import BadRequest, TooLarge
from shared.protocol import MAX_FRAME_BYTES, Delta, encode
from tests.requests_of import make_request, sequence_of
from tests.sampling_bench import Bench, V, table
from tests.vocabularies import tiny

PROMPT = [(7 * i * i + i // 3) % V for i in range(150)]


def check(entries, prompt, top):
    x = table().astype(np.float64)
    logprobs = x - np.log(np.exp(x).sum(1, keepdims=True))
    assert [entry.token_id for entry in entries] == prompt[1:]
    for before, entry in zip(prompt, entries, strict=False):
        row = logprobs[before]
        assert entry.logprob == pytest.approx(row[entry.token_id], abs=1e-5)
        assert entry.rank == 1 + int((row > row[entry.token_id]).sum())
        assert [token for token, _ in entry.top] == np.argsort(-row, kind="stable")[:top].tolist()
        assert [value for _, value in entry.top] == pytest.approx(np.sort(row)[::-1][:top].tolist(), abs=1e-5)


@pytest.mark.parametrize(("prompt", "top"), [(PROMPT, 3), (PROMPT[:64], 0), (PROMPT[:65], 20), (PROMPT[:2], 1), ([5], 2)])
def test_every_token_after_the_first(prompt, top):  # spec 111 112
    with Bench() as bench:
        sequence = bench.start(prompt=prompt, prompt_logprobs=top, temperature=1.0, seed=3, max_tokens=4)
        plain = bench.start(1, prompt=prompt, temperature=1.0, seed=3, max_tokens=4)
        bench.run(4)
        check(sequence.scores.entries, prompt, min(top, V))
        assert sequence.tokens == plain.tokens
        assert plain.scores is None


def test_parameters_of_sampling_play_no_part():  # spec 111: raw
    with Bench() as bench:
        sequence = bench.start(
            prompt=PROMPT[:9], prompt_logprobs=2, temperature=0.3, top_k=2, logit_bias={"3": 9.0}, bad_words=["c"]
        )
        bench.step()
        check(sequence.scores.entries, PROMPT[:9], 2)


def test_a_sequence_that_lost_its_slot_is_scored_once():
    with Bench() as bench:
        sequence = bench.start(prompt=PROMPT, prompt_logprobs=1, temperature=1.0, seed=3, max_tokens=9, ignore_eos=True)
        bench.step()
        before = list(sequence.scores.entries)
        bench.place(sequence, 2)
        bench.step()
        assert sequence.scores.entries == before


def test_a_chunk_that_comes_again_adds_nothing():
    scores, logits = PromptScores([1, 2, 3, 4], 0, V), torch.from_numpy(table()[[1, 2, 3]])
    assert scores.entries is None
    scores.add(0, logits[:2])
    scores.add(0, logits[:2])
    scores.add(0, logits)
    scores.add(9, logits)
    check(scores.entries, [1, 2, 3, 4], 0)


def test_logits_of_a_chunk_are_those_of_its_tokens():
    runner = SyntheticRunner(tiny(), RunnerShape(max_slots=2, max_length=32, prefill_chunk=8))
    logits = runner.prefill_logits(1, [65, 66, 67], 0)
    assert torch.equal(logits[2], runner.prefill(0, [65, 66, 67], 0, last=True))
    assert torch.equal(logits[0], runner.prefill(0, [65], 0, last=True))


@pytest.mark.parametrize("guide", [None, lambda tokens: {1, 2, 9}])
def test_returned_logits_are_the_models(guide):  # spec 127
    with Bench() as bench:
        plain = bench.start(0, temperature=1.0, seed=4, max_tokens=3, guide=guide)
        asks = bench.start(
            1, temperature=1.0, seed=4, max_tokens=3, guide=guide, return_generation_logits=True, logit_bias={"3": 0.0}
        )
        bench.step(held=[1])
        bench.run(3)
        bench.outcomes.flush()
        pieces = [piece for piece in bench.replies if piece.logits is not None]
        assert asks.tokens == plain.tokens
        assert len(pieces) == len(asks.tokens)
        for before, piece in zip([0, *asks.tokens], pieces, strict=False):
            assert np.array_equal(np.frombuffer(piece.logits[0], "<f4"), table()[before])
        assert len([piece for piece in bench.replies if piece.logits is None]) == len(plain.tokens)


def context_of(replies):
    """Rows of the prompt's logits, float32 [n, V]; they come before the first token and never with one."""
    pieces = [piece for piece in replies if piece.context_logits is not None]
    assert all(piece.token_ids == [] and piece.text == "" and piece.logits is None for piece in pieces)
    assert [piece.sequence_number for piece in replies] == list(range(len(replies)))
    assert replies[: len(pieces)] == pieces
    return np.stack([np.frombuffer(row, "<f4") for piece in pieces for row in piece.context_logits])


SHORT = [3, 5, 5, 7, 0, 2, 9]


@pytest.mark.parametrize("guide", [None, lambda tokens: {1, 2, 9}])
@pytest.mark.parametrize("more", [{}, {"prompt_logprobs": 2}, {"return_generation_logits": True}, {"bad_words": ["c"]}])
def test_the_prompts_logits_are_the_models(guide, more):  # spec 126 127
    arguments = {"prompt": SHORT, "temperature": 1.0, "seed": 4, "max_tokens": 3, "guide": guide, **more}
    with Bench() as bench:
        bench.runner.shape = replace(bench.runner.shape, prefill_chunk=2)  # several chunks
        asks = bench.start(0, return_context_logits=True, **arguments)
        bench.step(held=[0])
        bench.place(asks, 2)  # the prompt is written again: nothing is told twice
        bench.run(3)
        bench.outcomes.flush()
        assert np.array_equal(context_of(bench.replies), table()[SHORT])
        assert sum(piece.logits is not None for piece in bench.replies) == (3 if "return_generation_logits" in more else 0)
        if "prompt_logprobs" in more:
            check(asks.scores.entries, SHORT, 2)
    with Bench() as bench:
        plain = bench.start(0, **arguments)
        bench.run(3)
        assert plain.tokens == asks.tokens


def test_the_prompts_logits_of_a_continuation():  # spec 127 R25
    with Bench() as bench:
        bench.start(0, prompt=SHORT, output=[1, 2], temperature=1.0, seed=4, max_tokens=5, return_context_logits=True)
        bench.run(5)
        bench.outcomes.flush()
        assert np.array_equal(context_of(bench.replies), table()[SHORT])


def test_one_of_n_tells_the_prompts_logits():
    request = make_request(params={"n": 3, "temperature": 1.0, "return_context_logits": True})
    told = [sequence_of(request, child=child).context_logits is not None for child in range(3)]
    assert told == [True, False, False]


def test_a_piece_of_logits_fits_in_a_frame():
    for vocab_size in (16, 32_000, 128_256, 262_144):
        many = rows_a_piece(vocab_size)
        assert 1 <= many <= 64
        rows = [bytes(4 * vocab_size)] * many
        piece = Delta(request_id="r" * 64, choice=7, sequence_number=9, text="", token_ids=[], context_logits=rows)
        assert len(encode(piece)) <= MAX_FRAME_BYTES
    kept = ContextLogits(100, None)
    kept.add(0, torch.zeros(100, 16))
    assert [len(rows) for rows in kept.pieces(None, 16)] == [64, 36]
    assert kept.told


@pytest.mark.parametrize("name", ["return_generation_logits", "return_context_logits"])
@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({"stream": False}, {}), ({}, {"n": 1, "best_of": 2, "temperature": 1.0}), ({}, {"use_beam_search": True}),
        ({"max_length": 1 << 17, "prompt_token_ids": [5] * 65_000}, {"max_tokens": 1 << 16}),
    ],
)  # fmt: skip
def test_logits_that_cannot_be_returned(name, fields, params):  # spec 76
    with pytest.raises(BadRequest) as caught:
        make_request(params={name: True, **params}, **fields)
    assert caught.value.field == name


def test_a_reply_must_hold_them():  # spec 76: refused by name
    with pytest.raises(TooLarge) as caught:
        make_request(prompt_token_ids=[5] * 7000, params={"prompt_logprobs": 20}, max_length=8000)
    assert caught.value.field == "prompt_logprobs"
    make_request(prompt_token_ids=[5] * 7000, params={"prompt_logprobs": 1}, max_length=8000)
