"""Asks the real engines whether a text can be produced: byte by byte by the mask, then the stop token's bit."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from grammar_service.engines.stubs import import_xgrammar
from grammar_service.plan import Plan, plan_guide

TOKENIZER = LLTokenizer("byte")
STOP = TOKENIZER.eos_token


def grammar_of(plan: Plan) -> str:
    if plan.kind == "regex":
        return LLMatcher.grammar_from_regex(plan.text)
    return LLMatcher.grammar_from_lark(plan.text)


def matcher_of(plan: Plan) -> LLMatcher:
    matcher = LLMatcher(TOKENIZER, grammar_of(plan), log_level=0)
    if matcher.is_error():
        raise AssertionError(f"the engine refused the plan: {matcher.get_error()[:2000]}\n{plan.text[:3000]}")
    return matcher


def bits(matcher: LLMatcher) -> list[int]:
    row = matcher.compute_bitmask()
    if matcher.is_error():
        raise AssertionError(matcher.get_error()[:2000])
    return [token for token in range(TOKENIZER.vocab_size) if row[token // 8] >> (token % 8) & 1]


def producible(matcher: LLMatcher, text: str) -> bool:
    """Each byte has its bit at its turn, and the stop token has its bit at the end."""
    matcher.reset()
    for byte in text.encode():
        if byte not in bits(matcher):
            return False
        if matcher.try_consume_tokens([byte]) != 1:
            return False
    return STOP in bits(matcher)


def accepts(kind: str, guide: Any, text: str, **options: Any) -> bool:
    return producible(matcher_of(plan_guide(kind, guide, **options)), text)


def walk(matcher: LLMatcher, rng: random.Random, length: int = 300) -> str | None:
    """A random text under the mask; None where it did not end within ``length`` bytes."""
    matcher.reset()
    out = bytearray()
    for _ in range(length):
        allowed = bits(matcher)
        if not allowed:
            raise AssertionError(f"no token allowed after {bytes(out)!r}")
        if STOP in allowed and (len(allowed) == 1 or rng.random() < 0.3):
            return out.decode()
        closing = [token for token in allowed if token < 256 and chr(token) in '"}],']
        pool = closing if closing and rng.random() < len(out) / length + 0.2 else allowed
        token = rng.choice([token for token in pool if token != STOP])
        if matcher.try_consume_tokens([token]) != 1:
            raise AssertionError(f"the mask allows {token} after {bytes(out)!r}, the matcher refuses it")
        out.append(token)
    return None


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class ByteMatcher:
    """An xgrammar matcher over 256 one-byte tokens and a stop token, with the calls that this probe makes."""

    def __init__(self, plan: Plan) -> None:
        module = import_xgrammar()
        tokens = [bytes([code]) for code in range(256)] + [b""]
        info = module.TokenizerInfo(tokens, module.VocabType.RAW, vocab_size=257, stop_token_ids=[256])
        compiler = module.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        tagged = plan.kind == "structural_tag"
        compiled = compiler.compile_structural_tag(plan.text) if tagged else compiler.compile_grammar(plan.text)
        self._matcher = module.GrammarMatcher(compiled)
        self._row = np.zeros((1, 9), dtype=np.int32)

    def reset(self) -> None:
        self._matcher.reset()

    def allowed(self) -> list[int]:
        self._matcher.fill_next_token_bitmask(self._row, 0)
        return [token for token in range(257) if int(self._row[0, token // 32]) >> (token % 32) & 1]

    def produces(self, text: str) -> bool:
        self.reset()
        for byte in text.encode():
            if byte not in self.allowed() or not self._matcher.accept_token(byte):
                return False
        return 256 in self.allowed()


__all__ = ["ByteMatcher", "accepts", "bits", "dumps", "matcher_of", "producible", "walk"]
