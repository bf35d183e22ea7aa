"""ARCHITECTURE.md and SECURITY.md against the tree and the settings: modules and limits are those that are there."""

import re
from pathlib import Path

import msgspec
import pytest

from gpu_worker.config import WorkerSettings
from grammar_service.config import GrammarSettings
from grammar_service.limits import DEFAULTS
from shared.sampling_params import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("shared", "grammar_service", "gpu_worker", "kernels")
SECURITY = (ROOT / "SECURITY.md").read_text()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_has_its_line(package):
    part = (ROOT / "ARCHITECTURE.md").read_text().split(f"**{package}/**")[1].split("\n**")[0]
    listed = re.findall(r"^- `([\w.]+/?)` \S", part, re.MULTILINE)
    there = {path.name for path in (ROOT / package).glob("*.py")} - {"__init__.py"}
    there |= {f"{path.name}/" for path in (ROOT / package).iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert sorted(listed) == sorted(there)


def test_the_life_of_a_request_has_eight_steps():
    text = (ROOT / "ARCHITECTURE.md").read_text().split("## Life of a request")[1].split("## Modules")[0]
    assert re.findall(r"^(\d)\. \*\*", text, re.MULTILINE) == list("12345678")


def table(heading):
    part = SECURITY.split(heading)[1].split("\n\n", 2)[1]
    return dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", part, re.MULTILINE))


def test_limits_of_a_guide():
    assert table("Of a guide") == {name: str(value) for name, value in DEFAULTS._asdict().items()}


def test_limits_of_the_processes():
    defaults = {f.name: f.default for cls in (WorkerSettings, GrammarSettings) for f in msgspec.structs.fields(cls)}
    listed = table("Of processes")
    assert len(listed) > 10
    assert listed == {name: str(defaults[name]) for name in listed}


@pytest.mark.parametrize(
    ("field", "least_that_is_refused"),
    [
        ("n", 9),
        ("stop", ["a"] * 17),
        ("stop_token_ids", [0] * 129),
        ("logit_bias", {str(i): 0.0 for i in range(1025)}),
        ("logprobs", 21),
    ],
)
def test_limits_of_a_request(field, least_that_is_refused):
    limit = least_that_is_refused - 1 if isinstance(least_that_is_refused, int) else len(least_that_is_refused) - 1
    assert f"{limit:,} " in SECURITY.split("Of a request")[1]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({field: least_that_is_refused}, SamplingParams)
