"""The rules of the house, read off the sources: who imports whom, what is banned, how large a file may be."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("shared", "grammar_service", "gpu_worker", "kernels")
ENGINES = {"xgrammar", "llguidance"}
FORBIDDEN = {
    "shared": {"torch", "transformers", "cuda", "grammar_service", "gpu_worker", "kernels"} | ENGINES,
    "grammar_service": {"torch", "transformers", "cuda", "gpu_worker", "kernels"},
    "gpu_worker": {"grammar_service"} | ENGINES,
    "kernels": {"grammar_service", "gpu_worker", "transformers", "zmq"} | ENGINES,
}
# Which extras a package may lean on, beside the project's own dependencies.
EXTRAS = {
    "shared": {"demo"},
    "grammar_service": {"grammar"},
    "gpu_worker": {"worker", "gpu", "demo"},
    "kernels": {"worker", "gpu"},
}
NO_DEPS = {"xgrammar"}
BANNED_MODULES = {"pickle", "dill", "cloudpickle", "diskcache", "marshal", "shelve"}
BANNED_CALLS = {"recv_pyobj", "send_pyobj", "eval", "exec"}
# Decisions are pure: no socket, no thread, no clock of the machine.
PURE = [
    *(f"grammar_service/{name}.py" for name in ("sessions", "walks")),
    *(f"gpu_worker/{name}.py" for name in ("scheduler", "sequence")),
    *(
        f"gpu_worker/grammar_link/{name}.py"
        for name in ("answers", "compiling", "dispatch", "placement", "plans", "quarantine", "router", "services")
    ),
    *(f"gpu_worker/grammar_link/{name}.py" for name in ("session_desk", "sessions", "validation", "walks")),
]
IMPURE = {"zmq", "asyncio", "socket", "threading", "time", "os", "subprocess", "random"}

DISTRIBUTIONS = packages_distributions()
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
ids = [str(path.relative_to(ROOT)) for path in SOURCES]
every_source = pytest.mark.parametrize("path", SOURCES, ids=ids)


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(ast.parse(path.read_text()))}


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def fresh(code: str) -> str:
    """Runs code in a new interpreter; what it prints."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_there_is_a_house():
    assert {package_of(path) for path in SOURCES} == set(PACKAGES)
    assert all((ROOT / package / "py.typed").is_file() for package in PACKAGES)


@every_source
def test_imports_keep_to_the_house(path):
    assert not tops(path) & FORBIDDEN[package_of(path)]


@every_source
def test_every_import_is_declared(path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for name in EXTRAS[package_of(path)] for line in project["optional-dependencies"][name]]
    declared = {_normal(re.split(r"[<>=\[; ]", line)[0]) for line in project["dependencies"] + extras} | NO_DEPS
    theirs = tops(path) - set(sys.stdlib_module_names) - set(PACKAGES)
    undeclared = {top for top in theirs if not declared & {_normal(name) for name in DISTRIBUTIONS.get(top, [top])}}
    undeclared -= {"cuda"} if "cuda-python" in declared else set()
    assert not undeclared


def test_what_tests_and_benchmarks_import_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + [line for extra in project["optional-dependencies"].values() for line in extra]
    declared = {_normal(re.split(r"[<>=\[; ]", line)[0]) for line in lines} | NO_DEPS
    paths = [path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    theirs = {top for path in paths for top in tops(path)} - set(sys.stdlib_module_names) - {*PACKAGES, "cuda"}
    ours = {"tests", "benchmarks"} | {path.stem for path in paths}
    missing = {top for top in theirs - ours if not declared & {_normal(n) for n in DISTRIBUTIONS.get(top, [top])}}
    assert missing == set()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@every_source
def test_nothing_banned(path):
    tree = ast.parse(path.read_text())
    called = {name for name in calls(tree) if name in BANNED_CALLS}
    # A model is put into inference mode by a method of that name.
    called -= {"eval"} if ".eval()" in path.read_text() else set()
    assert not called
    assert not tops(path) & BANNED_MODULES


@every_source
def test_checks_raise_and_errors_are_not_swallowed(path):
    text = path.read_text()
    lines, nodes = text.splitlines(), list(ast.walk(ast.parse(text)))
    asserts = [node.lineno for node in nodes if isinstance(node, ast.Assert)]
    # An error that is passed over has its reason beside it.
    silent = [
        node.lineno
        for node in nodes
        if isinstance(node, ast.ExceptHandler)
        and all(isinstance(statement, ast.Pass) for statement in node.body)
        and not any("#" in line for line in lines[node.lineno - 1 : node.end_lineno])
    ]
    assert (asserts, silent) == ([], [])


@every_source
def test_sizes(path):
    text = path.read_text()
    lengths = {
        node.name: (node.end_lineno or 0) - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert text.count("\n") <= 300
    assert {name: length for name, length in lengths.items() if length > 60} == {}


@every_source
def test_every_module_says_what_it_is(path):
    assert path.stat().st_size == 0 or ast.get_docstring(ast.parse(path.read_text()))


@every_source
def test_socket_options_are_set_in_one_place(path):
    if path != ROOT / "shared" / "sockets.py":
        assert not {"setsockopt", "set_hwm", "setsockopt_string"} & set(calls(ast.parse(path.read_text())))


@pytest.mark.parametrize("name", PURE)
def test_decisions_are_pure(name):
    assert not tops(ROOT / name) & IMPURE


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("kernels", {"torch", "cuda", "numpy"}),
        ("shared.cli", {"torch", "zmq", "numpy", "pydantic", "transformers"}),
        ("shared.protocol", {"torch", "pydantic"}),
        ("gpu_worker", {"torch", "transformers", "zmq"}),
        ("grammar_service", {"torch", "xgrammar", "llguidance", "zmq"}),
    ],
)
def test_import_is_light(module, heavy):
    loaded = fresh(f"import {module}, sys; print(*sys.modules)").split()
    assert not {name.split(".")[0] for name in loaded} & heavy


def test_the_project_speaks_of_itself_alone():
    told = re.compile(r"/wo[r]k/|workpl[a]ce|colleag[u]e|clau[d]e|anthrop[i]c|\bassist[a]nt's session", re.IGNORECASE)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        text = path.read_text(errors="replace") if path.is_file() else ""
        found += [f"{name}: {match.group()}" for match in told.finditer(text)]
        if "../share" + "d" in text and name != ".ci/run":
            found.append(f"{name}: names a folder outside the project")
    assert found == []


def test_version_stays_clear_of_the_other_kernels_package():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert not (0, 18, 2) <= tuple(int(part) for part in version.split(".")) < (0, 20, 0)
