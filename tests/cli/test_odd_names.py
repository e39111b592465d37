"""Files whose names are not UTF-8, in every command and format that shows a name."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hostgap.cli import run

SAMPLES = Path(__file__).parents[2] / "sample_traces"
ODD = "x\udcff.json.gz"  # the byte FF, as Python holds it

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names are text elsewhere")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    shutil.copy(SAMPLES / "eager.json.gz", ODD)


def read(path: str) -> str:
    """The text of a file, which must be of its kind."""
    data = Path(path).read_bytes()
    if path.endswith((".json", ".sarif")):
        json.loads(data)
    if path.endswith(".xml"):
        ET.fromstring(data)
    return data.decode("utf-8")


@pytest.mark.parametrize("ending", ["json", "md", "txt", "sarif", "xml"])
def test_gate(ending: str) -> None:
    Path("odd").mkdir()
    baseline = "odd/\udcff.json"
    assert run(["gate", ODD, "--baseline", baseline, "--update-baseline"]) == 0
    out = f"out.{ending}"
    assert run(["gate", ODD, "--baseline", baseline, "--canary", "-o", out]) == 0
    read(out)
    assert run(["gate", ODD, "--baseline", baseline, "--format", "github"]) == 0


@pytest.mark.parametrize("ending", ["json", "md", "txt"])
def test_compare(ending: str) -> None:
    assert run(["compare", ODD, ODD, "-o", f"out.{ending}"]) == 0
    read(f"out.{ending}")


@pytest.mark.parametrize("ending", ["json", "md", "txt", "html"])
def test_ranks(ending: str) -> None:
    Path("ranks").mkdir()
    for rank in (0, 1):
        sample = SAMPLES / f"tp_host_work_rank{rank}.json.gz"
        shutil.copy(sample, Path("ranks") / f"\udcff_{rank}.json.gz")
    Path("ranks", "none\udcff.json").write_bytes(b"{}")
    assert run(["analyze", "ranks", "-o", f"out.{ending}"]) == 0
    text = read(f"out.{ending}")
    if ending == "json":
        assert [one["file"] for one in json.loads(text)["ranks"]] == [
            "ranks/?_0.json.gz",
            "ranks/?_1.json.gz",
        ]
    if ending == "html":
        assert "No timeline" not in text


def test_tables() -> None:
    pytest.importorskip("pyarrow")
    folder = "t\udcff"
    assert run(["tables", ODD, "-o", folder]) == 0
    assert Path(folder, "gpu_ops.parquet").stat().st_size > 0
