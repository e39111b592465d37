"""`hostgap fix` and its reports, without a GPU."""

from __future__ import annotations

import io
import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from hostgap.cli import fix
from hostgap.errors import ConfigError, HostgapError
from hostgap.fixes import published
from hostgap.fixes.ladder import ClimbOptions, climb
from hostgap.fixes.report import FixReport, Rung
from hostgap.output.fix_markdown import render_fix_json, render_fix_markdown
from hostgap.output.fix_text import render_fix_text
from hostgap.profiling.bench import Proof, Variant
from hostgap.profiling.measurement import Environment
from tests.fixes.simulated import MS, Machine, Sim, fixes_of

ENVIRONMENT = Environment(
    gpu="NVIDIA H200",
    driver="570.1",
    torch="2.11.0",
    cuda="12.8",
    python="3.12.1",
    hostgap="0",
    cpus=16,
    sm_mhz=1980,
    memory_mhz=3201,
)


def times(v: Variant) -> tuple[float, float]:
    graphed = any("cuda-graph" in name for name in v.fixes)
    return (0.5 if graphed else 22.0) * MS, (0.9 if "compile+cuda-graph" in v.fixes else 2.2) * MS


def machine() -> Machine:
    return Machine(
        times,
        lambda v: {} if v.fixes else {"HG201": 19.0 * MS, "HG202": 10.0 * MS, "HG501": 5.0 * MS},
        fails=lambda v: (
            "cuda-graph-regions: no layers" if "cuda-graph-regions" in v.fixes else None
        ),
        wrong=lambda v: "case 1, step 3: 5 instead of 7" if "gc-freeze" in v.fixes else None,
    )


def ladder() -> FixReport:
    made = machine()
    fixes = fixes_of(
        Sim("gc-freeze", ("HG501",)),
        Sim("cuda-graph-regions", ("HG201",), execution=1, captures=True),
        Sim("cuda-graph", ("HG201",), execution=2, captures=True),
        Sim("compile+cuda-graph", ("HG202",), execution=3, speeds_kernels=True),
        Sim("async-output", ("HG102",)),
    )
    report = climb(made, made.diagnose, Variant(), fixes, ClimbOptions(forced=True), lambda _: None)
    return msgspec.structs.replace(
        report, target="decoder", environment=ENVIRONMENT, options={"preset": "small", "batch": 1}
    )


def text_of(report: FixReport) -> str:
    out = io.StringIO()
    render_fix_text(report, out, color=False)
    return out.getvalue()


def test_text_says_the_gain_first_and_fits_80_columns() -> None:
    shown = text_of(ladder())
    first, second, *_ = shown.splitlines()
    assert first.startswith("Step 22.")
    assert "x as fast (" in first
    assert second.startswith("decoder · preset small · batch 1 · NVIDIA H200 · torch 2.11.0")
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "cuda-graph-regions failed: no layers" in shown
    assert "gc-freeze rolled back: output differs: case 1, step 3: 5 instead of 7" in shown
    assert "proof: 32 steps of 4 cases, 128 of 128 integers exact" in shown
    assert "cost capture 12 ms" in shown


def test_every_format_renders_every_ending() -> None:
    report = ladder()
    for status in ("complete", "out-of-time", "interrupted", "failed", "dry-run"):
        changed = msgspec.structs.replace(report, status=status, problem="why | so [red]")
        assert "why | so [red]" in text_of(changed)
        assert "why \\| so \\[red\\]" in render_fix_markdown(changed)
        assert msgspec.json.decode(render_fix_json(changed), type=FixReport) == changed
    nothing = msgspec.structs.replace(report, rungs=report.rungs[:1], overall=None)
    assert text_of(nothing).startswith("No fix made the step faster")


def test_control_characters_are_shown_escaped_and_near_ties_are_told() -> None:
    proof = Proof(True, 90, 4, 89, 90, 0.004, 0.02)
    rung = Rung(
        name="x\x1b[31m", title="t\x07", status="kept", why="", variant=Variant(), proof=proof
    )
    report = msgspec.structs.replace(ladder(), rungs=[rung])
    for shown in (text_of(report), render_fix_markdown(report)):
        assert "\x1b" not in shown
        assert "\x07" not in shown
    assert "89 of 90 integers exact (the others near ties" in " ".join(text_of(report).split())


def invoke(*args: object) -> Result:
    return CliRunner().invoke(
        fix.command, [str(arg) for arg in args], standalone_mode=False, catch_exceptions=True
    )


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fix, "_has_cuda", lambda: False)


def test_without_a_gpu_it_says_so_and_shows_what_an_h200_gave(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "published", lambda: [ladder()])
    done = invoke()
    assert done.return_value == 2
    assert done.stderr.splitlines() == [
        "hostgap: no CUDA device here: `fix` measures on one.",
        "What an H200 gave:",
    ]
    assert done.stdout.startswith("Step 22.")
    asked = invoke("--published")
    assert asked.return_value == 0
    assert asked.stdout == done.stdout


def test_without_anything_published(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "published", list)
    assert invoke().return_value == 2
    assert isinstance(invoke("--published").exception, HostgapError)


def test_published_ladders_are_told_by_their_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "h200"
    folder.mkdir()
    (folder / "small.json").write_bytes(render_fix_json(ladder()))
    (folder / "other.json").write_text(json.dumps({"schema": "hostgap.measurement/1"}))
    (folder / "notes.md").write_text("no ladder")
    monkeypatch.setattr(published.resources, "files", lambda _: tmp_path)
    assert [report.target for report in published.published()] == ["decoder"]


class Workers(Machine):
    """The simulated machine in the place of the real one."""

    class welcome:  # noqa: N801
        environment = ENVIRONMENT
        defects = ("eos_read",)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Machine:
    from hostgap.fixes import diagnosing
    from hostgap.profiling import worker

    base = machine()
    made = Workers(base.times, base.findings, fails=base.fails, wrong=base.wrong)

    @contextmanager
    def open_bench(*_: Any) -> Any:
        yield made

    class Diagnoser:
        def __init__(self, _: Environment) -> None: ...

        diagnose = staticmethod(made.diagnose)
        kernels = staticmethod(lambda _: {})

    monkeypatch.setattr(fix, "_has_cuda", lambda: True)
    monkeypatch.setattr(worker, "open_bench", open_bench)
    monkeypatch.setattr(diagnosing, "Diagnoser", Diagnoser)
    pytest.importorskip("torch", reason="torch is not installed")
    return made


def test_a_climb_writes_what_was_asked_for(simulated: Machine, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.json", "a.md", "a.txt")]
    args = [arg for file in files for arg in ("-o", file)]
    done = invoke(*args, "--only", "gc-freeze,cuda-graph")
    assert done.return_value == 0, done.exception
    assert done.stdout == ""
    report = msgspec.json.decode(files[0].read_bytes(), type=FixReport)
    assert [rung.name for rung in report.rungs] == ["start", "gc-freeze", "cuda-graph"]
    assert report.environment == ENVIRONMENT
    assert report.options == {"batch": 1, "steps": 30, "repeat": 10, "preset": "small"}
    assert isinstance(invoke(*args).exception, HostgapError)  # they exist
    assert invoke(*args, "--force", "--skip", "gc-freeze").return_value == 0
    skipped = msgspec.json.decode(files[0].read_bytes(), type=FixReport)
    assert "gc-freeze" not in {rung.name for rung in skipped.rungs}


def test_interrupted_and_failed_climbs_still_report(simulated: Machine) -> None:
    for error, code in ((KeyboardInterrupt(), 130), (HostgapError("died"), 2)):

        def stop(*_: object, error: BaseException = error) -> Any:
            raise error

        simulated.compare = stop  # type: ignore[method-assign]
        done = invoke("--only", "cuda-graph")
        assert done.return_value == code
        assert "Ended early" in done.stdout


def test_bad_options(simulated: Machine, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    for args, error in (
        (("--only", "cuda-grahp"), ConfigError),
        (("--only", ","), click.UsageError),
        (("-o", "x.pdf"), click.UsageError),
        (("--tolerance", "2"), click.UsageError),
        (("no-such-target",), ConfigError),
        ((script,), ConfigError),
    ):
        assert isinstance(invoke(*args).exception, error), args
