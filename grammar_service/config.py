"""Settings of the grammar service: flag = environment variable (``MASKSTREAM_GRAMMAR_...``) = documented default."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from grammar_service.limits import DEFAULTS, GuideLimits
from shared.config import Settings

PREFIX = "MASKSTREAM_GRAMMAR"


class GrammarSettings(Settings, frozen=True, kw_only=True):
    """One grammar service: the workers it serves, its bounds."""

    name: Annotated[str, Meta(description="name in logs and greetings; empty: host name and process id", max_length=64)] = ""
    workers: Annotated[
        tuple[str, ...],
        Meta(description="grammar addresses of the workers, comma-separated; every address of a name is used", min_length=1),
    ] = ("tcp://127.0.0.1:5556",)
    insecure: Annotated[bool, Meta(description="allow workers on other hosts, without keys")] = False
    resolve_s: Annotated[float, Meta(description="how often the workers' names are resolved again", gt=0, le=3600)] = 5.0
    metrics_host: Annotated[str, Meta(description="host of /metrics and /health")] = "127.0.0.1"
    metrics_port: Annotated[int, Meta(description="port of /metrics and /health; 0 chooses one", ge=0, le=65535)] = 9101
    threads: Annotated[int, Meta(description="threads of the engines' batch calls; 0: all cores", ge=0, le=256)] = 0
    outstanding_steps: Annotated[int, Meta(description="steps a worker may have unanswered here", ge=1, le=1024)] = 8
    max_vocabularies: Annotated[int, Meta(description="vocabularies held; about 110 MB each", ge=1, le=64)] = 4
    max_vocabulary_bytes: Annotated[int, Meta(description="largest vocabulary taken from a worker", ge=1 << 10)] = 64 << 20
    cache_bytes: Annotated[int, Meta(description="compiled grammars kept, in bytes", ge=0)] = 256 << 20
    cache_client_share: Annotated[
        float, Meta(description="the part of cache_bytes that the grammars of one client may take", gt=0, le=1)
    ] = 0.5
    row_bytes: Annotated[int, Meta(description="distinct rows kept, in bytes (16 KB each at 128,256 tokens)", ge=1 << 16)] = (
        32 << 20
    )
    compile_jobs: Annotated[int, Meta(description="guides tried at once; 0: all cores", ge=0, le=256)] = 0
    compile_spares: Annotated[
        int,
        Meta(
            description="children forked ahead of their guides; 12 MB each, and one saves a guide that comes alone 15 ms",
            ge=0,
            le=16,
        ),
    ] = 1
    compile_queue: Annotated[int, Meta(description="guides that may wait; more are answered overloaded", ge=1)] = 1024
    compile_timeout_s: Annotated[float, Meta(description="wall and CPU time of one compilation", gt=0, le=600)] = 5.0
    compile_memory_bytes: Annotated[int, Meta(description="memory of one compilation", ge=64 << 20)] = 2 << 30
    negative_cache_s: Annotated[float, Meta(description="how long a guide that timed out or crashed is refused untried", ge=0)] = (
        600.0
    )
    guide_schema_bytes: Annotated[
        int, Meta(description="largest JSON schema or structural tag; up to 120 bytes of memory and 4 us of planning a byte", ge=1)
    ] = DEFAULTS.schema_bytes
    guide_regex_bytes: Annotated[
        int, Meta(description="largest regex; 8 KiB cost up to 0.2 s, and 21 ms a row where they are one literal", ge=1)
    ] = DEFAULTS.regex_bytes
    guide_grammar_bytes: Annotated[int, Meta(description="largest EBNF or Lark grammar; 64 KiB cost 1.3 s and 35 MB", ge=1)] = (
        DEFAULTS.grammar_bytes
    )
    guide_json_depth: Annotated[
        int, Meta(description="levels of a schema's JSON; 62 cost 16 ms, llguidance reads 128 at most", ge=1)
    ] = DEFAULTS.json_depth
    guide_json_nodes: Annotated[int, Meta(description="values of a schema, all levels; 19,000 cost 0.8 s and 19 MB", ge=1)] = (
        DEFAULTS.json_nodes
    )
    guide_members: Annotated[
        int, Meta(description="members of one object of a schema; 2,000 optional properties cost 0.8 s, 6 MB and 8 ms a row", ge=1)
    ] = DEFAULTS.members
    guide_entries: Annotated[
        int, Meta(description="entries of one list of a schema (an enum); 5,000 cost 0.13 s and 3 MB", ge=1)
    ] = DEFAULTS.entries
    guide_string_bytes: Annotated[
        int, Meta(description="longest string of a schema; as a const 64 KiB cost 1.4 s a row, which the trial refuses", ge=1)
    ] = DEFAULTS.string_bytes
    guide_rules: Annotated[
        int, Meta(description="rules of a grammar; 2,000 in a chain cost 25 ms, 3,000 end a process with a stack of 8 MB", ge=1)
    ] = DEFAULTS.rules
    guide_nesting: Annotated[
        int, Meta(description="brackets of a regex or grammar inside one another; recursion of the engines stops at 1,000", ge=1)
    ] = DEFAULTS.nesting
    guide_repeat: Annotated[
        int,
        Meta(
            description="largest bound of one repetition; .{1,100000} costs 3 ms, a{100000} 3 s a row, which the trial refuses",
            ge=1,
        ),
    ] = DEFAULTS.repeat
    guide_repeat_product: Annotated[
        int, Meta(description="product of repetitions inside one another; what is too much for the engine costs 7 ms", ge=1)
    ] = DEFAULTS.repeat_product
    guide_choices: Annotated[int, Meta(description="entries of a choice; 5,000 cost 0.13 s and 5 MB", ge=1)] = DEFAULTS.choices
    guide_choice_bytes: Annotated[int, Meta(description="bytes of all entries of a choice; 256 KiB cost 0.4 s and 9 MB", ge=1)] = (
        DEFAULTS.choice_bytes
    )
    step_soft_s: Annotated[float, Meta(description="a session's step beyond this gets a lane of its own", gt=0, le=60)] = 0.05
    step_hard_s: Annotated[float, Meta(description="a session's step beyond this fails (step_timeout)", gt=0, le=60)] = 0.25
    step_kill_s: Annotated[float, Meta(description="a step beyond this costs the process, which is replaced", gt=0, le=600)] = 5.0
    supervise: Annotated[bool, Meta(description="start the service again when it dies")] = False
    parent: Annotated[int, Meta(description="end when this process ends (set by the supervisor); 0: none", ge=0)] = 0
    drain_s: Annotated[float, Meta(description="after SIGTERM: longest wait for the sessions to move", ge=0, le=3600)] = 10.0
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="least level logged")] = "info"


def guide_limits(settings: GrammarSettings) -> GuideLimits:
    """The limits of a guide, ``guide_...`` each."""
    return GuideLimits(*(getattr(settings, f"guide_{name}") for name in GuideLimits._fields))
