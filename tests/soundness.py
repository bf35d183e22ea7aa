"""Random schemas through the real planner and engine, by the thousand: no text under the mask is invalid, every valid value can
be written.

    python -m tests.soundness --schemas 3000 --out soundness.json

draws schemas over all keywords up to depth 4 in chunks by seed, and prints what became of each keyword. A run that was stopped goes
on where it was: chunks that the file has are not run again. Exit 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from grammar_service.plan import Plan, plan_guide
from shared.errors import MaskstreamError
from tests.engine_probe import matcher_of, producible, walk
from tests.schema_strategy import documents, older_documents, values
from tests.verdicts import keywords_of, mutated, spelled, verdict

DEPTH, WALKS, ORDERED_WALKS, VALUES, PATIENCE_S = 4, 20, 3, 8, 120
OUTCOMES = ("enforced", "narrower", "rewritten", "refused", "by name", "unsatisfiable")


class TooSlow(Exception):
    """A schema took longer than PATIENCE_S; raised by the alarm."""


@dataclass
class Tally:
    """What a chunk of schemas came to; JSON values alone."""

    counts: Counter[str] = field(default_factory=Counter)
    keywords: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[dict[str, Any]] = field(default_factory=list)

    def record(self, schema: Any, *outcomes: str) -> None:
        self.counts.update(("schemas", *outcomes))
        for name in keywords_of(schema):
            self.keywords.setdefault(name, Counter()).update(("schemas", *outcomes))

    def fail(self, what: str, schema: Any, text: str) -> None:
        self.counts[what] += 1
        self.wrong.append({"what": what, "schema": schema, "text": text})

    def add(self, other: dict[str, Any]) -> None:
        self.counts.update(other["counts"])
        self.wrong.extend(other["wrong"])
        for name, counts in other["keywords"].items():
            self.keywords.setdefault(name, Counter()).update(counts)

    def table(self) -> str:
        """Keyword by outcome: in how many schemas it stood, and what became of those."""
        columns = ("schemas", *OUTCOMES)
        lines = [f"{'keyword':22}" + "".join(f"{column:>14}" for column in columns)]
        for name in sorted(self.keywords):
            lines.append(f"{name:22}" + "".join(f"{self.keywords[name][column]:14}" for column in columns))
        return "\n".join(lines)


def drawn(number: int, chunk: int, depth: int = DEPTH) -> list[tuple[Any, list[Any]]]:
    """``number`` different documents of a seed, each with values to try."""
    found: dict[str, tuple[Any, list[Any]]] = {}
    either = st.one_of(documents(depth), documents(depth), older_documents(depth))
    relaxed = settings(
        max_examples=3 * number, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )

    @seed(chunk)
    @relaxed
    @given(either, st.lists(values, min_size=VALUES, max_size=VALUES))
    def collect(document: Any, tried: list[Any]) -> None:
        if len(found) < number:
            found[json.dumps(document)] = document, tried

    collect()
    return list(found.values())


def run_chunk(chunk: int, number: int, *, depth: int = DEPTH, walks: int = WALKS, patience_s: int = 0) -> Tally:
    """``patience_s`` with one schema; 0 for no alarm, where the caller has one of its own."""
    tally = Tally()
    rng = random.Random(chunk)
    for schema, tried in drawn(number, chunk, depth):
        with _patience(patience_s):
            try:
                _try(tally, schema, tried, rng, walks)
            except TooSlow:
                tally.record(schema, "slow")
            except RecursionError:  # the validator's: the schema refers to itself in place and has no meaning
                tally.record(schema, "no meaning")
    return tally


class _patience:
    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        if self.seconds:
            signal.signal(signal.SIGALRM, _too_slow)
            signal.alarm(self.seconds)

    def __exit__(self, *_: object) -> None:
        if self.seconds:
            signal.alarm(0)


def _too_slow(*_: object) -> None:
    raise TooSlow


def _try(tally: Tally, schema: Any, tried: list[Any], rng: random.Random, walks: int) -> None:
    text = json.dumps(schema)
    try:
        plan = plan_guide("json_schema", text, max_whitespace=rng.choice([0, 8]))
    except MaskstreamError as error:
        outcome = "unsatisfiable" if error.code == "unsatisfiable" else "refused"
        tally.record(schema, outcome)
        if error.keyword in tally.keywords:
            tally.keywords[error.keyword]["by name"] += 1
        if outcome == "unsatisfiable":
            for value in tried:
                if verdict(schema, value) is True:
                    tally.fail("valid under an unsatisfiable schema", schema, json.dumps(value))
        return
    tally.record(schema, "enforced", *["narrower"] * bool(plan.warnings), *["rewritten"] * bool(plan.rewrites))
    written = list(_walked(tally, schema, plan, rng, walks))
    ordered = plan_guide("json_schema", text, max_whitespace=0, any_order=False)
    in_order = list(_walked(tally, schema, ordered, rng, ORDERED_WALKS))
    candidates = [*tried, *in_order, *(mutated(value, rng) for value in (*written, *in_order, *tried))]
    _judge(tally, schema, plan, candidates)


def _walked(tally: Tally, schema: Any, plan: Plan, rng: random.Random, walks: int) -> Iterator[Any]:
    """Random texts under the mask, each judged; gives their values."""
    matcher = matcher_of(plan)
    for _ in range(walks):
        text = walk(matcher, rng)
        if text is None:
            tally.counts["walks without end"] += 1
            continue
        tally.counts["walks"] += 1
        value = json.loads(text)
        judged = verdict(schema, value)
        if judged is False:
            tally.fail("invalid text", schema, text)
        tally.counts["disputed"] += judged is None
        yield value


def _judge(tally: Tally, schema: Any, plan: Plan, candidates: list[Any]) -> None:
    """Valid values are producible unless the plan says that it is narrower, invalid ones never."""
    matcher = matcher_of(plan)
    for value in candidates:
        text = spelled(value, plan.options["max_whitespace"] > 0)
        judged = None if text is None else verdict(schema, value)
        if text is None or judged is None:
            continue
        possible = producible(matcher, text)
        tally.counts[f"{'valid' if judged else 'invalid'} values"] += 1
        if possible and not judged:
            tally.fail("invalid value", schema, text)
        elif judged and not possible:
            if plan.warnings:
                tally.counts["valid values left out with a warning"] += 1
            else:
                tally.fail("valid value left out", schema, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=3000)
    parser.add_argument("--chunk", type=int, default=50, help="schemas of one seed")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--out", type=Path, default=Path("soundness.json"))
    arguments = parser.parse_args()
    done: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    whole = Tally()
    for chunk in range(arguments.first, arguments.first + -(-arguments.schemas // arguments.chunk)):
        started_s = time.monotonic()
        if (known := f"{chunk}x{arguments.chunk}") not in done:
            tally = run_chunk(chunk, arguments.chunk, patience_s=PATIENCE_S)
            done[known] = {"counts": tally.counts, "keywords": tally.keywords, "wrong": tally.wrong}
            arguments.out.write_text(json.dumps(done))
        whole.add(done[known])
        print(f"seed {chunk}: {time.monotonic() - started_s:.0f} s, {len(done[known]['wrong'])} wrong", flush=True)
    print(json.dumps(whole.counts))
    print(whole.table())
    for failure in whole.wrong[:20]:
        print(json.dumps(failure))
    return 1 if whole.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
