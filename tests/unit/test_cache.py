"""The compiled grammars: bounded in bytes, honest about them; the refused ones with a short life; the queue, fair."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar_service.cache import ENTRY_BYTES, MAX_SPELLINGS, SPELLING_BYTES, CompiledGrammar, GrammarCache, NegativeCache
from grammar_service.compile import CompileQueue, Task
from grammar_service.vocabularies import Loaded
from shared import metrics
from shared.errors import CompileCrashed, CompileTimeout, Overloaded, Unsatisfiable
from shared.guide import Guide
from shared.protocol import Plan

LOADED = Loaded("f", 10, {}, None)


class Factory:
    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes

    def create(self, stop_ids: Collection[int], after_guide: str = "stop") -> Any:
        raise NotImplementedError


def grammar(text: str, memory_bytes: int = 1_000) -> CompiledGrammar:
    plan = Plan(engine="e", engine_version="1", guide_kind="regex", grammar_kind="regex", text=text)
    return CompiledGrammar(plan, Factory(memory_bytes), 0.5)


def key(name: str) -> tuple[str, bytes]:
    return "f", name.encode()


def task(name: str, client: str = "c") -> Task:
    return Task(("f", name), client, LOADED, Guide(kind="regex", text=name))


def test_the_size_counts_the_text_and_the_entry() -> None:  # spec 3
    assert grammar("é" * 10, 500).num_bytes == 500 + 20 + ENTRY_BYTES


def test_the_bytes_never_pass_the_limit() -> None:  # spec 3
    cache = GrammarCache(10_000)
    for number in range(100):
        cache.put(key(str(number)), grammar(str(number)))
        assert cache.num_bytes <= 10_000
    assert len(cache) == 4
    assert cache.get(key("99")) is not None
    assert cache.get(key("0")) is None


def test_the_least_recently_used_goes_first() -> None:
    cache = GrammarCache(7_000)
    for name in "abc":
        cache.put(key(name), grammar(name))
    assert cache.get(key("a")) is not None
    cache.put(key("d"), grammar("d"))
    assert [cache.get(key(name)) is not None for name in "abcd"] == [True, False, True, True]


def test_one_that_is_larger_than_the_limit_is_not_kept() -> None:
    cache = GrammarCache(10_000)
    cache.put(key("big"), grammar("big", 1 << 20))
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_another_spelling_shares_what_is_there() -> None:  # spec 137
    cache = GrammarCache(10_000)
    first = grammar("a")
    assert cache.put(key("a"), first, "c", ("f", "one")) is first
    assert cache.put(key("a"), grammar("a"), "c", ("f", "two")) is first
    assert cache.find(("f", "one")) is first
    assert cache.find(("f", "two")) is first
    assert cache.find(("f", "three")) is None
    assert cache.num_bytes == first.num_bytes + 2 * SPELLING_BYTES
    cache.validate()


def test_spellings_without_end_take_no_memory_without_end() -> None:
    cache = GrammarCache(100_000)
    for number in range(10 * MAX_SPELLINGS):
        cache.put(key("a"), grammar("a"), "c", ("f", str(number)))
        cache.validate()
    assert cache.num_bytes == grammar("a").num_bytes + MAX_SPELLINGS * SPELLING_BYTES
    assert cache.find(("f", "0")) is None
    assert cache.find(("f", str(10 * MAX_SPELLINGS - 1))) is not None


def test_one_client_pushes_out_their_own() -> None:
    cache = GrammarCache(20_000, client_bytes=10_000)
    for name in ("x", "y"):
        cache.put(key(name), grammar(name), "modest")
    for number in range(50):
        cache.put(key(str(number)), grammar(str(number)), "greedy")
        cache.validate()
    assert [cache.get(key(name)) is not None for name in ("x", "y")] == [True, True]
    assert len(cache) == 2 + 4


def test_what_another_client_uses_counts_for_that_one() -> None:
    cache = GrammarCache(20_000, client_bytes=5_000)
    for name in "ab":
        cache.put(key(name), grammar(name), "one", ("f", name))
    assert cache.find(("f", "a"), "two") is not None
    cache.put(key("c"), grammar("c"), "one")
    cache.validate()
    assert [cache.get(key(name)) is not None for name in "abc"] == [True, True, True]  # three for one would be too many


def test_taking_over_keeps_the_share() -> None:
    cache = GrammarCache(20_000, client_bytes=4_500)
    for name, client in (("a", "one"), ("b", "one"), ("c", "two"), ("d", "two")):
        cache.put(key(name), grammar(name), client)
    assert cache.get(key("a"), "two") is not None
    cache.validate()
    assert [cache.get(key(name)) is not None for name in "abcd"] == [True, True, False, True]


def test_one_too_large_for_a_share_drops_nothing() -> None:
    cache = GrammarCache(20_000, client_bytes=5_000)
    cache.put(key("a"), grammar("a"), "c")
    big = grammar("big", 6_000)
    assert cache.put(key("big"), big, "c") is big
    assert len(cache) == 1


def test_hits_misses_and_evictions_are_counted() -> None:
    def counts() -> list[float]:
        counters = (metrics.cache_hits_total, metrics.cache_misses_total, metrics.cache_evictions_total)
        return [counter._value.get() for counter in counters]

    before = counts()
    cache = GrammarCache(4_500)
    for name in "abc":
        cache.put(key(name), grammar(name), "c", ("f", name))
    cache.find(("f", "c"))
    cache.find(("f", "c"))
    cache.find(("f", "unheard of"))
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [
        2,
        1,
        2,
    ]  # each takes 2,404 bytes with its spelling: one fits


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.booleans(), st.integers(0, 3_000)), max_size=60))
def test_the_books_agree_after_any_history(history: list[tuple[int, int, bool, int]]) -> None:
    cache = GrammarCache(12_000, client_bytes=6_000)
    for number, client, found, size in history:
        spelling = "f", f"{number}-{size % 5}"
        if found:
            cache.find(spelling, f"client{client}")
        else:
            cache.put(key(str(number)), grammar(str(number), size), f"client{client}", spelling)
        cache.validate()
    cache.forget_vocabulary("f")
    cache.validate()
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_a_vocabulary_that_goes_takes_its_grammars_along() -> None:
    cache = GrammarCache(10_000)
    cache.put(("f", b"1"), grammar("1"))
    cache.put(("g", b"1"), grammar("1"))
    cache.forget_vocabulary("f")
    assert cache.get(("f", b"1")) is None
    assert cache.num_bytes == grammar("1").num_bytes


def test_refusals_that_cost_much_are_remembered_for_a_while() -> None:
    refused = NegativeCache(10.0)
    for name, error in (("t", CompileTimeout("t")), ("c", CompileCrashed("c")), ("u", Unsatisfiable("u"))):
        refused.put(("f", name), error, 0.0)
    assert isinstance(refused.get(("f", "t"), 9.9), CompileTimeout)
    assert isinstance(refused.get(("f", "c"), 9.9), CompileCrashed)
    assert refused.get(("f", "u"), 0.1) is None  # cheap to find out again
    assert refused.get(("f", "t"), 10.1) is None


def test_the_negative_cache_is_bounded() -> None:
    refused = NegativeCache(10.0, max_entries=5)
    for number in range(20):
        refused.put(("f", str(number)), CompileTimeout("t"), 0.0)
    assert refused.get(("f", "14"), 1.0) is None
    assert refused.get(("f", "19"), 1.0) is not None


def test_equal_tasks_are_compiled_once() -> None:
    queue = CompileQueue(10)
    assert queue.add(task("a"))
    assert not queue.add(task("a", "other"))
    taken = queue.take()
    assert taken is not None
    assert not queue.add(task("a"))  # still in progress
    queue.done(taken.key)
    assert queue.add(task("a"))


def test_clients_take_turns() -> None:
    queue = CompileQueue(100)
    for number in range(5):
        queue.add(task(f"greedy{number}", "greedy"))
    queue.add(task("modest", "modest"))
    order = []
    while (taken := queue.take()) is not None:
        order.append(taken.key[1])
    assert order == ["greedy0", "modest", "greedy1", "greedy2", "greedy3", "greedy4"]


def test_a_full_queue_is_told() -> None:
    queue = CompileQueue(2)
    queue.add(task("a"))
    queue.add(task("b"))
    with pytest.raises(Overloaded):
        queue.add(task("c"))
    assert queue.take() is not None
    assert queue.add(task("c"))
