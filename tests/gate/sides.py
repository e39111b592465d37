"""Subjects, settings and results for the gate's tests, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hostgap.gate import model as g
from hostgap.gate.baseline import Entry, entry_of
from hostgap.gate.judge import gate
from hostgap.gate.settings import read_settings
from hostgap.gate.subject import Subject, choose_class, load_subject
from hostgap.profiling.measurement import Measurement
from tests.profiling.build import estimate, measurement

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"


def sample(name: str) -> Subject:
    """A bundled trace as a subject."""
    return load_subject(SAMPLES / name)


def entry(subject: Subject, **key: Any) -> Entry:
    """What a subject would add to a baseline, perhaps under another key."""
    assert subject.diagnosis is not None
    step = choose_class(subject.diagnosis, None)
    assert step is not None
    made = entry_of(subject, step)
    return msgspec.structs.replace(made, key=msgspec.structs.replace(made.key, **key))


def judged(subject: Subject, entries: list[Entry] | None = None, **table: Any) -> g.GateResult:
    """The gate's result by a configuration's table."""
    settings = read_settings(table, "test.toml", Path())
    name = None if entries is None else "hostgap.json"
    return gate(subject, settings, entries, baseline=name)


def check_of(result: g.GateResult, metric: str, against: str = "budget") -> g.Check:
    """The check of a metric."""
    (found,) = [c for c in result.checks if c.metric == metric and c.against == against]
    return found


def runs_of(*times_ns: float, **environment: Any) -> Subject:
    """A side of processes, each with its unprofiled step, and no trace."""
    runs = [run_of(time, **environment) for time in times_ns]
    first = runs[0].environment
    return Subject(
        name="runs",
        diagnosis=None,
        gpu=first.gpu,
        torch=first.torch,
        cuda=first.cuda,
        runs=tuple(runs),
    )


def run_of(time_ns: float, **environment: Any) -> Measurement:
    made = measurement()
    timing = msgspec.structs.replace(made.timing, step=estimate(time_ns))
    where = msgspec.structs.replace(made.environment, **environment)
    return msgspec.structs.replace(made, timing=timing, environment=where, passes=[])


def write_run(folder: Path, time_ns: float, **environment: Any) -> Path:
    """A run directory without traces, as the timing of one process leaves it."""
    folder.mkdir(parents=True)
    run = run_of(time_ns, **environment)
    (folder / "measurement.json").write_bytes(msgspec.json.encode(run))
    return folder


def culprit(**fields: Any) -> g.Culprit:
    known: dict[str, Any] = {
        "code": "HG101",
        "title": "A number is read back from the GPU",
        "file": "record.py",
        "line": 67,
        "function": "decode_until_eos",
        "op": None,
        "precision": "call",
        "per_step": 1.0,
        "new": True,
        "advice": "Keep it on the device.",
        "fingerprint": "0" * 32,
    }
    return g.Culprit(**(known | fields))


def check(**fields: Any) -> g.Check:
    known: dict[str, Any] = {
        "metric": "sync_calls_per_step",
        "against": "budget",
        "level": "error",
        "status": "failed",
        "value": 1.0,
        "limit": 0.0,
        "base": None,
        "text": "1, at most 0 allowed",
    }
    return g.Check(**(known | fields))


def result(*checks: g.Check, **fields: Any) -> g.GateResult:
    known: dict[str, Any] = {
        "schema": g.SCHEMA,
        "tool": g.Tool(name="hostgap", version="0"),
        "subject": "new.json",
        "source": "kineto",
        "steps": 4,
        "key": g.Key(gpu="NVIDIA H200", torch=None, cuda="13.0", step_class=""),
        "baseline": None,
        "outcome": g.outcome_of(list(checks)),
        "strict": False,
        "checks": list(checks),
        "stale": [],
        "notes": [],
    }
    return g.GateResult(**(known | fields))
