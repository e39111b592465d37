"""Single rungs of the decoder's ladder, each alone, eager and captured.

    python benchmarks/rungs.py OUT.json [--eager | --captured]      # on a GPU

For each defect: the decoder with this one alone beside the clean one, timed in turn without a
profiler, and its launches and waits a step from a trace of each. Everything else is as the ladder
leaves it (inputs and outputs overlapped). Prediction: what the findings that the defect shows as
promise, from a trace calibrated by the unprofiled step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from hostgap.errors import HostgapError
from hostgap.fixes.diagnosing import Diagnoser
from hostgap.fixes.registry import load_fixes
from hostgap.profiling.bench import Variant
from hostgap.profiling.target import TargetSpec
from hostgap.profiling.worker import BenchOptions, Workers, open_bench

DEFECTS = ("rope_unfused", "positions_on_host", "page_lens_download")
AROUND = ("async-input", "async-output")
LAYERS = 16  # of the preset "small"


def rung(bench: Workers, diagnoser: Diagnoser, defect: str, fixes: tuple[str, ...]) -> Any:
    """One defect against none, under some fixes."""
    faulty, clean = Variant((defect,), fixes), Variant((), fixes)
    for variant in (faulty, clean):
        bench.build(variant)
    proof = bench.prove(faulty, clean)
    compared = bench.compare(faulty, clean)
    before, after = (diagnoser.diagnose(bench.trace(variant)) for variant in (faulty, clean))
    prediction = load_fixes()[defect].applies_to(before)
    bench.drop(faulty)
    counts = {
        key: [getattr(one.steps.per_step, key) for one in (before, after)]
        for key in ("launches", "graph_launches", "sync_calls", "copies")
        if before.steps.per_step is not None and after.steps.per_step is not None
    }
    saved = [o - n for o, n in zip(compared.old.blocks_ns, compared.new.blocks_ns, strict=True)]
    return {
        "defect": defect,
        "fixes": fixes,
        "equal": proof.equal,
        "why": proof.why,
        "with_us": compared.old.step.median_ns / 1e3,
        "without_us": compared.new.step.median_ns / 1e3,
        "ratio": [compared.ratio, compared.ratio_low, compared.ratio_high],
        "saved_us": sorted(saved)[len(saved) // 2] / 1e3,
        "predicted_us": prediction.saving_ns / 1e3 if prediction and prediction.saving_ns else None,
        "per_step": counts,
        "launches_per_layer": [n / LAYERS for n in counts.get("launches", [])],
    }


def main() -> None:
    """Measure, print a table, write the JSON."""
    out, *only = sys.argv[1:]
    ways = {"--eager": AROUND, "--captured": (*AROUND, "cuda-graph")}
    rows = []
    with open_bench(TargetSpec(defects=()), BenchOptions()) as bench:
        diagnoser = Diagnoser(bench.welcome.environment)
        for defect in DEFECTS:
            for fixes in (ways[way] for way in only or ways):
                try:
                    row = rung(bench, diagnoser, defect, fixes)
                except HostgapError as error:
                    row = {"defect": defect, "fixes": fixes, "error": error.message}
                rows.append(row)
                print(json.dumps(row), flush=True)
        here = msgspec.to_builtins(bench.welcome.environment)
    text = json.dumps({"environment": here, "rows": rows}, indent=2)
    Path(out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
