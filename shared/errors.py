"""The error tree. One root, one wire code a class; a caller catches ``MaskstreamError`` or a branch of it.

MaskstreamError                 internal
├── BadRequest                  bad_request          a field is wrong; ``field`` names it
│   ├── TooLarge                too_large            a frame, prompt or list is over its limit
│   └── ProtocolVersion         protocol_version     the peer speaks another version
├── GuideError                  (branch)             the guide cannot be enforced as asked
│   ├── UnsupportedSchema       unsupported_schema   neither engine enforces ``keyword`` at ``pointer``
│   ├── Unsatisfiable           unsatisfiable        no finite text fits the guide
│   ├── GrammarTooLarge         grammar_too_large    over a limit of ``grammar_service/limits.py``
│   ├── CompileTimeout          compile_timeout      the compilation passed its deadline and was killed
│   └── CompileCrashed          compile_crashed      the compilation died (memory, signal)
├── StepError                   (branch)             one sequence cannot go on
│   ├── StepTimeout             step_timeout         the matcher took longer than the step budget
│   ├── DeadEnd                 dead_end             the grammar allows no token here
│   ├── NoAllowedToken          no_allowed_token     guide, allow-list and bans have nothing in common
│   └── AccountingError         internal             service and worker disagree on a session
├── Overloaded                  overloaded           no capacity; try later
├── DeadlineExceeded            deadline             the request's deadline passed
├── Cancelled                   cancelled            the client cancelled
├── WorkerLost                  worker_lost          a peer process went away
├── Unauthorised                unauthorised         the peer is not allowed
└── ConfigError                 config               a setting is wrong; stops the start
"""

from __future__ import annotations


class MaskstreamError(Exception):
    """Root of the tree.

    ``message`` is one sentence for a person; ``field`` the request field or setting; ``pointer`` a JSON pointer into the
    guide; ``keyword`` the schema keyword. All but the message may be empty.
    """

    code = "internal"

    def __init__(self, message: str, *, field: str = "", pointer: str = "", keyword: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.pointer = pointer
        self.keyword = keyword

    def __str__(self) -> str:
        where = " ".join(part for part in (self.field, self.pointer and f"#{self.pointer}", self.keyword) if part)
        return f"{self.code}: {where + ': ' if where else ''}{self.message}"


class BadRequest(MaskstreamError):
    code = "bad_request"


class TooLarge(BadRequest):
    code = "too_large"


class ProtocolVersion(BadRequest):
    code = "protocol_version"


class GuideError(MaskstreamError):
    code = "bad_request"


class UnsupportedSchema(GuideError):
    code = "unsupported_schema"


class Unsatisfiable(GuideError):
    code = "unsatisfiable"


class GrammarTooLarge(GuideError):
    code = "grammar_too_large"


class CompileTimeout(GuideError):
    code = "compile_timeout"


class CompileCrashed(GuideError):
    code = "compile_crashed"


class StepError(MaskstreamError):
    code = "internal"


class StepTimeout(StepError):
    code = "step_timeout"


class DeadEnd(StepError):
    code = "dead_end"


class NoAllowedToken(StepError):
    code = "no_allowed_token"


class AccountingError(StepError):
    code = "internal"


class Overloaded(MaskstreamError):
    code = "overloaded"


class DeadlineExceeded(MaskstreamError):
    code = "deadline"


class Cancelled(MaskstreamError):
    code = "cancelled"


class WorkerLost(MaskstreamError):
    """``token_ids``: what the first choice had; send it again as ``output_token_ids`` to go on."""

    code = "worker_lost"
    token_ids: list[int] = []  # noqa: RUF012  replaced, never changed in place


class Unauthorised(MaskstreamError):
    code = "unauthorised"


class ConfigError(MaskstreamError):
    code = "config"


def _leaves(root: type[MaskstreamError]) -> list[type[MaskstreamError]]:
    found = [root]
    for child in root.__subclasses__():
        found += _leaves(child)
    return found


# First class wins where two share a code, so that the root of a branch stands for it.
BY_CODE: dict[str, type[MaskstreamError]] = {}
for _error in _leaves(MaskstreamError):
    BY_CODE.setdefault(_error.code, _error)


def from_wire(code: str, message: str, *, field: str = "", pointer: str = "", keyword: str = "") -> MaskstreamError:
    """The exception for a wire code; an unknown code becomes the root with the code kept in the message."""
    cls = BY_CODE.get(code)
    if cls is None:
        return MaskstreamError(f"[{code}] {message}", field=field, pointer=pointer, keyword=keyword)
    return cls(message, field=field, pointer=pointer, keyword=keyword)
