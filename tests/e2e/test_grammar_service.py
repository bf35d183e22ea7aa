"""A real service process on a real vocabulary, spoken to over the wire."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from shared.bitmask import is_set
from shared.guide import Guide
from shared.protocol import (
    Close,
    Compile,
    Compiled,
    Drain,
    Hello,
    HelloAgain,
    Open,
    Opened,
    Ping,
    Plan,
    Pong,
    Ready,
    Step,
    StepAnswer,
    StepStatus,
    encode,
)  # fmt: skip
from tests.grammar_driver import Driver, Sequence1
from tests.grammar_process import ServiceProcess, serving
from tests.vocabularies import encode_greedy, qwen

pytestmark = pytest.mark.e2e

PERSON = json.dumps({
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer"}},
    "required": ["name", "age"], "additionalProperties": False,
})  # fmt: skip
TAG = '{"type": "tag", "begin": "<f>", "content": %s, "end": "</f>"}'
GUIDES = [
    ("json_schema", PERSON, b'{"name": "Ada", "age": 36}', b'{"name": 1'),
    ("regex", "[0-9]{2,4}", b"123", b"x"),
    ("choice", '["yes","no"]', b"yes", b"maybe"),
    ("ebnf", 'root ::= "(" root ")" | "x"', b"((x))", b")"),
    ("lark", 'start: "a" /[0-9]+/', b"a12", b"b"),
    ("json", "", b'[1, {"a": null}]', b"nul "),
    ("json_object", "", b'{"a": [1]}', b"["),
]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Driver, ServiceProcess]]:
    with serving(qwen()) as pair:
        yield pair


@pytest.fixture
def driver(running: tuple[Driver, ServiceProcess]) -> Driver:
    return running[0]


def start(driver: Driver, handle: int, kind: str, text: str, **options: str) -> Sequence1:
    compiled = driver.compile(kind, text, **options)
    assert compiled.error is None, compiled.error
    assert compiled.plan is not None
    opened = driver.open(handle, compiled.plan)
    assert opened.error is None, opened.error
    return Sequence1(driver, handle, compiled.plan)


def fits(driver: Driver, sequence: Sequence1, text: bytes) -> bool:
    """True if each token of the text has its bit set at its turn, and then a stop token."""
    _, rows = driver.step(sequence.entry())[sequence.handle]
    for token in encode_greedy(driver.vocabulary, text):
        if not is_set(rows[-1], token, driver.vocabulary.size):
            return False
        answer, rows = driver.step(sequence.entry([token]))[sequence.handle]
        assert answer.status == StepStatus.OK
        sequence.commit(token)
    return is_set(rows[-1], driver.vocabulary.stop_ids[0], driver.vocabulary.size)


@pytest.mark.parametrize(("kind", "text", "good", "bad"), GUIDES, ids=[guide[0] for guide in GUIDES])
def test_each_kind_token_by_token(driver: Driver, kind: str, text: str, good: bytes, bad: bytes) -> None:  # spec 4, 7, R2, R4
    assert fits(driver, start(driver, 1, kind, text), good)
    assert not fits(driver, start(driver, 2, kind, text), bad)
    driver.end((1, 0), (2, 0))


@pytest.mark.parametrize("engine", ["auto", "llguidance", "xgrammar"])
def test_properties_in_any_order_or_in_the_schemas(driver: Driver, engine: str) -> None:  # spec R2, 137
    texts = (b'{"name":"Ada","age":36}', b'{"age":36,"name":"Ada"}')
    fixed = start(driver, 3, "json_schema", PERSON, engine=engine, property_order="schema")
    assert [fits(driver, fixed, text) for text in texts[:1]] == [True]
    other = start(driver, 4, "json_schema", PERSON, engine=engine, property_order="schema")
    assert not fits(driver, other, texts[1])
    compiled = driver.compile("json_schema", PERSON, engine=engine)
    free = start(driver, 5, "json_schema", PERSON, engine=engine)
    assert compiled.plan is not None
    told = any("in the order of the schema" in warning for warning in compiled.plan.warnings)
    assert fits(driver, free, texts[1]) != told == (engine == "xgrammar")  # what is narrower is told
    driver.end((3, 0), (4, 0), (5, 0))


def test_a_whole_batch_in_one_step(driver: Driver) -> None:  # spec 24
    sequences = [start(driver, 10 + i, *GUIDES[i % len(GUIDES)][:2]) for i in range(40)]
    answers = driver.step(*(sequence.entry() for sequence in sequences))
    assert set(answers) == {sequence.handle for sequence in sequences}
    for index, sequence in enumerate(sequences):
        _, rows = answers[sequence.handle]
        first = encode_greedy(driver.vocabulary, GUIDES[index % len(GUIDES)][2])[0]
        assert is_set(rows[0], first, driver.vocabulary.size)
    driver.end(*((sequence.handle, 0) for sequence in sequences))


def test_two_entries_for_one_session_in_a_step_are_one(driver: Driver) -> None:  # spec R8
    sequence = start(driver, 59, "regex", "[0-9]{3}x")
    first, second = sequence.entry(), sequence.entry()
    driver.send(Step(step=77, retired_step=0, entries=[first, second]))
    answer, _ = driver.expect(StepAnswer, lambda message: message.step == 77)
    assert [entry.sequence_number for entry in answer.entries] == [first.sequence_number]
    assert driver.step(sequence.entry())[59][0].status == StepStatus.OK


def test_drafts_roll_back(driver: Driver) -> None:  # spec 42, 43
    sequence = start(driver, 60, "regex", "[0-9]{3}x")
    one, two, letter = (encode_greedy(driver.vocabulary, text)[0] for text in (b"1", b"2", b"x"))
    answer, rows = driver.step(sequence.entry([one, two, one, one]))[60]
    assert (answer.num_advanced, answer.num_guided) == (3, 3)
    sequence.commit(one, two)
    answer, rows = driver.step(sequence.entry([two], accepted=2))[60]
    assert is_set(rows[0], letter, driver.vocabulary.size)
    assert not is_set(rows[0], two, driver.vocabulary.size)


def test_a_replay_elsewhere_goes_on_exactly_there(driver: Driver) -> None:  # spec R9, 50
    sequence = start(driver, 61, "json_schema", PERSON)
    tokens = encode_greedy(driver.vocabulary, b'{"name": "Ada", "age": 3')
    assert driver.open(62, sequence.plan, epoch=3, committed=tokens).error is None
    twin = Sequence1(driver, 62, sequence.plan, epoch=3, committed=tokens)
    _, rows = driver.step(twin.entry())[62]
    assert is_set(rows[0], encode_greedy(driver.vocabulary, b"}")[0], driver.vocabulary.size)


def test_opens_are_checked(driver: Driver) -> None:
    plan = start(driver, 63, "regex", "ab").plan
    unknown = Plan(engine="xgrammar", engine_version="0", guide_kind="regex", grammar_kind="regex", text="q")
    error = driver.open(64, unknown).error
    assert error is not None
    assert error.code == "unknown_plan"
    error = driver.open(64, unknown, plan=unknown).error
    assert error is not None
    assert (error.code, error.field) == ("unsupported_schema", "engine")
    for wrong in ({"stop_ids": []}, {"stop_ids": [driver.vocabulary.size]}, {"committed": [5, 5, 5]}):
        error = driver.open(64, plan, **wrong).error  # type: ignore[arg-type]
        assert error is not None
        assert error.code == "bad_request"
    wrong_digest = driver.open(64, plan, plan=unknown).error
    assert wrong_digest is not None
    assert wrong_digest.field == "plan_digest"


def test_an_open_with_its_plan_needs_no_compile_and_its_step_waits(driver: Driver) -> None:
    plan = start(driver, 65, "regex", "fresh").plan
    plan = Plan(engine=plan.engine, engine_version=plan.engine_version, guide_kind="regex", grammar_kind="regex", text="new[0-9]+")
    sequence = Sequence1(driver, 66, plan)
    driver.send(Open(handle=66, epoch=0, plan_digest=plan.digest, plan=plan, stop_ids=driver.vocabulary.stop_ids))
    driver.send(Step(step=9, retired_step=0, entries=[sequence.entry()]))
    driver.expect(Opened, lambda message: message.handle == 66 and message.error is None)
    answer, _ = driver.expect(StepAnswer, lambda message: message.step == 9)
    assert answer.entries[0].status == StepStatus.OK


def test_equal_guides_are_compiled_once(driver: Driver) -> None:  # spec 3, 137
    assert not driver.compile("json_schema", '{"const":  "once"}').cached
    assert driver.compile("json_schema", '{"const":"once"}').cached


@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        ("regex", "(ab", "bad_request"),
        ("regex", "(a)\\1", "unsupported_schema"),
        ("json_schema", '{"$ref": "http://example.com/x.json"}', ""),
        ("json_schema", "not json", "bad_request"),
        ("ebnf", "root ::= root", "unsatisfiable"),
        ("ebnf", "root ::= (", "bad_request"),
        ("lark", "start: /(?=a)/", ""),
        ("choice", "[]", "unsatisfiable"),
        ("json_schema", "[" * 800 + "]" * 800, "grammar_too_large"),
        ("regex", "a{1000000}", "grammar_too_large"),
        # Of every kind what no text fits, or no finite one.
        ("json_schema", '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}', "unsatisfiable"),
        ("json_schema", '{"type": "string", "minLength": 5, "maxLength": 2}', "unsatisfiable"),
        ("regex", "a(?!.)b", "unsatisfiable"),
        ("ebnf", 'root ::= "a" root', "unsatisfiable"),
        ("lark", 'start: "a" start', "unsatisfiable"),
        ("lark", 'start: A\nA: "x" & "y"', "unsatisfiable"),
        ("lark", "start: missing", "bad_request"),
        ("structural_tag", TAG % '{"type": "regex", "pattern": "a(?!.)b"}', "unsatisfiable"),
        ("structural_tag", TAG % '{"type": "json_schema", "json_schema": false}', "unsatisfiable"),
        ("structural_tag", TAG % '{"type": "regex", "patern": "a"}', "bad_request"),
    ],
)
def test_what_cannot_be_enforced_is_refused(driver: Driver, kind: str, text: str, code: str) -> None:  # spec R1, 9, 38
    error = driver.compile(kind, text).error
    assert error is not None
    assert error.message and error.field
    assert not code or error.code == code
    assert not any(leak in error.message for leak in ("NoExtensionBias", "non-verbose", "Check failed", ".cc:"))


def test_garbage_harms_nothing(driver: Driver) -> None:  # spec R8
    for frames in ([b""], [b"\xc1"], [b"\x91" * 5000], [encode(Ping(nonce=1)), b"more"], [b"x" * 100_000]):
        driver.send_raw(frames)
    driver.send(Ping(nonce=7))
    assert driver.expect(Pong)[0].nonce == 7


def test_health_and_metrics(running: tuple[Driver, ServiceProcess]) -> None:  # spec R28
    driver, service = running
    start(driver, 90, "regex", "m")
    status, text = service.get("/health")
    assert status == 200
    assert "workers=1" in text
    metrics = service.get("/metrics")[1]
    assert 'grammar_compile_seconds_count{engine="llguidance",kind="regex",outcome="ok"}' in metrics
    assert "grammar_mask_seconds_count" in metrics


def test_hello_again_and_ping(driver: Driver) -> None:
    driver.hello = None
    driver.send(HelloAgain())
    driver.expect(Ready)
    assert driver.hello is not None
    assert set(driver.hello.engines) == {"llguidance", "xgrammar"}


def test_a_stopped_service_greets_again_when_it_goes_on() -> None:  # R11: nothing of it comes over the socket itself
    with serving(qwen()) as (driver, service):
        identity = driver.identity
        service.process.send_signal(signal.SIGSTOP)
        time.sleep(4)  # heartbeats give up after 2 s
        service.process.send_signal(signal.SIGCONT)
        driver.expect(Ready)
        assert driver.identity != identity
        assert driver.compile("regex", "again").error is None


def test_a_service_that_starts_before_its_worker_finds_it() -> None:
    with Driver(qwen()) as first:
        address = first.address
    with ServiceProcess(address, "--drain-s", "0"), Driver(qwen(), address) as driver:
        assert driver.wait_ready().error is None


def test_a_vocabulary_that_does_not_hash_is_refused() -> None:
    with Driver(qwen()) as driver:
        driver.fingerprint = "0" * 32
        with ServiceProcess(driver.address, "--drain-s", "0"):
            error = driver.wait_ready().error
            assert error is not None
            assert error.field == "fingerprint"


def test_sigterm_drains_and_leaves_when_the_sessions_are_gone() -> None:
    with Driver(qwen()) as driver, ServiceProcess(driver.address, "--drain-s", "60") as service:
        driver.wait_ready()
        sequence = start(driver, 1, "regex", "ab")
        service.process.send_signal(signal.SIGTERM)
        driver.expect(Drain)
        assert driver.step(sequence.entry())[1][0].status == StepStatus.OK  # it still serves
        driver.send(Close(sessions=[(1, 0)]))
        assert service.process.wait(timeout=20) == 0


def test_memory_of_the_step_process_and_of_a_session() -> None:
    with serving(qwen()) as (driver, service):
        empty = service.resident_bytes()
        assert empty < 200 << 20
        sequence = start(driver, 1, "json_schema", PERSON)
        tokens = encode_greedy(driver.vocabulary, b'{"name": "Ada", "age": 3')
        before = service.resident_bytes()
        for handle in range(2, 302):
            driver.open(handle, sequence.plan, committed=tokens)
            driver.step(Sequence1(driver, handle, sequence.plan, committed=tokens).entry())
        assert service.resident_bytes() - before < 300 * (50_000 + 2_000 * len(tokens))


def test_help_is_quick_and_shows_the_environment() -> None:
    started = time.monotonic()
    found = subprocess.run([sys.executable, "-m", "grammar_service", "--help"], capture_output=True, text=True, check=True)
    assert time.monotonic() - started < 5  # 0.1 s alone; the machine may be busy
    assert "MASKSTREAM_GRAMMAR_WORKERS" in found.stdout
    heavy = "('zmq', 'numpy', 'xgrammar', 'llguidance')"
    loaded = f"import sys, grammar_service.__main__ as m; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--metrics-port", "x"], ["--metrics-port", "'x'"]),
        (["--workers", "tcp://192.0.2.1:5556"], ["insecure", "192.0.2.1"]),
        (["--workers", "nonsense"], ["nonsense"]),
        (["--step-hard-s", "-1"], ["--step-hard-s", "'-1'"]),
    ],
)
def test_a_wrong_setting_stops_the_start_by_name(flags: list[str], words: list[str]) -> None:
    found = subprocess.run([sys.executable, "-m", "grammar_service", *flags], capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert all(word in found.stderr for word in words)
    assert "Traceback" not in found.stderr


def test_a_client_cannot_fill_the_queue_of_another(driver: Driver) -> None:
    for number in range(30):
        driver.send(Compile(key=f"many{number}", guide=Guide(kind="regex", text=f"many{number}x*"), client="greedy"))
    driver.send(Compile(key="modest", guide=Guide(kind="regex", text="modest"), client="modest"))
    order: list[str] = []
    while len(order) < 31:
        order.append(driver.expect(Compiled)[0].key)
    assert order.index("modest") < 10


def test_greeting_names_the_service(driver: Driver) -> None:
    assert isinstance(driver.hello, Hello)
    assert driver.hello.service
