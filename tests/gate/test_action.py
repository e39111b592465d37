"""The GitHub Action: its script run as the runner would, and nothing of its inputs in a script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"


@pytest.fixture(scope="module")
def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
    return found


def gate(action: dict[str, Any], folder: Path, **inputs: str) -> tuple[int, str, dict[str, str]]:
    """Run the action's second step; its exit code, its log and the files the runner would read."""
    (step,) = [step for step in action["runs"]["steps"] if step.get("id") == "gate"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOSTGAP")}
    for name, text in step["env"].items():
        key = re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", text)
        assert key, text
        env[name] = inputs.get(key[1], str(action["inputs"][key[1]].get("default", "")))
    files = {name: folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    env |= {name: str(path) for name, path in files.items()}
    env |= {"ACTION_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    env |= {"GITHUB_WORKSPACE": str(folder)}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    read = {name: path.read_text() if path.exists() else "" for name, path in files.items()}
    return done.returncode, done.stdout + done.stderr, read


def test_every_input_has_a_description(action: dict[str, Any]) -> None:
    for name, given in action["inputs"].items():
        assert given["description"].endswith((".", ")", "made.")), name
    assert action["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" for step in action["runs"]["steps"])


def test_no_input_is_text_of_a_script(action: dict[str, Any]) -> None:
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"]


def test_a_failing_gate(action: dict[str, Any], tmp_path: Path) -> None:
    budgets = "sync_calls_per_step=0\n\nlaunches_per_step=2000\n"
    new = str(SAMPLES / "eager_item.json.gz")
    code, log, files = gate(
        action, tmp_path, new=new, budgets=budgets, sarif="r.sarif", junit="r.xml", canary="true"
    )
    assert code == 1, log
    assert "::error title=hostgap gate%3A sync_calls_per_step::" in log
    assert "note: HOSTGAP" not in log
    assert files["GITHUB_OUTPUT"] == "exit-code=1\n"
    assert files["GITHUB_STEP_SUMMARY"].startswith("### Gate failed")
    assert (tmp_path / "r.sarif").is_file()
    assert (tmp_path / "r.xml").is_file()


def test_a_passing_gate(action: dict[str, Any], tmp_path: Path) -> None:
    new = str(SAMPLES / "eager.json.gz")
    code, log, files = gate(action, tmp_path, new=new, budgets="sync_calls_per_step=0")
    assert code == 0, log
    assert files["GITHUB_OUTPUT"] == "exit-code=0\n"


def test_inputs_are_not_run(action: dict[str, Any], tmp_path: Path) -> None:
    nasty = "$(touch owned); `touch owned`; '\" touch owned"
    code, _, files = gate(action, tmp_path, new=nasty, budgets=nasty, sarif=nasty)
    assert code == 2
    assert files["GITHUB_OUTPUT"] == "exit-code=2\n"
    assert not (tmp_path / "owned").exists()
