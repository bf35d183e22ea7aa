"""The independent word on a finished text."""

import http.server
import threading

import pytest

from gpu_worker.validator import is_valid
from shared.guide import Guide


@pytest.mark.parametrize(
    ("kind", "guide", "text", "valid"),
    [
        ("json", "", "5", True), ("json", "", "[1, {}]", True), ("json", "", "{", False), ("json", "", "NaN", False),
        ("json", "", '{"a":1,"a":2}', False), ("json", "", "5 x", False), ("json", "", "", False), ("json", "", "Infinity", False),
        ("json_object", "", "{}", True), ("json_object", "", "[]", False),  # spec R4
        ("json_schema", '{"type":"integer","minimum":3}', "3", True), ("json_schema", '{"type":"integer","minimum":3}', "2", False),
        ("json_schema", '{"format":"date"}', '"2024-02-30"', False), ("json_schema", "true", "null", True),
        ("json_schema", '{"const":"é"}', '"\\u00e9"', True), ("json_schema", '{"type":"string"}', "no json", False),
        ("regex", "[a-z]+", "abc", True), ("regex", "[a-z]+", "abc1", False), ("regex", "[a-z]+", "", False),
        ("regex", "a|bc", "bc", True), ("regex", "(?=a)a", "a", None),  # RE2 has no look-ahead: it cannot tell
        ("choice", '["a","b"]', "b", True), ("choice", '["a","b"]', "ab", False),
        ("ebnf", 'root ::= "a"', "a", None), ("lark", 'start: "a"', "a", None), ("structural_tag", "{}", "a", None),
    ],
)  # fmt: skip
def test_judgements(kind, guide, text, valid):  # spec R26
    assert is_valid(Guide(kind=kind, text=guide), text) is valid


def test_deep_text_is_judged_not_crashed_on():
    assert is_valid(Guide(kind="json"), "[" * 100_000 + "]" * 100_000) is False


def test_a_backtracking_regex_takes_no_time():
    assert is_valid(Guide(kind="regex", text="(a*)*(a*)*(a*)*b"), "a" * 20_000) is False


def test_no_document_is_fetched():
    """A schema that names another host must not become a request of the worker."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            return

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        guide = Guide(kind="json_schema", text=f'{{"$ref":"http://127.0.0.1:{server.server_address[1]}/schema.json"}}')
        with pytest.raises(Exception, match="not part of the schema"):
            is_valid(guide, "5")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert asked == []
