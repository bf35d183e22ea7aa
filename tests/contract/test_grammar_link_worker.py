"""The link against the real grammar service: rows, drafts, ends, forks, refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from gpu_worker.grammar_link import WalkStatus
from shared.errors import MaskstreamError, UnsupportedSchema
from shared.guide import make_guide
from tests.real_services import RealLink, Texts

pytestmark = pytest.mark.e2e
STOP = 256


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealLink]:
    real = RealLink(tmp_path_factory.mktemp("link"))
    yield real
    real.close()


def test_first_row_and_golden_tokens(real: RealLink) -> None:  # spec 15, 21, 30
    session = real.open(real.compile(make_guide("regex", "[ab]c|d")))
    outcome, rows = real.rows(session)
    assert (outcome.status, outcome.num_advanced, outcome.num_guided) == (WalkStatus.OK, 0, 1)
    assert real.allowed(rows[0]) == [ord("a"), ord("b"), ord("d")]
    outcome, rows = real.rows(session, path=(ord("a"),))
    assert (outcome.num_advanced, real.allowed(rows[0])) == (1, [ord("c")])
    outcome, rows = real.rows(session, committed=(ord("a"),), path=(ord("c"),), accepted=1)
    assert real.allowed(rows[0]) == [STOP]  # spec R5
    assert real.rows(session, committed=(ord("c"),), path=(STOP,), accepted=1)[0].status is WalkStatus.TERMINATED


def test_drafts_are_walked_and_rolled_back(real: RealLink) -> None:  # spec 24, 43, R6
    session = real.open(real.compile(make_guide("regex", "[0-9]{4}x")))
    path = tuple(map(ord, "12x"))
    outcome, rows = real.rows(session, path=path)
    assert (outcome.num_advanced, outcome.num_guided) == (2, 2)
    assert [real.allowed(row) for row in rows] == [list(map(ord, "0123456789"))] * 2 + [[]]
    outcome, rows = real.rows(session, committed=(ord("1"),), path=tuple(map(ord, "345")), accepted=1)
    assert (outcome.status, outcome.num_advanced) == (WalkStatus.OK, 3)
    assert real.allowed(rows[2]) == [ord("x")]


def test_refused_golden_token_fails_one_walk(real: RealLink) -> None:  # spec 32, R8
    compiled = real.compile(make_guide("regex", "abc"))
    session, other = real.open(compiled), real.open(compiled)
    assert real.rows(session, path=(ord("z"),))[0].status is WalkStatus.REFUSED
    assert real.rows(other, path=(ord("a"),))[0].status is WalkStatus.OK


def test_fork_and_replay_give_the_same_rows(real: RealLink) -> None:  # spec R9
    compiled = real.compile(make_guide("json_schema", {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3}))
    text = tuple(b'["x","')
    parent = real.open(compiled)
    real.rows(parent, path=text)
    real.rows(parent, committed=text[:5], path=text[5:], accepted=5)
    fork = real.link.fork(parent, 3)
    replayed = real.open(compiled, text[:3])
    (_, forked_rows), (_, replayed_rows) = real.rows(fork, path=text[3:]), real.rows(replayed, path=text[3:])
    assert np.array_equal(forked_rows, replayed_rows)


def test_tree_rows_follow_each_nodes_own_path(real: RealLink) -> None:  # spec 48, R10
    session = real.open(real.compile(make_guide("regex", "a(b1|c2)")))
    outcome, rows = real.rows(session, path=tuple(map(ord, "abc")), parents=(-1, 0, 0))
    assert outcome.status is WalkStatus.OK and outcome.num_guided == 3
    assert [real.allowed(row) for row in rows] == [[ord("b"), ord("c")], [ord("1")], [ord("2")]]


def test_refusal_has_pointer_and_keyword(real: RealLink) -> None:  # spec R1
    guide = make_guide("json_schema", {"type": "object", "properties": {"a": {"$ref": "http://example.com/x"}}})
    with pytest.raises(UnsupportedSchema) as caught:
        real.compile(guide)
    assert caught.value.pointer.startswith("/properties/a") and caught.value.keyword == "$ref"


def test_malformed_guides_are_errors_of_their_own(real: RealLink) -> None:
    for kind, value in (("regex", "(ab"), ("json_schema", {"type": "bogus"}), ("lark", "start: nothing")):
        with pytest.raises(MaskstreamError) as caught:
            real.compile(make_guide(kind, value))
        assert caught.value.code != "internal"


def test_many_texts_at_once_are_valid(real: RealLink) -> None:
    guides = [make_guide("regex", f"{letter}[a-z]{{2,9}}-[0-9]{{3}}") for letter in "abcdefgh"]
    texts = Texts(real, [real.compile(guide) for guide in guides])
    for letter, text in zip("abcdefgh", texts.run(), strict=True):
        assert re.fullmatch(f"{letter}[a-z]{{2,9}}-[0-9]{{3}}", text.decode())
    assert not texts.errors


def test_long_piece_in_one_walk(real: RealLink) -> None:
    session = real.open(real.compile(make_guide("regex", "[a-z]{300}")))
    outcome, rows = real.rows(session, path=(ord("q"),) * 256)
    assert (outcome.status, outcome.num_guided) == (WalkStatus.OK, 256)
    assert all(real.allowed(row) == list(range(ord("a"), ord("z") + 1)) for row in rows)
