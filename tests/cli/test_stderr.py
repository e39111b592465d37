"""A stderr that cannot be written: the exit code is the command's own all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACE = str(ROOT / "sample_traces" / "eager.json.gz")
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
COMMANDS = [
    (["analyze", TRACE, "-o", "q.md", "--force"], 0),
    (["analyze", "none.json"], 2),
    (["gate", TRACE, "--budget", "x=0"], 2),
    (["nonsense"], 2),
]


def code(command: list[str], stderr: int, cwd: Path, env: dict[str, str]) -> int:
    return subprocess.run(
        [sys.executable, "-m", "hostgap", *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        check=False,
    ).returncode


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("env", [{}, ASCII, {"PYTHONUNBUFFERED": "1"}], ids=str)
@pytest.mark.parametrize(("command", "expected"), COMMANDS)
def test_full_disk(command: list[str], expected: int, env: dict[str, str], tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        assert code(command, full.fileno(), tmp_path, env) == expected


@pytest.mark.parametrize(("command", "expected"), COMMANDS)
def test_reader_that_has_gone(command: list[str], expected: int, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert code(command, writer, tmp_path, {}) == expected
    finally:
        os.close(writer)
