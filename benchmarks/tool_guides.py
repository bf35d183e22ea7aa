"""What guides cost by how they are asked for: tool calling on both engines, properties in any order or the schema's. CPU times."""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks import report
from benchmarks.serving import VOCAB_SIZE, vocabulary_file
from gpu_worker.models.chat import TableChat
from gpu_worker.models.vocabulary import vocabulary_of_tiktoken
from grammar_service import engines
from grammar_service.compile import build, plan_of
from grammar_service.vocabularies import Loaded
from shared.bitmask import count, num_words
from shared.guide import Guide, make_guide
from shared.tokenizer import Vocabulary
from shared.tools import tool_use

TOOLS, PROPERTIES, REPEATS = (1, 8, 32), (5, 20, 60), 3
CALL = 'Let me look.\n<tool_call>\n{"name": "tool_0", "arguments": {"city": "Paris", "tags": ["x", "y"]}}\n</tool_call>\nDone.'


def tools(number: int) -> list[dict[str, Any]]:
    """Tools of five parameters each, no two alike."""
    return [
        {"name": f"tool_{at}", "parameters": {"properties": {
            "city": {"type": "string"}, "count": {"type": "integer", "minimum": at}, "kind": {"enum": ["a", "b", f"c{at}"]},
            "when": {"type": "string", "format": "date"}, "tags": {"type": "array", "items": {"type": "string"}},
        }, "required": ["city"], "additionalProperties": False}}
        for at in range(number)
    ]  # fmt: skip


class Bench:
    """Both engines with one thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._engines = engines.load(vocabulary, threads=1)
        self._loaded = Loaded("", vocabulary.size, self._engines, None)
        self._stop_ids, self._size = vocabulary.stop_ids, vocabulary.size
        self._encode = TableChat(vocabulary).encode

    def measure(self, guide: Guide, text: str) -> dict[str, float]:
        """CPU ms of plan and compilation, and of the rows of a text under a grammar that is new; medians of runs."""
        runs = [self._run(guide, self._encode(text)) for _ in range(REPEATS)]
        return {name: statistics.median(run[name] for run in runs) for name in runs[0]}

    def _run(self, guide: Guide, tokens: Sequence[int]) -> dict[str, float]:
        gc.collect()
        times = [time.process_time()]
        plan = plan_of(guide, engines.versions())
        times.append(time.process_time())
        grammar = build(plan, self._loaded)
        times.append(time.process_time())
        matcher = grammar.factory.create(self._stop_ids)
        words, rows, single = np.zeros((1, num_words(self._size)), np.int32), [], 0
        for token in tokens:
            started_s = time.process_time()
            matcher.fill_next_token_bitmask(words, 0)
            rows.append(1e3 * (time.process_time() - started_s))
            single += count(words[0], self._size) == 1
            if not matcher.accept_token(token):
                raise ValueError(f"token {token} of the text is not in the language")
        return {
            "plan ms": 1e3 * (times[1] - times[0]), "compile ms": 1e3 * (times[2] - times[1]), "longest row ms": max(rows),
            "median row us": 1e3 * statistics.median(rows), "rows of one token %": 100 * single / len(tokens),
            "MB": grammar.num_bytes / (1 << 20),
        }  # fmt: skip


def order_guide(number: int, order: str) -> tuple[Guide, str]:
    """A schema of required properties, and a document of it."""
    kinds = (("string", "some text"), ("integer", 42), ("boolean", True))
    properties = {f"field_{at}": {"type": kinds[at % 3][0]} for at in range(number)}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    value = {name: kinds[at % 3][1] for at, name in enumerate(properties)}
    return make_guide("json_schema", schema, property_order=order), json.dumps(value)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, vocabulary_file(Path(folder)) as file:
        bench = Bench(vocabulary_of_tiktoken(file, VOCAB_SIZE))
    rows: list[dict[str, Any]] = []
    for number in TOOLS:
        use = tool_use(tools(number), "auto")
        for engine in engines.NAMES if use is not None else ():
            guide = msgspec.structs.replace(use.guide(), engine=engine)  # type: ignore[union-attr]
            rows.append({"tools": number, "engine": engine} | bench.measure(guide, CALL))
    report.publish("grammar-tools", rows)
    orders: list[dict[str, Any]] = []
    for number in PROPERTIES:
        for order in ("any", "schema"):
            orders.append({"properties": number, "order": order} | bench.measure(*order_guide(number, order)))
    report.publish("grammar-property-order", orders)


if __name__ == "__main__":
    main()
