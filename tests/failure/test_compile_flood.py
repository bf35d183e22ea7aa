"""Many schemas that nobody saw before: memory stays within what the settings say, and the cache counts what it really holds."""

from __future__ import annotations

import json
import re

import pytest

from shared.guide import Guide, key_of
from shared.protocol import Compile, Compiled
from tests.failure.processes import children, wait_until
from tests.grammar_driver import Driver
from tests.grammar_process import ServiceProcess, serving
from tests.vocabularies import encode_greedy, qwen, tiny

CACHE_BYTES = 8 << 20
IN_FLIGHT = 32
SLACK_BYTES = 40 << 20  # what an allocator keeps of the largest moment, and engines of their first use


def unique(number: int) -> Guide:
    """A small schema that is like no other."""
    names = {f"field_{number}": {"type": "string"}, "tags": {"type": "array", "items": {"enum": [f"t{number}", "u"]}}}
    schema = {"type": "object", "properties": names, "required": [f"field_{number}"], "additionalProperties": False}
    return Guide(kind="json_schema", text=json.dumps(schema))


def compile_all(driver: Driver, numbers: range) -> int:
    """Compiles each, some at a time, in the names of several clients; bytes that were announced."""
    waiting, announced = 0, 0
    for number in numbers:
        guide = unique(number)
        driver.send(Compile(key=key_of(guide), guide=guide, client=f"client{number % 5}"))
        waiting += 1
        if waiting == IN_FLIGHT or number == numbers[-1]:
            for _ in range(waiting):
                compiled = driver.expect(Compiled)[0]
                assert compiled.error is None, compiled.error
                announced += compiled.grammar_bytes
            waiting = 0
    return announced


def metric(service: ServiceProcess, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", service.get("/metrics")[1], re.MULTILINE)
    assert found is not None, name
    return float(found.group(1))


def stays_bounded(count: int) -> None:
    with serving(tiny(), "--cache-bytes", str(CACHE_BYTES), "--cache-client-share", "0.3") as (driver, service):
        compile_all(driver, range(100))
        resident, descriptors = service.resident_bytes(), service.descriptors()
        announced = compile_all(driver, range(100, count))
        assert announced > 4 * CACHE_BYTES  # enough to fill it several times
        assert metric(service, "grammar_cache_bytes") <= CACHE_BYTES
        assert metric(service, "grammar_cache_evictions_total") > count / 2
        assert service.resident_bytes() - resident < CACHE_BYTES + SLACK_BYTES
        wait_until(lambda: service.descriptors() <= descriptors)  # the last metrics connection closes a moment after its answer
        assert len(children(service.step_pid())) == 1
        again = driver.compile("json_schema", unique(count - 1).text)
        assert again.cached


@pytest.mark.slow
@pytest.mark.failure
@pytest.mark.timeout(170)
def test_memory_is_bounded_under_1500_unique_schemas() -> None:  # spec 3, R8
    stays_bounded(1_500)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_memory_is_bounded_under_10000_unique_schemas() -> None:  # spec 3, R8
    stays_bounded(10_000)


@pytest.mark.slow
@pytest.mark.failure
def test_the_bytes_that_are_counted_are_those_that_are_held() -> None:  # spec 3
    """Each grammar is walked a few tokens, as in use: what its automaton grows by then counts too."""
    with serving(qwen()) as (driver, service):
        walk_all(driver, range(20))
        resident, counted = service.resident_bytes(), metric(service, "grammar_cache_bytes")
        walk_all(driver, range(20, 140))
        grown, told = service.resident_bytes() - resident, metric(service, "grammar_cache_bytes") - counted
        assert told > 120 * 50_000
        assert grown < 1.5 * told + (10 << 20)


def walk_all(driver: Driver, numbers: range) -> None:
    for number in numbers:
        plan = driver.compile("json_schema", unique(number).text).plan
        assert plan is not None
        committed = encode_greedy(driver.vocabulary, f'{{"field_{number}": "abc'.encode())
        assert driver.open(1, plan, epoch=number, committed=committed).error is None
        driver.end((1, number))
