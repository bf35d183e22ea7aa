"""``maskstream check`` and ``explain`` as a user runs them: real services, real exit codes; the cases of the repository."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vocabularies import qwen

pytestmark = pytest.mark.e2e
CASES = Path(__file__).parents[1] / "cases" / "guides.jsonl"
# id: reason. A case that fails today; it must be taken off this list when it passes.
EXPECTED_TO_FAIL: dict[str, str] = {}


def command(name: str, *arguments: str, text: str = "", timeout_s: float = 170) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shared.cli", name, *arguments], input=text, capture_output=True, text=True, timeout=timeout_s
    )


def write(folder: Path, *cases: dict) -> str:
    file = folder / "cases.jsonl"
    file.write_text("\n".join(json.dumps(case) for case in cases))
    return str(file)


@pytest.fixture(scope="module", params=["bytes", "qwen"])
def results(request: pytest.FixtureRequest) -> dict[str, dict]:
    """Verdicts on all cases, by id, for a vocabulary of single bytes and a real one."""
    tokenizer = "bytes"
    if request.param == "qwen":
        try:
            qwen()
        except FileNotFoundError as error:
            pytest.skip(str(error))
        from gpu_worker.checking.encoders import _shipped_ranks

        ranks = _shipped_ranks()
        assert ranks is not None, "the rank file or tiktoken is not installed"
        tokenizer = str(ranks)
    done = command("check", str(CASES), "--tokenizer", tokenizer, "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    *found, summary = lines
    print(f"\n{'id':<28} {'verdict':<9} {'engine':<11} {'ms':>8}  code")
    for line in sorted(found, key=lambda line: line["id"]):
        code = line.get("error", {}).get("code", line.get("why", ""))
        print(f"{line['id']:<28} {line['verdict']:<9} {line.get('engine', '-'):<11} {line.get('compile_ms', 0):8.1f}  {code}")
    assert done.returncode == (1 if summary["wrong"] else 0)
    return {line["id"]: line for line in found}


@pytest.mark.parametrize("case", [json.loads(line)["id"] for line in CASES.read_text().splitlines()])
def test_case(results: dict[str, dict], case: str) -> None:  # spec R1, R4, R5, 137
    result = results[case]
    if case in EXPECTED_TO_FAIL:
        assert result["verdict"] == "wrong", f"{case} passes now: take it off the list"
        pytest.xfail(EXPECTED_TO_FAIL[case])
    assert result["verdict"] in ("accepted", "refused"), result


def test_wrong_texts_are_found_and_the_exit_says_so(tmp_path: Path) -> None:
    bad = {"id": "bad", "kind": "regex", "guide": "a{3}", "accept": ["aa"], "reject": ["aaa"]}
    must = {"id": "must", "kind": "regex", "guide": "a", "must_refuse": True}
    refused = {"id": "refused", "kind": "regex", "guide": "(a", "accept": []}
    good = {"id": "good", "kind": "regex", "guide": "a{3}", "accept": ["aaa"], "reject": ["aa", "aaaa", "", "é"]}
    done = command("check", write(tmp_path, bad, must, refused, good), "--tokenizer", "bytes", "--jobs", "1", "--json")
    *lines, summary = [json.loads(line) for line in done.stdout.splitlines()]
    found = {line["id"]: line for line in lines}
    assert done.returncode == 1 and (summary["wrong"], summary["accepted"]) == (3, 1)
    assert [(text["text"], text["expected"]) for text in found["bad"]["wrong"]] == [("aa", "accept"), ("aaa", "reject")]
    assert "must be refused" in found["must"]["why"] and found["refused"]["error"]["code"] == "bad_request"


def test_lines_for_people(tmp_path: Path) -> None:
    case = {"id": "named", "kind": "regex", "guide": "a{3}", "accept": ["aaa", "ab"]}
    done = command("check", write(tmp_path, case), "--tokenizer", "bytes", "--jobs", "1")
    assert "wrong" in done.stdout and "accept 'ab'" in done.stdout and "(after 1 tokens)" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 guides: 0 accepted, 0 refused, 1 wrong")


@pytest.mark.parametrize(
    "line", ["{", '{"id": "x"}', '{"id": "x", "kind": "regex", "gide": "a"}', '{"id":"x","kind":"regex","generate":"no:1"}']
)
def test_malformed_file_names_the_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "bad.jsonl").write_text("\n" + line)
    done = command("check", str(tmp_path / "bad.jsonl"), timeout_s=30)
    assert done.returncode == 2 and "bad.jsonl:2" in done.stderr


def test_missing_tokenizer_is_named(tmp_path: Path) -> None:
    done = command("check", str(CASES), "--tokenizer", str(tmp_path / "none.json"), timeout_s=30)
    assert done.returncode == 2 and "none.json" in done.stderr


def test_explain_says_engine_and_cost(tmp_path: Path) -> None:
    file = tmp_path / "person.json"
    file.write_text('{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
    done = command("explain", str(file), "--tokenizer", "bytes", "--json")
    facts = json.loads(done.stdout)
    assert done.returncode == 0 and facts["guide"] == "json_schema" and facts["first_row_tokens"] == 1
    assert facts["engine"].split()[0] in ("xgrammar", "llguidance") and facts["compile_ms"] > 0


def test_explain_refuses_with_pointer() -> None:  # spec R1
    schema = '{"type": "object", "properties": {"a": {"$ref": "http://example.com/x"}}}'
    done = command("explain", "-", "--kind", "json_schema", "--tokenizer", "bytes", text=schema)
    assert done.returncode == 1 and "#/properties/a" in done.stdout
