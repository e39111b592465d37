"""docs/gate.md says what the code does: its example, its tables, and recipes that can be used."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hostgap.cli import run
from hostgap.gate.metrics import METRICS
from hostgap.gate.settings import parse_budgets, read_settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_every_metric_is_documented_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (max|min) \| (.*) \|$", TEXT, re.MULTILINE)
    assert rows == [(name, metric.bound, metric.meaning) for name, metric in METRICS.items()]


def test_the_configuration_is_one() -> None:
    (text,) = blocks("toml")
    table = tomllib.loads(text)["tool"]["hostgap"]["gate"]
    settings = read_settings(table, "docs/gate.md", Path())
    assert set(settings.budgets) == {
        "sync_calls_per_step",
        "launches_per_step",
        "kernel_utilization",
        "step_time",
    }
    assert len(settings.allow) == 1


def test_the_example_is_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, made in (("eager", "good"), ("eager_item", "new")):
        shutil.copy(ROOT / "sample_traces" / f"{name}.json.gz", f"{made}.json.gz")
    assert run(["gate", "good.json.gz", "--update-baseline"]) == 0
    capsys.readouterr()
    assert run(["gate", "new.json.gz"]) == 1
    example = blocks("")[0].split("$ hostgap gate new.json.gz\n")[1]
    assert capsys.readouterr().out.startswith(example)


def test_the_workflows_name_inputs_that_the_action_has() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    used = 0
    for text in blocks("yaml"):
        workflow = yaml.safe_load(text)
        for step in workflow["jobs"]["gate"]["steps"]:
            if step.get("uses", "").startswith("hostgap/"):
                used += 1
                assert set(step["with"]) <= set(action["inputs"])
                assert parse_budgets(step["with"]["budgets"].splitlines())
    assert used == 1


def test_scripts_and_tests_are_readable() -> None:
    for text in blocks("python"):
        compile(text, "docs/gate.md", "exec")
    for text in blocks("bash"):
        subprocess.run(["bash", "-n", "-c", text], check=True)


def test_the_ini_options_exist(pytestconfig: pytest.Config) -> None:
    from hostgap import pytest_plugin

    source = Path(pytest_plugin.__file__).read_text(encoding="utf-8")
    (text,) = blocks("ini")
    names = re.findall(r"^(hostgap_\w+)", text, re.MULTILINE)
    assert sorted(names) == sorted(re.findall(r'addini\(\s*"(\w+)"', source))
