"""Settings and flags: flag over environment over default; a wrong value is named with its key."""

import math
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from gpu_worker.config import PREFIX as WORKER_PREFIX
from gpu_worker.config import WorkerSettings
from grammar_service.config import PREFIX as GRAMMAR_PREFIX
from grammar_service.config import GrammarSettings
from shared.config import Settings, environment_name, load
from shared.errors import ConfigError
from shared.flags import Flags


class Some(Settings, frozen=True, kw_only=True):
    must: Annotated[int, Meta(description="has no default", ge=1)]
    wait_s: Annotated[float, Meta(description="100% patience", gt=0, le=60)] = 0.5
    insecure: bool = False
    names: Annotated[list[str], Meta(max_length=2)] = []  # noqa: RUF012
    mode: Literal["wait", "refuse"] = "wait"


def some(*argv, **environment):
    return load(Some, "APP", argv, environment=environment)


def test_order():
    assert some("--must", "3", APP_MUST="4").must == 3
    assert some(APP_MUST="4").must == 4
    assert some(APP_MUST="4").wait_s == 0.5
    assert some(APP_MUST="4", APP_WAIT_S="").wait_s == 0.5  # compose passes unset variables as empty ones


@pytest.mark.parametrize(
    ("argv", "value"), [(("--insecure",), True), (("--insecure", "false"), False), (("--insecure", "1"), True), ((), False)]
)
def test_switches(argv, value):
    assert some("--must", "1", *argv).insecure is value


def test_lists():
    assert some("--must", "1", "--names", "a, b").names == ["a", "b"]
    with pytest.raises(ConfigError):
        some("--must", "1", "--names", "a,b,c")


@pytest.mark.parametrize(
    ("argv", "environment", "key", "value"),
    [
        (("--must", "0"), {}, "--must", "'0'"),
        (("--must", "x"), {}, "--must", "'x'"),
        (("--must", "1.5"), {}, "--must", "'1.5'"),
        ((), {"APP_MUST": "many"}, "APP_MUST", "'many'"),
        (("--must", "1"), {"APP_WAIT_S": "61"}, "APP_WAIT_S", "'61'"),
        (("--must", "1"), {"APP_WAIT_S": "nan"}, "APP_WAIT_S", "'nan'"),
        (("--must", "1"), {"APP_WAIT_S": "inf"}, "APP_WAIT_S", "'inf'"),
        (("--must", "1"), {"APP_MODE": "ignore"}, "APP_MODE", "'ignore'"),
        (("--must", "1"), {"APP_INSECURE": "perhaps"}, "APP_INSECURE", "'perhaps'"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(argv, environment, key, value):
    with pytest.raises(ConfigError) as caught:
        some(*argv, **environment)
    assert key in str(caught.value)
    assert value in str(caught.value)


def test_a_missing_one_is_named_both_ways():
    with pytest.raises(ConfigError, match="--must or APP_MUST"):
        some()


def test_abbreviations_are_no_flags(capsys):
    with pytest.raises(SystemExit):
        some("--mus", "3")
    assert "unrecognized arguments: --mus" in capsys.readouterr().err


@pytest.mark.parametrize(("settings", "prefix"), [(WorkerSettings, WORKER_PREFIX), (GrammarSettings, GRAMMAR_PREFIX)])
def test_every_setting_shows_its_twin_its_default_and_what_it_is(settings, prefix, capsys):
    with pytest.raises(SystemExit):
        load(settings, prefix, ["--help"], environment={})
    shown = " ".join(capsys.readouterr().out.split())
    for field in msgspec.structs.fields(settings):
        assert f"--{field.name.replace('_', '-')} " in shown
        assert f"[{environment_name(prefix, field.name)}, " in shown
    assert shown.count("VALUE [MASKSTREAM") == 0  # a description stands before each twin


@pytest.mark.parametrize("settings", [WorkerSettings, GrammarSettings])
def test_every_number_has_a_range(settings):
    for field in msgspec.structs.fields(settings):
        kind = msgspec.inspect.type_info(field.type)
        kind = getattr(kind, "type", kind) if isinstance(kind, msgspec.inspect.Metadata) else kind
        if isinstance(kind, (msgspec.inspect.IntType, msgspec.inspect.FloatType)):
            assert kind.ge is not None or kind.gt is not None, field.name


def command():
    flags = Flags("app", "An app.", "APP")
    flags.positional("prompt", "what")
    rivals: list[str] = []
    flags.add("--schema", "a file", rivals=rivals)
    flags.add("--json", "any", rivals=rivals, default=False, action="store_true")
    flags.add("--choice", "several", default=[], action="append")
    flags.add("--wait-s", "patience", type=float, default=2.0)
    flags.add("--engine", "which", choices=("a", "b"), twin="ENGINE")
    return flags


def parse(*argv, **environment):
    return command().parse(["hello", *argv], environment)


def test_flags_order():
    assert parse("--wait-s", "3", APP_WAIT_S="4").wait_s == 3
    assert parse(APP_WAIT_S="4").wait_s == 4
    assert parse().wait_s == 2
    assert parse(ENGINE="b").engine == "b"
    assert parse("--json").json is True
    assert parse(APP_JSON="yes").json is True
    assert parse(APP_JSON="off").json is False
    assert parse("--choice", "x", "--choice", "y, z").choice == ["x", "y, z"]
    assert parse(APP_CHOICE="x\ny, z").choice == ["x", "y, z"]
    assert parse().choice == []


def test_a_flag_that_is_given_beats_the_twin_of_its_rival():
    values = parse("--schema", "f", APP_JSON="true")
    assert values.schema == "f"
    assert not values.json


@pytest.mark.parametrize(("argv", "environment"), [(("--schema", "f", "--json"), {}), ((), {"APP_JSON": "1", "APP_SCHEMA": "f"})])
def test_rivals_exclude_each_other(argv, environment):
    with pytest.raises(ConfigError, match="--schema and --json exclude each other"):
        parse(*argv, **environment)


@pytest.mark.parametrize(("twin", "value"), [("APP_WAIT_S", "soon"), ("APP_JSON", "perhaps"), ("ENGINE", "c")])
def test_a_wrong_twin_is_named_with_its_value(twin, value):
    with pytest.raises(ConfigError) as caught:
        parse(**{twin: value})
    assert twin in str(caught.value)
    assert repr(value) in str(caught.value)


def test_percent_and_finite_floats():
    assert "100% patience" in _help()
    assert not math.isfinite(parse(APP_WAIT_S="inf").wait_s)  # a command's own numbers have no range


def _help():
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        some("--help")
    return out.getvalue()
