"""Real grammar services that are killed, stopped and drained under 30 texts: the same tokens as without."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.guide import make_guide
from tests.real_services import RealLink, Texts

pytestmark = [pytest.mark.failure, pytest.mark.slow]
PATTERN = "{letter}[a-z]{{5,20}}-[0-9]{{3,9}}(-[a-f]{{4}}){{2}}"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCD"


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealLink]:
    real = RealLink(tmp_path, services=3)
    yield real
    real.close()


def compiled_guides(real: RealLink):
    return [real.compile(make_guide("regex", PATTERN.format(letter=letter))) for letter in LETTERS]


def check(texts: Texts, found: list[bytes], wanted: list[bytes]) -> None:
    assert not texts.errors
    assert all(re.fullmatch(PATTERN.format(letter=letter), text.decode()) for letter, text in zip(LETTERS, found, strict=True))
    assert found == wanted


def test_kill_any_service_at_any_moment(real: RealLink) -> None:  # spec R9
    compiled = compiled_guides(real)
    wanted = Texts(real, compiled, seed=1).run()
    dice = random.Random(5)
    for _ in range(10):
        moment = dice.randrange(40)

        def disturb(step: int, moment: int = moment) -> None:
            if step == moment:
                real.kill(dice.choice(sorted(real.services)))
                real.start_service()

        texts = Texts(real, compiled, seed=1)
        check(texts, texts.run(disturb), wanted)
        real.wait_for(3)


def test_stop_and_continue(real: RealLink) -> None:  # spec R9
    compiled = compiled_guides(real)
    wanted = Texts(real, compiled, seed=2).run()
    stopped = sorted(real.services)[0]

    def disturb(step: int) -> None:
        if step == 5:
            real.signal(stopped, signal.SIGSTOP)
        if step == 30:
            real.signal(stopped, signal.SIGCONT)

    texts = Texts(real, compiled, seed=2)
    check(texts, texts.run(disturb), wanted)
    real.signal(stopped, signal.SIGCONT)
    real.wait_for(3)


def test_last_service_dies_and_another_comes(tmp_path: Path) -> None:
    real = RealLink(tmp_path, services=1)
    try:
        compiled = compiled_guides(real)
        wanted = Texts(real, compiled, seed=3).run()

        def disturb(step: int) -> None:
            if step == 10:
                real.kill(next(iter(real.services)))
            if step == 15:
                real.start_service()

        texts = Texts(real, compiled, seed=3)
        check(texts, texts.run(disturb), wanted)
    finally:
        real.close()


def test_drain_moves_every_session(real: RealLink) -> None:
    compiled = compiled_guides(real)
    wanted = Texts(real, compiled, seed=4).run()
    leaving = sorted(real.services)[1]

    def disturb(step: int) -> None:
        if step == 8:
            real.signal(leaving, signal.SIGTERM)

    texts = Texts(real, compiled, seed=4)
    check(texts, texts.run(disturb), wanted)
    assert real.services[leaving].wait(15) == 0
