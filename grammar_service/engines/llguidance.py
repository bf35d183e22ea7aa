"""llguidance behind the contract. It never raises: after every call that may break a matcher its error flag is read (spec 18)."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from llguidance import LLExecutor, LLMatcher, LLParserLimits

from grammar_service.engines.base import AfterGuide, Matcher, NativeMatcher, Rows, VocabularyBits
from grammar_service.engines.llguidance_tokenizer import make_tokenizer
from grammar_service.engines.messages import broken, refusal
from shared.errors import BadRequest, MaskstreamError, StepError
from shared.tokenizer import Vocabulary

BATCH_FROM = 2
TEMPLATE_BYTES = 64 * 1024  # a small template; a large one is about 35 times its text
BYTES_PER_TEXT_BYTE = 35


def parser_limits() -> LLParserLimits:
    """Explicit, so that an upgrade cannot loosen them. Costs: lexer fuel about 14,000 a ms, items about 20,000 a ms."""
    return LLParserLimits(
        max_items_in_row=20_000, initial_lexer_fuel=1_000_000, step_lexer_fuel=1_000_000, step_max_items=200_000,
        max_lexer_states=250_000, max_grammar_size=500_000, precompute_large_lexemes=True, verbose_errors=False,
    )  # fmt: skip


class LLGuidanceMatcher:
    """NativeMatcher."""

    __slots__ = ("inner",)
    engine: ClassVar[str] = "llguidance"

    def __init__(self, inner: LLMatcher) -> None:
        self.inner = inner

    def check(self) -> None:
        """Raises StepError once the matcher is broken: it stays so, and its rows would allow nothing but eos."""
        if self.inner.is_error():
            raise step_error(self.inner)

    def consume(self, token_ids: Sequence[int]) -> int:
        count = self.inner.try_consume_tokens(token_ids)  # type: ignore[arg-type]
        if self.inner.is_error():
            raise step_error(self.inner)
        return count

    def rollback(self, num_tokens: int) -> None:
        self.inner.rollback(num_tokens)
        self.check()

    def fill(self, words: Rows, row: int) -> None:
        target = words[row]
        if not target.flags["C_CONTIGUOUS"] or target.dtype.itemsize != 4:
            raise ValueError("a row must be contiguous int32 words")
        self.inner.unsafe_compute_mask_ptr(target.ctypes.data, target.nbytes)
        self.check()

    def can_end(self) -> bool:
        return bool(self.inner.is_accepting())

    def forced(self) -> list[int]:
        tokens = self.inner.compute_ff_tokens()
        self.check()
        return tokens

    def fork(self) -> NativeMatcher:
        return LLGuidanceMatcher(self.inner.deep_copy())


class LLGuidanceFactory:
    """GrammarMatcherFactory: one template a grammar, copied for each session (copies share its warm lexer)."""

    def __init__(self, template: LLMatcher, bits: VocabularyBits, text_bytes: int) -> None:
        self._template = template
        self._bits = bits
        self.memory_bytes = TEMPLATE_BYTES + BYTES_PER_TEXT_BYTE * text_bytes

    def create(self, stop_ids: Collection[int], after_guide: AfterGuide = "stop") -> Matcher:
        return Matcher(LLGuidanceMatcher(self._template.deep_copy()), self._bits, stop_ids, after_guide)


class LLGuidanceEngine:
    """Engine. Several stop ids are allowed; the request's own replace them (R3)."""

    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary, *, threads: int = 1) -> None:
        self.version: str = importlib.metadata.version("llguidance")
        self._tokenizer = make_tokenizer(vocabulary)
        self._limits = parser_limits()
        self._threads = threads
        self._executor: LLExecutor | None = None  # made at first use: one that was used does not survive a fork
        self._bits = VocabularyBits.of(vocabulary)

    def compile(self, grammar_kind: str, text: str, options: dict[str, Any]) -> LLGuidanceFactory:
        template = LLMatcher(self._tokenizer, self._grammar(grammar_kind, text, options), log_level=0, limits=self._limits)
        if template.is_error():  # spec 9
            raise refusal(template.get_error())
        return LLGuidanceFactory(template, self._bits, len(text.encode("utf-8", "surrogatepass")))

    def _grammar(self, grammar_kind: str, text: str, options: dict[str, Any]) -> str:
        if grammar_kind == "json_schema":
            return _json_grammar(text, int(options.get("max_whitespace", 8)))
        if grammar_kind == "regex":
            return LLMatcher.grammar_from_regex(text)
        if grammar_kind == "lark":
            return LLMatcher.grammar_from_lark(text)
        raise BadRequest(f"llguidance takes no {grammar_kind}; one of json_schema, regex, lark", field="kind")

    def consume(self, natives: Sequence[LLGuidanceMatcher], token_ids: Sequence[Sequence[int]]) -> list[int | MaskstreamError]:
        taken: list[int | MaskstreamError] = [
            native.inner.try_consume_tokens(tokens)  # type: ignore[arg-type]
            for native, tokens in zip(natives, token_ids, strict=True)
        ]
        for index, native in enumerate(natives):
            if native.inner.is_error():
                taken[index] = step_error(native.inner)
        return taken

    def fill(self, natives: Sequence[LLGuidanceMatcher], words: Rows) -> list[Exception | None]:
        if words.shape[0] < len(natives) or not words.flags["C_CONTIGUOUS"] or words.itemsize != 4:
            raise ValueError("the engine writes through a pointer: give it int32 rows enough, C-contiguous")
        address, row_bytes = words.ctypes.data, words.shape[1] * 4
        if len(natives) < BATCH_FROM or self._threads == 1:  # on this thread: the rows stay in its cache
            for row, native in enumerate(natives):
                native.inner.unsafe_compute_mask_ptr(address + row * row_bytes, row_bytes)
        else:
            if self._executor is None:
                self._executor = LLExecutor(self._threads)
            pairs = [(native.inner, row) for row, native in enumerate(natives)]
            self._executor.unsafe_compute_mask_ptr(pairs, address, row_bytes, words.shape[0])
        return [step_error(native.inner) if native.inner.is_error() else None for native in natives]


def step_error(matcher: LLMatcher) -> StepError:
    """The error of a broken matcher: StepTimeout where one of the engine's own limits was hit."""
    text = matcher.get_error()
    too_slow = matcher.stop_reason() in ("ParserTooComplex", "LexerTooComplex") or "too many expressions" in text
    return broken("llguidance", text, too_slow=too_slow)


def _json_grammar(text: str, max_whitespace: int) -> str:
    whitespace = rf"[\x20\x0A\x0D\x09]{{0,{max_whitespace}}}"
    if text.strip() in ("true", "false"):  # options need an object
        text = f'{{"allOf": [{text}]}}'
    try:
        return LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_flexible": True, "whitespace_pattern": whitespace})
    except ValueError as error:
        raise refusal(str(error)) from error
