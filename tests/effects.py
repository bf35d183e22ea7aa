"""What every field of SamplingParams does, in one table: the distribution of each token by the formulas in float64, or what the
reply shows. The same table runs over any pipeline, with drafts and without."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from gpu_worker.pipeline import HostPipeline
from gpu_worker.speculation import Drafting, ReplayDrafter
from gpu_worker.speculation.drafting import may_draft
from gpu_worker.step_rows import StepRows
from tests.sampling_bench import EOS, LETTERS, Bench, TableRunner, V, softmax, table

PROMPT = [3, 5, 5, 7, 0]
ALLOWED = {1, 2, 3, 5, 7, 9, 12, EOS}
LONG = table()
LONG[:, EOS] = -3.0  # texts that go on for a while
BASE = {"temperature": 1.0, "seed": 7, "max_tokens": 14}
DRAFTS = 3
WRONG = {2, 5, 6, 11}
"""Output positions at which a draft is not what will be sampled."""


class EffectBench(Bench):
    """``scripts``: what is drafted in each slot, with other tokens at WRONG positions; None: no drafts, one token a slot."""

    def __init__(self, *, logits=LONG, pipeline=HostPipeline, device="cpu", scripts=None, slots=4):
        runner = TableRunner(logits, slots, device=device)
        if scripts is not None:
            runner.shape = replace(runner.shape, max_width=1 + DRAFTS)
        super().__init__(logits, runner=runner, pipeline=pipeline)
        self._scripts, self._drafting = scripts, Drafting("ngram", DRAFTS)
        self.rows = StepRows(self.link, runner.max_slots, V, self.params, self.pipeline.row_buffers())

    def launch(self, held=(), offsets=None):
        for sequence in self.by_slot.values() if self._scripts is not None else ():
            if sequence.finish is None and may_draft(sequence.params):
                if sequence.progress.drafter is None:
                    sequence.progress.drafter = ReplayDrafter(self._scripts[sequence.slot], V, WRONG)
                tree = self._drafting.propose(sequence)
                if tree.tokens:
                    self.pipeline.draft(sequence.slot, tree.tokens, tree.parents)
        return super().launch(held, offsets)


class Run:
    """One text from beginning to end: ``tokens``, ``distributions`` float64 [n, V] that they were drawn from (where it asked for
    all), the sequence and what was sent."""

    def __init__(self, sequence, replies):
        self.sequence, self.replies = sequence, [each for each in replies if each.request_id == sequence.request.request_id]
        self.tokens, self.choice = list(sequence.tokens), sequence.choice(None)
        self.drafts_accepted = sequence.progress.counters.accepted

    @functools.cached_property
    def distributions(self):
        found = np.zeros((len(self.tokens), V))
        for at, entry in enumerate(self.sequence.logprobs):
            for token, logprob in entry.top:
                found[at, token] = np.exp(logprob)
        return found


def run_all(make, guide, cases, *, scripts=None, logits=LONG):
    """The texts of ``cases`` (name -> parameters) side by side on one pipeline, with drafts where ``scripts`` (by name) are
    given."""
    names = list(cases)
    with make(slots=len(names), logits=logits, scripts=None if scripts is None else [scripts[name] for name in names]) as bench:
        allowed = None if guide is None else lambda tokens: guide
        started = {name: bench.start(slot, guide=allowed, prompt=PROMPT, **cases[name]) for slot, name in enumerate(names)}
        bench.run(40)
        bench.outcomes.flush()
        if bench.errors:
            raise AssertionError({names[slot]: error for slot, error in bench.errors.items()})
        return {name: Run(sequence, bench.replies) for name, sequence in started.items()}


def run_one(make, guide, params, *, script=None, logits=LONG):
    return run_all(make, guide, {"": params}, scripts=None if script is None else {"": script}, logits=logits)[""]


# ---- the formulas ----------------------------------------------------------------------------------------------------------------


def expected(output, params, guide, logits=LONG):
    """The distribution float64 [V] of the token after ``output`` (spec 69, 93, 94, 100-106)."""
    x = logits[[*PROMPT, *output][-1]].astype(np.float64)
    for token, bias in params.get("logit_bias", {}).items():
        x[int(token)] += bias
    x = _penalised(x, output, params)
    allowed = set(guide or range(V)) - _banned(output, params)
    if params.get("allowed_token_ids"):
        allowed &= set(params["allowed_token_ids"])
    if params.get("temperature", 1.0) == 0 or params.get("top_k") == 1:
        return softmax(x, allowed)  # told at temperature 1; the most likely one is taken
    return _filtered(softmax(x / params.get("temperature", 1.0), allowed), output, params)


def _penalised(x, output, params):
    ignore = min(params.get("prompt_ignore_length", 0), len(PROMPT))
    repetition, presence = params.get("repetition_penalty", 1.0), params.get("presence_penalty", 0.0)
    for token in range(V):
        count = PROMPT[ignore:].count(token) + list(output).count(token)
        if count or token in PROMPT[:ignore]:
            x[token] = x[token] * repetition if x[token] < 0 else x[token] / repetition
        if count:
            x[token] -= presence + params.get("frequency_penalty", 0.0) * count
    return x


def _banned(output, params):
    text, found = [*PROMPT, *output], set()
    for word in params.get("bad_words", []):
        ids = [LETTERS.index(letter) for letter in word if letter != " "]
        if ids and text[len(text) - len(ids) + 1 :] == ids[:-1]:
            found.add(ids[-1])
    size = params.get("no_repeat_ngram_size", 0)
    if size:
        seen = {tuple(text[at : at + size]) for at in range(len(text) - size + 1)}
        found |= {token for token in range(V) if (*text[len(text) - size + 1 :], token) in seen}
    if len(output) < params.get("min_tokens", 0):
        end = params.get("end_id")
        found |= {EOS if end is None else end, *params.get("stop_token_ids", [])}
        for ids in params.get("stop_token_sequences", []):
            if list(output)[len(output) - len(ids) + 1 :] == ids[:-1]:
                found.add(ids[-1])
    return found


def _filtered(p, output, params):
    p = np.where(p >= params.get("min_p", 0.0) * p.max(), p, 0.0)
    order = np.argsort(-p, kind="stable")
    if params.get("top_k", 0) > 0:
        p[order[params["top_k"] :]] = 0.0
    p /= p.sum()
    top_p = _decayed(output, params)
    if top_p < 1:
        order = np.argsort(-p, kind="stable")
        p[order[int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1 :]] = 0.0
    return p / p.sum()


def _decayed(output, params):
    value = first = np.float32(params.get("top_p", 1.0))
    if params.get("top_p_decay", 1.0) < 1:
        for token in output:
            least, decay = np.float32(params.get("top_p_min", 1e-6)), np.float32(params["top_p_decay"])
            value = first if token == params.get("top_p_reset_id", -1) else max(value * decay, least)
    return float(value)


# ---- the table -------------------------------------------------------------------------------------------------------------------

EARLY = {"min_tokens": 6}
DECAY = {"top_p": 0.9, "top_p_decay": 0.7}
SHAPES = {
    "temperature": ({"temperature": 0.6}, {"temperature": 1.0}),
    "top_k": ({"top_k": 3}, {"top_k": 0}),
    "top_p": ({"top_p": 0.6}, {"top_p": 1.0}),
    "min_p": ({"min_p": 0.3}, {"min_p": 0.0}),
    "top_p_decay": (DECAY, {"top_p_decay": 1.0}),
    "top_p_min": ({**DECAY, "top_p_min": 0.75}, {"top_p_min": 1e-6}),
    "top_p_reset_id": ({**DECAY, "top_p_reset_id": 2, "logit_bias": {"2": 2.5}}, {"top_p_reset_id": -1}),
    "repetition_penalty": ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.0}),
    "presence_penalty": ({"presence_penalty": 0.8}, {"presence_penalty": 0.0}),
    "frequency_penalty": ({"frequency_penalty": -0.6}, {"frequency_penalty": 0.0}),
    "prompt_ignore_length": ({"frequency_penalty": 0.9, "prompt_ignore_length": 3}, {"prompt_ignore_length": 0}),
    "bad_words": ({"bad_words": ["ij", "ja", "fjc", "k", "f"]}, {"bad_words": []}),
    "no_repeat_ngram_size": ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 0}),
    "logit_bias": ({"logit_bias": {"2": 1.5, "9": -2.0, "4": 3.0}}, {"logit_bias": {"3": 0.0}}),
    "allowed_token_ids": ({"allowed_token_ids": [2, 3, 9, 11]}, {"allowed_token_ids": list(range(V))}),
    "min_tokens": (EARLY, {"min_tokens": 0}),
    "end_id": ({**EARLY, "end_id": 5}, {"end_id": EOS}),
    "stop_token_ids": ({**EARLY, "stop_token_ids": [2]}, {"stop_token_ids": []}),
    "stop_token_sequences": ({**EARLY, "stop_token_sequences": [[5], [9, 2]]}, {"stop_token_sequences": []}),
}  # fmt: skip
"""Fields that shape what a token is drawn from: parameters with the field, and its neutral value."""


ALL = {"logprobs": V, "logprobs_mode": "processed"}


def check_shapes(make, guide, tolerance=3e-6):
    """Each token of each field's text has the distribution of the formulas, which is another without the field; the same text with
    drafts. Returns the texts by field."""
    cases = {field: {**BASE, **params} for field, (params, _) in SHAPES.items()}
    runs = run_all(make, guide, {field: {**params, **ALL} for field, params in cases.items()})
    for field, run in runs.items():
        wanted = [expected(run.tokens[:at], cases[field], guide) for at in range(len(run.tokens))]
        np.testing.assert_allclose(run.distributions, wanted, rtol=tolerance, atol=1e-9, err_msg=field)
        without = {name: value for name, value in cases[field].items() if name != field}
        plain = [expected(run.tokens[:at], without, guide) for at in range(len(run.tokens))]
        if np.allclose(plain, wanted, rtol=1e-3):
            raise AssertionError(f"{field} changes nothing in this text")
    return runs


def told(run):
    return [piece.logits is not None for piece in run.replies], [piece.context_logits is not None for piece in run.replies]


SHOWN = {
    "max_tokens": (lambda run: {"max_tokens": 5}, {"max_tokens": 14}, lambda run: len(run.tokens)),
    "seed": (lambda run: {"seed": 8}, {"seed": 7}, lambda run: run.tokens),
    "stop": (lambda run: {"stop": [run.choice.text[3:5]]}, {"stop": []}, lambda run: run.choice.stop_reason),
    "include_stop": (
        lambda run: {"stop": [run.choice.text[3:5]], "include_stop": True}, {"include_stop": False},
        lambda run: run.choice.text.endswith(str(run.choice.stop_reason)),
    ),
    "ignore_eos": (lambda run: {"ignore_eos": True}, {"ignore_eos": False}, lambda run: EOS in run.tokens[:-1]),
    "logprobs": (
        lambda run: {"logprobs": 3}, {"logprobs": None}, lambda run: run.choice.logprobs and len(run.choice.logprobs[0].top)
    ),
    "logprobs_mode": (
        lambda run: {"logprobs": 0, "top_k": 3, "logprobs_mode": "processed"}, {"logprobs_mode": "raw"},
        lambda run: run.choice.logprobs and run.choice.logprobs[0].logprob,
    ),
    "prompt_logprobs": (
        lambda run: {"prompt_logprobs": 1}, {"prompt_logprobs": None},
        lambda run: run.sequence.scores and len(run.sequence.scores.entries),
    ),
    "return_generation_logits": (lambda run: {"return_generation_logits": True}, {"return_generation_logits": False}, told),
    "return_context_logits": (lambda run: {"return_context_logits": True}, {"return_context_logits": False}, told),
    "detokenize": (lambda run: {"detokenize": False}, {"detokenize": True}, lambda run: run.choice.text),
    "exclude_input_from_output": (
        lambda run: {"exclude_input_from_output": False}, {"exclude_input_from_output": True},
        lambda run: run.choice.text.startswith("dffha"),
    ),
    "truncate_prompt_tokens": (
        lambda run: {"truncate_prompt_tokens": 2}, {"truncate_prompt_tokens": 99}, lambda run: run.sequence.prompt,
    ),
}  # fmt: skip
"""Fields that show in the reply or end the text: parameters made from the plain run, the neutral value, and what must change."""
TOKENS_STAY = {
    "include_stop", "logprobs", "prompt_logprobs", "return_generation_logits", "return_context_logits", "detokenize",
    "exclude_input_from_output",
}  # fmt: skip
UNGUIDED = {"ignore_eos"}
NOT_CAPTURED = {"return_context_logits"}

ELSEWHERE = {
    "n": ("tests/e2e/test_generate.py", "test_n_children_have_seed_plus_i"),
    "best_of": ("tests/e2e/test_sampling_requests.py", "test_best_of"),
    "deterministic": ("tests/unit/test_seeds.py", "test_deterministic_requests_share_one_stream"),
    "use_beam_search": ("tests/e2e/test_beam_engine.py", "test_the_texts_are_those_of_the_reference"),
    "beam_width_array": ("tests/e2e/test_beam_engine.py", "test_each_parameter_changes_the_texts"),
    "length_penalty": ("tests/e2e/test_beam_engine.py", "test_each_parameter_changes_the_texts"),
    "beam_search_diversity_rate": ("tests/e2e/test_beam_engine.py", "test_each_parameter_changes_the_texts"),
    "early_stopping": ("tests/e2e/test_beam_engine.py", "test_each_parameter_changes_the_texts"),
    "skip_special_tokens": ("tests/unit/test_sequence.py", "test_special_tokens_can_be_shown"),
    "add_special_tokens": ("tests/unit/test_request.py", "test_special_tokens_of_the_prompt"),
    "thinking_token_budget": ("tests/unit/test_reasoning.py", "test_a_budget_alone_takes_the_models_own_marker"),
    "logits_processors": ("tests/unit/test_sampler_processors.py", "test_the_distribution_is_the_processed_one"),
}  # fmt: skip
"""Fields that one text on a bench does not show: the test that does."""
