"""The maskstream command: every subcommand says what it takes, and no --help waits for a library."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shared import cli
from shared.commands import generate

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "torch",
    "pydantic",
    "transformers",
    "zmq",
    "asyncio",
    "xgrammar",
    "llguidance",
    "jsonschema_rs",
    "prometheus_client",
    "rich",
)
SHOW = """
import sys
from shared import cli
try:
    cli.main({argv!r})
except SystemExit as end:
    assert end.code == 0, end.code
import json
print("\\0" + json.dumps(sorted(sys.modules)))
"""


def run(*argv, **environment):
    """Exit status, standard output, standard error of a real process."""
    done = subprocess.run(
        [sys.executable, "-m", "shared.cli", *argv],
        cwd=ROOT,
        env={"PATH": "", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module", params=sorted(cli.COMMANDS))
def help_of(request):
    """(name, help text, modules loaded to show it)"""
    code = SHOW.format(argv=[request.param, "--help"])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"COLUMNS": "400"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    text, _, modules = done.stdout.partition("\0")
    return request.param, text, set(json.loads(modules))


def test_help_loads_nothing_heavy(help_of):
    _, _, modules = help_of
    assert modules & set(HEAVY) == set()


def test_every_flag_shows_its_environment_twin(help_of):
    name, text, _ = help_of
    entries = re.split(r"^  (--[a-z-]+)", text.split("-h, --help")[-1], flags=re.MULTILINE)[1:]
    twins = {
        flag: re.findall(r"\[(MASKSTREAM_[A-Z_]+)[\],]", entry) for flag, entry in zip(entries[::2], entries[1::2], strict=True)
    }
    assert len(twins) > 2
    assert [flag for flag, found in twins.items() if len(found) != 1] == []
    assert len({found[0] for found in twins.values()}) == len(twins)
    assert f"usage: maskstream {name}" in text


def test_the_usage_names_every_command():
    status, out, _ = run("--help")
    assert status == 0
    assert all(re.search(rf"^  {re.escape(name)} +\w", out, re.MULTILINE) for name in cli.COMMANDS)


def test_wrong_calls():
    status, out, err = run("genrate")
    assert (status, out) == (2, "")
    assert "'genrate'; one of generate, worker" in err
    assert run()[0] == 2
    assert run("generate", "--nonsense", "x")[0] == 2


def test_version():
    status, out, _ = run("--version")
    assert status == 0
    assert re.fullmatch(r"maskstream \d+\.\d+\.\d+\S*\n", out)


@pytest.mark.parametrize(
    ("argv", "environment", "key", "value"),
    [
        (("worker", "--max-slots", "many"), {}, "--max-slots", "many"),
        (("worker",), {"MASKSTREAM_WORKER_HOLD_AFTER_S": "-1"}, "MASKSTREAM_WORKER_HOLD_AFTER_S", "-1"),
        (("grammar-service", "--metrics-port", "99999"), {}, "--metrics-port", "99999"),
        (("grammar-service",), {"MASKSTREAM_GRAMMAR_CACHE_BYTES": "1GB"}, "MASKSTREAM_GRAMMAR_CACHE_BYTES", "1GB"),
        (("generate", "x"), {"MASKSTREAM_GENERATE_TOP_K": "few"}, "MASKSTREAM_GENERATE_TOP_K", "few"),
        (("health",), {"MASKSTREAM_HEALTH_TIMEOUT_S": "long"}, "MASKSTREAM_HEALTH_TIMEOUT_S", "long"),
        (("demo",), {"MASKSTREAM_DEMO_SERVICES": "two"}, "MASKSTREAM_DEMO_SERVICES", "two"),
    ],
)
def test_a_wrong_setting_stops_the_start(argv, environment, key, value):
    status, out, err = run(*argv, **environment)
    assert (status, out) == (2, "")
    assert key in err
    assert value in err
    assert "Traceback" not in err


def request_of(*argv):
    return generate._request(generate._flags("x").parse(["hello", *argv], {}))


def test_generate_makes_the_request_of_its_flags(tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    request = request_of(
        "--schema", str(schema), "--engine", "xgrammar", "--seed", "0", "--param", 'stop=["a"]', "--param", "min_p=0.1"
    )
    assert request["structured_outputs"] == {"json": '{"type": "object"}', "engine": "xgrammar"}
    assert (request["seed"], request["stop"], request["min_p"]) == (0, ["a"], 0.1)
    assert request["messages"] == [{"role": "user", "content": "hello"}]
    assert request_of("--raw")["prompt"] == "hello"
    assert request_of("--choice", "a", "--choice", "b")["structured_outputs"] == {"choice": ["a", "b"]}
    assert request_of("--json")["structured_outputs"] == {"any_json": True}
    assert request_of("--regex", "")["structured_outputs"] == {"regex": ""}
    assert "structured_outputs" not in request_of()


def test_generate_with_tools_and_a_thought(tmp_path):  # spec 11 12 13
    file = tmp_path / "tools.json"
    file.write_text('[{"type": "function", "function": {"name": "f"}}]')
    request = request_of("--tools", str(file), "--tool-choice", "f", "--reasoning-end", "</think>", "--thinking-token-budget", "9")
    assert request["tools"] == [{"type": "function", "function": {"name": "f"}}]
    assert request["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert (request["reasoning"], request["thinking_token_budget"]) == ({"end": "</think>"}, 9)
    assert request_of("--tools", str(file))["tool_choice"] is None
    assert request_of("--tools", str(file), "--tool-choice", "required")["tool_choice"] == "required"
    file.write_text("not json")
    assert "is not JSON" in run("generate", "hello", "--tools", str(file))[2]


def test_generate_without_a_worker():
    status, out, err = run("generate", "hello", "--worker", "tcp://127.0.0.1:1")
    assert (status, out) == (1, "")
    assert "worker_lost" in err


def test_a_file_that_is_not_there():
    status, _, err = run("generate", "hello", "--schema", "/nowhere.json")
    assert status == 2
    assert "/nowhere.json" in err


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x"])
def test_health_asks_http_alone(url):
    status, out, err = run("health", "--grammar", url)
    assert (status, out) == (2, "")
    assert url in err
