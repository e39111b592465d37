"""`hostgap analyze` of a run directory, and with the unprofiled step of any trace."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hostgap.cli import run
from hostgap.diagnosis.run import diagnose_run
from hostgap.profiling.measurement import Estimate, Pass
from tests.rules.check import SAMPLES, measurement

TRACE = SAMPLES / "eager_item.json.gz"
STEP_NS = 20_031_800.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run directory with the trace of a bundled sample."""
    made = tmp_path / "run"
    made.mkdir()
    shutil.copy(TRACE, made / "cpu_cuda.json.gz")
    step = Estimate(median_ns=35e6, low_ns=35e6, high_ns=35e6)
    passes = [Pass(mode="cpu+cuda", file="cpu_cuda.json.gz", step=step)]
    written = measurement(step_ns=STEP_NS, span_ns=2.6e6, passes=passes)
    (made / "measurement.json").write_bytes(msgspec.json.encode(written))
    return made


def change(folder: Path, how: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "measurement.json"
    document = json.loads(path.read_text())
    how(document)
    path.write_text(json.dumps(document))


def test_a_run_directory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(folder), "--format", "json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["saving_basis"] == "calibrated"
    assert written["unprofiled"]["step_ns"] == STEP_NS
    assert written["unprofiled"]["exposed_idle_ns"] == pytest.approx(STEP_NS - 2.6e6)
    assert "HG508" not in [entry["code"] for entry in written["not_applicable"]]
    assert diagnose_run(folder).unprofiled is not None
    assert run(["analyze", str(folder)]) == 0
    assert "of the unprofiled step: 17.4 of 20.0 ms" in capsys.readouterr().out


def test_the_unprofiled_step_of_a_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["analyze", str(TRACE), "--format", "json", "--unprofiled-step-ms", "20.03"]) == 0
    option = json.loads(capsys.readouterr().out)
    assert option["unprofiled"]["step_ns"] == 20_030_000
    monkeypatch.setenv("HOSTGAP_UNPROFILED_STEP_MS", "20.03")
    assert run(["analyze", str(TRACE), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == option


def test_the_step_in_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostgap.toml").write_text("unprofiled-step-ms = 20.03\n")
    monkeypatch.chdir(tmp_path)
    assert run(["analyze", str(TRACE.resolve()), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["saving_basis"] == "calibrated"


@pytest.mark.parametrize("value", ["0", "-3", "nan", "inf", "fast"])
def test_a_step_that_is_none(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(TRACE), "--unprofiled-step-ms", value]) == 2
    error = capsys.readouterr().err
    assert "unprofiled-step-ms" in error
    assert len(error.splitlines()) <= 2


def test_a_run_directory_has_its_own_step(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["analyze", str(folder), "--unprofiled-step-ms", "3"]) == 2
    assert "holds the step that was measured" in capsys.readouterr().err
    monkeypatch.setenv("HOSTGAP_UNPROFILED_STEP_MS", "3")
    assert run(["analyze", str(folder), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["unprofiled"]["step_ns"] == STEP_NS


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "corrupt": (lambda f: (f / "measurement.json").write_text("{"), "not JSON"),
    "other schema": (lambda f: change(f, lambda d: d.update(schema="x/9")), "schema 'x/9'"),
    "a figure is text": (
        lambda f: change(f, lambda d: d["timing"]["step"].update(median_ns="long")),
        "timing.step.median_ns",
    ),
    "no time": (
        lambda f: change(f, lambda d: d["timing"]["step"].update(low_ns=-1, median_ns=-1)),
        "no time",
    ),
    "no span": (lambda f: change(f, lambda d: d.update(span_ns=-1e9)), "span_ns is -1e+09"),
    "a name that none can be": (
        lambda f: change(f, lambda d: d["passes"][0].update(file="a\0b")),
        "no name of a file",
    ),
    "a name that is too long": (
        lambda f: change(f, lambda d: d["passes"][0].update(file="a" * 5000)),
        "no name of a file",
    ),
    "no trace": (lambda f: (f / "cpu_cuda.json.gz").unlink(), "is missing"),
    "no pass": (lambda f: change(f, lambda d: d.update(passes=[])), "no pass recorded"),
    "outside": (
        lambda f: change(f, lambda d: d["passes"][0].update(file="../secret.json")),
        "outside its folder",
    ),
    "a link that leads outside": (
        lambda f: (
            (f / "cpu_cuda.json.gz").unlink(),
            (f / "cpu_cuda.json.gz").symlink_to(TRACE.resolve()),
        ),
        "outside its folder",
    ),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_run_directories(fault: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, said = BAD[fault]
    damage(folder)
    assert run(["analyze", str(folder)]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert len(captured.err.splitlines()) <= 2


@pytest.mark.parametrize("ns", [1e300, 1e-300, -1.0, 2.0**61])
@pytest.mark.parametrize("step_ns", [3e6, 1e15])
@pytest.mark.parametrize("trace", ["eager", "cuda_graph"])
def test_calls_that_take_no_such_time(
    trace: str, step_ns: float, ns: float, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def damage(document: dict[str, Any]) -> None:
        document["timing"]["step"] = {"median_ns": step_ns, "low_ns": step_ns, "high_ns": step_ns}
        document["graphs"] = [{"call_ns": ns, "span_ns": ns}]
        document["inflation"] = [
            {"what": "eager launch", "nodes": None, "unprofiled_ns": ns, "cuda_ns": None}
            | {"cpu_cuda_ns": 1.0}
        ]

    (folder / "cpu_cuda.json.gz").write_bytes((TRACE.parent / f"{trace}.json.gz").read_bytes())
    change(folder, damage)
    assert run(["analyze", str(folder)]) == 0
    assert capsys.readouterr().err == ""


def test_a_step_that_cannot_hold_its_kernels_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = str(SAMPLES / "eager_item.json.gz")
    assert run(["analyze", trace, "--unprofiled-step-ms", "0.5"]) == 2
    assert "0.5 ms cannot hold its kernels, which take 2.42 ms" in capsys.readouterr().err
    assert run(["analyze", trace, "--unprofiled-step-ms", "2.5"]) == 0
