"""xgrammar behind the contract. One thread owns every matcher of a process: two threads on one matcher crash it."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

import numpy as np

from grammar_service.engines.base import AfterGuide, Matcher, NativeMatcher, Rows, VocabularyBits
from grammar_service.engines.messages import broken, refusal
from grammar_service.engines.stops import StopBits
from grammar_service.engines.stubs import import_xgrammar
from grammar_service.engines.table import hidden_specials
from shared.bitmask import Words, num_words
from shared.errors import BadRequest, MaskstreamError, StepError
from shared.tokenizer import Vocabulary, special_id_set

BROKEN = (RuntimeError, ValueError, TypeError)
BATCH_FROM = 2
# Formats that speak of tokens mean special ones too: nothing is kept from them.
_TOKEN_FORMAT = re.compile(r'"type": *"(?:token|exclude_token|any_tokens|token_triggered_tags)"')


class XGrammarMatcher:
    """NativeMatcher. History, and so memory, is 0.4 to 1.7 KB a token. ``kept``: what of a row counts (None: all), for the free
    text of structural tags, into which the engine lets every special token."""

    __slots__ = ("inner", "kept")
    engine: ClassVar[str] = "xgrammar"

    def __init__(self, inner: Any, kept: Words | None = None) -> None:
        self.inner = inner
        self.kept = kept

    def consume(self, token_ids: Sequence[int]) -> int:
        accept = self.inner.accept_token
        for count, token_id in enumerate(token_ids):
            if not accept(token_id):
                return count
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        try:
            self.inner.rollback(num_tokens)
        except BROKEN as error:
            failed = broken("xgrammar", str(error))
            raise failed from failed.__cause__

    def fill(self, words: Rows, row: int) -> None:
        try:
            self.inner.fill_next_token_bitmask(words, row)
        except BROKEN as error:
            failed = broken("xgrammar", str(error))
            raise failed from failed.__cause__
        if self.kept is not None:
            words[row] &= self.kept

    def can_end(self) -> bool:
        return bool(self.inner.is_completed())

    def forced(self) -> list[int]:
        return []  # its jump-forward tokens are greedy, not the model's own

    def fork(self) -> NativeMatcher:
        return XGrammarMatcher(self.inner.fork(), self.kept)


class XGrammarFactory:
    """GrammarMatcherFactory over a CompiledGrammar."""

    def __init__(self, module: Any, compiled: Any, bits: VocabularyBits, text_bytes: int, kept: Words | None) -> None:
        self._module = module
        self._kept = kept
        self._compiled = compiled
        self._bits = bits
        self.memory_bytes = int(compiled.memory_size_bytes) + text_bytes

    def create(self, stop_ids: Collection[int], after_guide: AfterGuide = "stop") -> Matcher:
        native = XGrammarMatcher(self._module.GrammarMatcher(self._compiled), self._kept)
        return Matcher(native, self._bits, stop_ids, after_guide)


class XGrammarEngine:
    """Engine. The compiler's own cache is off: it has no hard bound; ours has."""

    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary, *, threads: int = 1) -> None:
        self._module = import_xgrammar()
        self.version: str = importlib.metadata.version("xgrammar")
        self._info = self._module.TokenizerInfo(
            hidden_specials(vocabulary), self._module.VocabType.RAW,
            vocab_size=vocabulary.size, stop_token_ids=list(vocabulary.stop_ids),
        )  # fmt: skip
        self._compiler = self._module.GrammarCompiler(self._info, max_threads=threads, cache_enabled=False)
        self._batch = self._module.BatchGrammarMatcher(max_threads=threads)
        self._bits = VocabularyBits.of(vocabulary)
        self._text = np.full((1, num_words(vocabulary.size)), -1, dtype=np.int32)  # a row of all but special tokens
        StopBits.of(special_id_set(vocabulary) - set(vocabulary.stop_ids)).clear(self._text)

    def compile(self, grammar_kind: str, text: str, options: dict[str, Any]) -> XGrammarFactory:
        builders: dict[str, Callable[[], Any]] = {
            "json_schema": lambda: self._json_schema(text, options),
            "regex": lambda: self._compiler.compile_regex(text),
            "ebnf": lambda: self._ebnf(text),
            "structural_tag": lambda: self._compiler.compile_structural_tag(text),
        }
        if grammar_kind not in builders:
            raise BadRequest(f"xgrammar takes no {grammar_kind}; one of {', '.join(builders)}", field="kind")
        try:
            compiled = builders[grammar_kind]()
        except BROKEN as error:  # UnicodeEncodeError is a ValueError
            raise refusal(str(error)) from error
        kept = self._text[0] if grammar_kind == "structural_tag" and not _TOKEN_FORMAT.search(text) else None
        return XGrammarFactory(self._module, compiled, self._bits, len(text.encode("utf-8", "surrogatepass")), kept)

    def _json_schema(self, text: str, options: dict[str, Any]) -> Any:
        return self._compiler.compile_json_schema(
            text, any_whitespace=True, max_whitespace_cnt=options.get("max_whitespace"),
            strict_mode=bool(options.get("strict_mode", False)), any_order=False,
        )  # fmt: skip

    def _ebnf(self, text: str) -> Any:
        # A root rule that calls itself loses closing tokens from its masks: ours only calls it.
        name = "wrapped_root"
        while re.search(rf"\b{name}\b", text):
            name += "_"
        return self._compiler.compile_grammar(f"{text}\n{name} ::= root\n", root_rule_name=name)

    def consume(self, natives: Sequence[XGrammarMatcher], token_ids: Sequence[Sequence[int]]) -> list[int | MaskstreamError]:
        return [native.consume(tokens) for native, tokens in zip(natives, token_ids, strict=True)]

    def fill(self, natives: Sequence[XGrammarMatcher], words: Rows) -> list[Exception | None]:
        if len(natives) >= BATCH_FROM and self._fill_batch(natives, words):
            return [None] * len(natives)
        return [_fill_one(native, words, row) for row, native in enumerate(natives)]

    def _fill_batch(self, natives: Sequence[XGrammarMatcher], words: Rows) -> bool:
        """False where one of them broke the call for all: each is then asked alone, and answers with its own error."""
        try:
            self._batch.batch_fill_next_token_bitmask([native.inner for native in natives], words)
        except BROKEN:
            return False
        for row, native in enumerate(natives):
            if native.kept is not None:
                words[row] &= native.kept
        return True


def _fill_one(native: XGrammarMatcher, words: Rows, row: int) -> Exception | None:
    try:
        native.fill(words, row)
    except StepError as error:
        return error
    return None
