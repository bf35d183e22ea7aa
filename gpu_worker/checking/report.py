"""What came of a case, as a value, as JSON and as a line."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpu_worker.checking.cases import Case
from gpu_worker.checking.trial import Verdict
from shared.errors import MaskstreamError
from shared.protocol import WireError

NAMED_REFUSALS = ("bad_request", "too_large", "unsupported_schema", "unsatisfiable", "grammar_too_large")
"""Codes that answer a guide by name; a time-out or a crash is no answer."""


class WrongText(msgspec.Struct, frozen=True, kw_only=True):
    """``expected``: accept or reject; ``at``: number of tokens that were allowed."""

    text: str
    expected: str
    why: str
    at: int = 0


class CaseResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``verdict``: accepted (admitted, every text right), refused (rightly), or wrong (``why`` or ``wrong`` says)."""

    id: str
    verdict: str
    kind: str = ""
    engine: str = ""
    compile_ms: float = 0.0
    error: WireError | None = None
    why: str = ""
    wrong: list[WrongText] = []
    warnings: list[str] = []
    num_texts: int = 0
    num_tokens: int = 0

    def line(self) -> str:
        """One line for a person; the wrong texts follow on lines of their own."""
        error = f"{self.error.code} #{self.error.pointer} {self.error.keyword}".strip() if self.error else self.why
        head = f"{self.verdict:<9} {self.engine or '-':<11} {self.compile_ms:8.1f} ms  {self.id}"
        lines = [f"{head}  {error}".rstrip()]
        lines += [f"    {text.expected} {_short(text.text)}: {text.why} (after {text.at} tokens)" for text in self.wrong]
        return "\n".join(lines)


def refused(case: Case, error: MaskstreamError) -> CaseResult:
    """The guide was not admitted: right where the case allows it and the answer has a name."""
    why = ""
    if error.code not in NAMED_REFUSALS:
        why = f"no answer by name: {error.code}"
    elif not (case.must_refuse or case.may_refuse):
        why = f"refused ({error.code})"
    verdict = "wrong" if why else "refused"
    return CaseResult(id=case.id, kind=case.kind, verdict=verdict, error=WireError.of(error), why=why)


def judged(
    case: Case,
    verdicts: Sequence[tuple[str, bool, Verdict]],
    *,
    engine: str,
    compile_ms: float,
    warnings: list[str],
    num_tokens: int,
) -> CaseResult:
    """The guide was admitted: right where it may be, and every (text, must be accepted, verdict) is right."""
    wrong = [found for text, accept, verdict in verdicts if (found := _wrong(text, accept, verdict)) is not None]
    why = "admitted, but must be refused" if case.must_refuse else ""
    return CaseResult(
        id=case.id, kind=case.kind, verdict="wrong" if wrong or why else "accepted", engine=engine, compile_ms=round(compile_ms, 3),
        why=why, wrong=wrong, warnings=warnings, num_texts=len(verdicts), num_tokens=num_tokens,
    )  # fmt: skip


def _wrong(text: str, accept: bool, verdict: Verdict) -> WrongText | None:
    expected = "accept" if accept else "reject"
    if verdict.error is not None:
        return WrongText(text=text, expected=expected, why=str(verdict.error), at=verdict.at)
    if verdict.producible == accept:
        return None
    return WrongText(text=text, expected=expected, why=verdict.why or "producible", at=verdict.at)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All cases of a run."""

    cases: int
    accepted: int
    refused: int
    wrong: int
    texts: int
    tokens: int
    seconds: float
    tokenizer: str

    def line(self) -> str:
        rate = self.tokens / self.seconds if self.seconds else 0.0
        return (
            f"{self.cases} guides: {self.accepted} accepted, {self.refused} refused, {self.wrong} wrong; {self.texts} texts, "
            f"{self.tokens} tokens in {self.seconds:.1f} s ({rate:.0f} a second), tokenizer {self.tokenizer}"
        )


def summarise(results: Sequence[CaseResult], seconds: float, tokenizer: str) -> Summary:
    count = {name: sum(result.verdict == name for result in results) for name in ("accepted", "refused", "wrong")}
    return Summary(
        cases=len(results), **count, texts=sum(result.num_texts for result in results),
        tokens=sum(result.num_tokens for result in results), seconds=round(seconds, 3), tokenizer=tokenizer,
    )  # fmt: skip


def _short(text: str, limit: int = 60) -> str:
    shown = repr(text)
    return shown if len(shown) <= limit else f"{shown[:limit]}... ({len(text)} characters)"
