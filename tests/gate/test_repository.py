"""Files of a trace as files of the repository: found by their end, or not at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hostgap.gate.repository import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    for name in ("src/model.py", "src/serve/engine.py", "a/util.py", "b/util.py", "top.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
    return Repository(tmp_path)


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("model.py", "src/model.py"),
        ("src/model.py", "src/model.py"),
        ("/builds/42/repo/src/serve/engine.py", "src/serve/engine.py"),
        ("C:\\repo\\src\\serve\\engine.py", "src/serve/engine.py"),
        ("top.py", "top.py"),
        ("util.py", None),  # two of them
        ("a/util.py", "a/util.py"),
        ("/opt/lib/python3.12/model.py", None),  # only its last part agrees
        ("/venv/lib/site-packages/src/model.py", None),
        ("../src/model.py", None),
        ("gone.py", None),
        ("", None),
    ],
)
def test_files(repository: Repository, file: str, found: str | None) -> None:
    assert repository.relative(file) == found


def test_its_own_absolute_paths(repository: Repository) -> None:
    assert repository.relative(str(repository.root / "src" / "model.py")) == "src/model.py"


def test_without_git(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("model.py", "src/model.py"):
        (tmp_path / name).touch()
    assert Repository(tmp_path).relative("model.py") == "model.py"
    assert Repository(tmp_path).relative("/builds/7/src/model.py") == "src/model.py"
    assert Repository(tmp_path).relative("/elsewhere/model.py") is None
