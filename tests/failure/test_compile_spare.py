"""Children that are forked ahead: one guide each, under the limits of every child, gone with their zygote."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Collection, Iterator

import pytest

from tests.failure.processes import children, state, wait_until
from tests.grammar_driver import Driver
from tests.grammar_process import ServiceProcess, serving
from tests.vocabularies import tiny

pytestmark = pytest.mark.failure


def spares(service: ServiceProcess) -> list[int]:
    (zygote,) = children(service.step_pid())
    return children(zygote)


def waiting_spare(service: ServiceProcess, besides: Collection[int] = ()) -> int:
    """The one child of the zygote, once it sleeps on its socket; ``besides`` are on their way out."""
    found: list[int] = []

    def waits() -> bool:
        found[:] = spares(service)
        return len(found) == 1 and found[0] not in besides and state(found[0]) == "S"

    wait_until(waits)
    return found[0]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Driver, ServiceProcess]]:
    with serving(tiny(), "--compile-timeout-s", "1", "--compile-memory-bytes", str(256 << 20)) as pair:
        yield pair


def test_each_guide_has_a_child_of_its_own(running: tuple[Driver, ServiceProcess]) -> None:  # spec R8
    driver, service = running
    seen: set[int] = set()
    for number in range(4):
        seen.add(waiting_spare(service, seen))
        assert driver.compile("regex", f"own{number}+").error is None
    assert len(seen) == 4


def test_a_spare_that_was_killed_is_missed_by_nobody(running: tuple[Driver, ServiceProcess]) -> None:
    driver, service = running
    for number in range(3):
        spare = waiting_spare(service)
        os.kill(spare, signal.SIGKILL)
        wait_until(lambda spare=spare: spare not in spares(service))  # type: ignore[misc]
        assert driver.compile("regex", f"killed{number}+").error is None


def test_a_spare_that_hangs_costs_its_guide_and_no_other(running: tuple[Driver, ServiceProcess]) -> None:  # spec R8
    driver, service = running
    stopped = waiting_spare(service)
    os.kill(stopped, signal.SIGSTOP)
    late = driver.compile("regex", "late+")
    assert late.error is not None
    assert late.error.code == "compile_timeout"
    assert driver.compile("regex", "in time+").error is None
    wait_until(lambda: stopped not in spares(service))


def test_a_spare_has_the_limits_of_every_child(running: tuple[Driver, ServiceProcess]) -> None:  # spec 38
    driver, service = running
    waiting_spare(service)
    big = json.dumps({"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(1_500)}})
    heavy = driver.compile("json_schema", big, engine="xgrammar")
    assert heavy.error is not None
    assert heavy.error.code in ("compile_timeout", "compile_crashed")


def test_spares_end_with_their_zygote(running: tuple[Driver, ServiceProcess]) -> None:
    driver, service = running
    spare = waiting_spare(service)
    (zygote,) = children(service.step_pid())
    os.kill(zygote, signal.SIGKILL)
    wait_until(lambda: state(spare) in ("", "Z"))
    wait_until(lambda: driver.compile("regex", f"again{time.monotonic_ns()}").error is None)


def test_none_is_forked_where_none_is_wanted() -> None:
    with serving(tiny(), "--compile-spares", "0") as (driver, service):
        assert driver.compile("regex", "plain+").error is None
        time.sleep(0.3)
        assert spares(service) == []
