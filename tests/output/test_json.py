"""The JSON contract: the shipped schema is the types', and what is written satisfies it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import jsonschema
import msgspec
import pytest

import hostgap
from hostgap.analysis.examine import Options
from hostgap.diagnosis.model import Verdict
from hostgap.output.json import render_json, schema, shipped_schema

SAMPLES = sorted((Path(__file__).parents[2] / "sample_traces").glob("*.json.gz"))
# The contract other tools read: paths that must exist in every diagnosis of a measurable trace.
CONTRACT = {
    "": "schema tool trace verdict devices counts steps cost_factor saving_basis unprofiled "
    "capture findings",
    "trace": "source file events window integrity",
    "trace.integrity": "verdict reasons",
    "devices.0": "device name window_ns kernel_busy_ns active_ns idle_ns kernel_utilization "
    "active_utilization kernels copies memsets orphans copy_only_ns "
    "utilization_without_collectives gaps idle_by_cause streams",
    "devices.0.gaps": "over_1us over_10us total_ns",
    "counts": "launches graph_launches sync_calls blocking_syncs allocs copies",
    "counts.copies": "h2d d2h d2d pageable",
    "steps": "count source durations_ns classes per_step",
    "steps.per_step": "launches graph_launches sync_calls copies allocs idle_ns",
    "capture": "gpu_ops_in_graphs idle_in_graphs",
}
FINDING = (
    "code severity title site count count_per_step blocked_ns shadow_ns predicted_saving_ns "
    "predicted_saving_share advice evidence fix"
)
VERDICTS = get_args(Verdict)


def test_shipped_schema_is_that_of_the_types() -> None:
    assert json.loads(shipped_schema()) == json.loads(msgspec.json.encode(schema()))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
@pytest.mark.parametrize("window", ["steps", "trace"])
def test_output_satisfies_schema_and_contract(path: Path, window: str) -> None:
    diagnosis = hostgap.analyze(hostgap.load_trace(path), Options(window=window))
    written = json.loads(render_json(diagnosis))
    jsonschema.validate(written, json.loads(shipped_schema()))
    for where, names in CONTRACT.items():
        at = written
        for key in filter(None, where.split(".")):
            at = at[int(key)] if key.isdigit() else at[key]
        assert set(names.split()) <= set(at), where
    assert written["schema"] == "hostgap.diagnosis/1"
    assert written["verdict"] in VERDICTS
    assert all(set(FINDING.split()) <= set(finding) for finding in written["findings"])


def test_schema_refuses_a_foreign_document() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema": "hostgap.diagnosis/1"}, json.loads(shipped_schema()))


def test_names_of_a_trace_survive_as_data(tmp_path: Path) -> None:
    name = '</script>\x1b[31m"\u202e\\'
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": name, "tid": 1, "ts": 1, "dur": 2}
    trace = tmp_path / "hostile.json"
    trace.write_text(json.dumps({"traceEvents": [event]}))
    written = json.loads(render_json(hostgap.analyze(hostgap.load_trace(trace))))
    assert written["devices"][0]["device"] == name
