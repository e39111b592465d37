"""Ranks of a tensor-parallel decode as samples: their first steps, redacted."""

from __future__ import annotations

import bisect
import gzip
import json
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

from hostgap.analysis.analyze import analyze
from hostgap.profiling.rundir import read_measurement, trace_name
from hostgap.trace.load import load_trace
from hostgap.trace.redact import redact

_STEP = re.compile(r"ProfilerStep#\d+")
_CALLS = ("cuda_runtime", "cuda_driver")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_sync", "gpu_user_annotation")


def sample(case: str, folder: Path, dest: Path, steps: int) -> dict[str, Any]:
    """One rank as a sample: the recording with stacks, of which the first steps are kept."""
    measurement = read_measurement(folder)
    name = f"tp_{case.removeprefix('graph-').replace('-', '_')}_{folder.name}"
    path = dest / f"{name}.json.gz"
    with tempfile.TemporaryDirectory() as scratch:
        short = Path(scratch) / "short.json"
        whole = json.loads(gzip.decompress((folder / trace_name("stacks")).read_bytes()))
        document = trimmed(whole, steps)
        short.write_text(json.dumps(document), encoding="utf-8")
        clean = Path(scratch) / "clean.json"
        redact(short, clean)
        path.write_bytes(gzip.compress(clean.read_bytes(), 9, mtime=0))
    print(f"Wrote {path} ({path.stat().st_size:,} bytes)")
    here, step = measurement.environment, measurement.timing.step
    traced_ns = statistics.median(analyze(load_trace(path)).steps.durations_ns)
    mode, _, fault = case.partition("-")
    launched = {"graph": "as one CUDA graph", "eager": "kernel by kernel"}[mode]
    odd = {
        "even": "",
        "host_work": "; rank 1 is held up by 1 ms of Python",
        "table_upload": "; rank 1 uploads 8 MiB and waits for it",
    }[fault]
    return {
        "name": name,
        "file": path.name,
        "what": f"{folder.name.replace('rank', 'Rank ')} of a step shared out, {launched}{odd}.",
        "command": "python benchmarks/tensor_parallel.py record, then samples",
        "gpu": here.gpu,
        "torch": here.torch,
        "cuda": here.cuda,
        "driver": here.driver,
        "steps": steps,
        "kernels_per_step": kernels_per_step(document),
        "traced_step_ms": round(traced_ns / 1e6, 4),
        "unprofiled_step_ms": round(step.median_ns / 1e6, 4),
        "unprofiled_range_ms": [round(step.low_ns / 1e6, 4), round(step.high_ns / 1e6, 4)],
    }


def step_begins(document: dict[str, Any]) -> list[float]:
    """When the steps of a Kineto trace begin on the host, in its own unit."""
    return sorted(
        float(event["ts"])
        for event in document["traceEvents"]
        if event.get("cat") == "user_annotation" and _STEP.fullmatch(event.get("name", ""))
    )


def kernels_per_step(document: dict[str, Any]) -> list[int]:
    """How many kernels each step launched."""
    begins = step_begins(document)
    launches = {
        event["args"]["correlation"]: float(event["ts"])
        for event in document["traceEvents"]
        if event.get("cat") in _CALLS
    }
    counts = [0] * len(begins)
    for event in document["traceEvents"]:
        launch = launches.get(event.get("args", {}).get("correlation"), 0.0)
        if event.get("cat") == "kernel" and launch >= begins[0]:
            counts[bisect.bisect_right(begins, launch) - 1] += 1
    return counts


def trimmed(document: dict[str, Any], steps: int) -> dict[str, Any]:
    """A Kineto trace of which only the first steps are left: their calls, and all that these
    launched. What has no duration (names, flow arrows) stays where it belongs to them."""
    events = document["traceEvents"]
    begins = step_begins(document)
    if len(begins) <= steps:
        return document
    until = begins[steps]
    launched = {
        event["args"]["correlation"]
        for event in events
        if event.get("cat") in _CALLS and float(event["ts"]) < until
    }

    def stays(event: dict[str, Any]) -> bool:
        correlation = event.get("args", {}).get("correlation")
        if event.get("cat") in _ON_GPU and correlation is not None:
            return correlation in launched
        if event.get("cat") == "ac2g":
            return event.get("id") in launched
        # an enclosing frame began before and is cut off where the steps end
        return event.get("ph") == "M" or float(event.get("ts", 0)) < until

    kept = []
    for event in filter(stays, events):
        if event.get("ph") == "X" and event.get("cat") not in _ON_GPU:
            left = until - float(event["ts"])
            if float(event.get("dur", 0)) > left:
                event = {**event, "dur": round(left, 3)}
        kept.append(event)
    return {**document, "traceEvents": kept}
