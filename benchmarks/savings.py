"""Predicted against measured savings: a captured step, one fault at a time, and pairs.

    python benchmarks/savings.py record DIR    # on a GPU: times, traces, calibration
    python benchmarks/savings.py score DIR     # anywhere: prediction beside truth, DIR/savings.json

The clean step replays a CUDA graph of the reference decoder's step (about 1,230 kernels, stable to
0.2 %). A fault is added after it, inside a range named `fault`. The truth is the difference between
the faulty and the clean step, timed in turn in one process that never profiles. The prediction
comes from the faulty step alone: its trace, calibrated by what was measured of it unprofiled.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

Fault = Callable[[], object]
WARMUP, STEPS, REPEATS, TRACED = 10, 30, 8, 6
HOST_WORK_S = 1e-3
CLOSE = 0.1  # of a saving
NOTHING = 0.01  # of the step: what a fault that costs nothing may be predicted to save


def faults() -> dict[str, Fault]:
    """Name -> what is added to the clean step. Needs a GPU."""
    import torch

    numbers = torch.arange(1024, device="cuda", dtype=torch.float32)
    pageable, pinned = torch.zeros(256), torch.zeros(256).pin_memory()
    there = torch.zeros(256, device="cuda")
    small = torch.zeros(64, device="cuda")

    def trailing(n: int) -> Fault:
        def launch() -> None:
            for _ in range(n):
                small.add_(1)

        return launch

    def allocate() -> None:
        buffer = torch.empty(64 << 20, device="cuda", dtype=torch.uint8)
        del buffer
        torch.cuda.empty_cache()  # so that the next step allocates from the driver again

    def busy() -> None:
        until = time.perf_counter() + HOST_WORK_S
        while time.perf_counter() < until:
            pass

    single: dict[str, Fault] = {
        "item": lambda: numbers[0].item(),
        "pageable_upload": lambda: there.copy_(pageable),
        "pinned_upload": lambda: there.copy_(pinned, non_blocking=True),
        "download": lambda: numbers.cpu(),
        "nonzero": lambda: torch.nonzero(numbers),
        "kernels_20": trailing(20),
        "kernels_200": trailing(200),
        "host_behind_sync": lambda: (numbers[0].item(), busy()),
        "host_hidden": busy,
        "device_sync": torch.cuda.synchronize,
        "malloc": allocate,
        "gc": gc.collect,
    }
    pairs = [
        ("item", "download"),
        ("pageable_upload", "item"),
        ("kernels_200", "item"),
        ("host_hidden", "device_sync"),
        ("nonzero", "gc"),
    ]

    def both(first: Fault, second: Fault) -> Fault:
        return lambda: (first(), second())

    return single | {f"{a}+{b}": both(single[a], single[b]) for a, b in pairs}


def steps() -> dict[str, Callable[[], None]]:
    """`clean` and one step per fault, over one captured graph. Needs a GPU."""
    import torch

    from hostgap.decoder.generate import GreedyDecoder
    from hostgap.decoder.model import build_decoder

    decoder = GreedyDecoder(build_decoder("small"))
    decoder.prefill(torch.arange(1, 17)[None])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            decoder.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decoder.step()
        decoder.positions.clamp_(max=decoder.model.config.max_seq_len - 1)  # it may go on for ever

    def clean() -> None:
        assert decoder  # the graph reads its memory, and does not keep it
        graph.replay()

    def with_fault(fault: Fault) -> Callable[[], None]:
        def step() -> None:
            clean()
            with torch.profiler.record_function("fault"):
                fault()

        return step

    return {"clean": clean} | {name: with_fault(fault) for name, fault in faults().items()}


@click.group()
def main() -> None:
    """Record and score (see the head of this file)."""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def record(folder: Path) -> None:
    """Everything that needs a GPU, one process after another."""
    folder.mkdir(parents=True, exist_ok=True)
    for what in ("times", "traces", "machine"):
        subprocess.run([sys.executable, __file__, what, str(folder)], check=True)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def times(folder: Path) -> None:
    """Unprofiled: each faulty step beside the clean one, and its graph's own times."""
    from hostgap.profiling.child import measure
    from hostgap.profiling.loop import Driver
    from hostgap.profiling.passes import compare, settle
    from hostgap.profiling.workload import Workload

    drivers = {name: Driver(Workload(body=step), name) for name, step in steps().items()}
    clean = drivers["clean"]
    clean.run(settle(WARMUP))
    found: dict[str, Any] = {}
    for name, driver in drivers.items():
        measured = driver.run(measure(WARMUP, STEPS, REPEATS))
        found[name] = {
            "measured": msgspec.to_builtins(measured),
            "truth": msgspec.to_builtins(compare(clean, driver, STEPS, REPEATS)),
        }
    (folder / "times.json").write_text(json.dumps(found), encoding="utf-8")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def traces(folder: Path) -> None:
    """A trace of each step."""
    from hostgap.profiling.child import settled
    from hostgap.profiling.loop import Driver
    from hostgap.profiling.traced import traced
    from hostgap.profiling.workload import Workload

    for name, step in steps().items():
        recording = settled(WARMUP, traced("cpu+cuda", folder / f"{name}.json.gz", TRACED))
        Driver(Workload(body=step), name).run(recording)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def machine(folder: Path) -> None:
    """How the profiler stretches calls on this machine."""
    from hostgap.profiling.calibrate import calibrate
    from hostgap.profiling.environment import environment

    found = {
        "environment": msgspec.to_builtins(environment()),
        "inflation": msgspec.to_builtins(calibrate()),
    }
    (folder / "machine.json").write_text(json.dumps(found), encoding="utf-8")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def score(folder: Path) -> None:
    """Prediction beside truth for every fault."""
    from hostgap.analysis.calibration import Calibration
    from hostgap.analysis.examine import examine
    from hostgap.analysis.removal import removal
    from hostgap.analysis.whatif import Replay
    from hostgap.trace.load import load_trace

    found = json.loads((folder / "times.json").read_text(encoding="utf-8"))
    there = json.loads((folder / "machine.json").read_text(encoding="utf-8"))
    launch = next(row for row in there["inflation"] if row["what"] == "eager launch")
    rows = []
    for name, of in found.items():
        if name == "clean":
            continue
        measured, truth = of["measured"], of["truth"]
        step = measured["timing"]["step"]
        analysis = examine(load_trace(str(folder / f"{name}.json.gz")))
        device = next(iter(analysis.devices))
        calibration = Calibration(
            step_ns=step["median_ns"],
            low_ns=step["low_ns"],
            high_ns=step["high_ns"],
            graph_call_ns=tuple(graph["call_ns"] for graph in measured["graphs"]),
            graph_span_ns=tuple(graph["span_ns"] for graph in measured["graphs"]),
            launch_ratio=launch["unprofiled_ns"] / launch["cpu_cuda_ns"],
            gc_ns=measured["host"]["gc_ns"],
        )
        edit = removal(analysis, "fault")
        bare, calibrated = (
            Replay(analysis, device),
            Replay(analysis, device, calibration=calibration),
        )
        pairs = zip(truth["new"]["blocks_ns"], truth["old"]["blocks_ns"], strict=True)
        differences = [new - old for new, old in pairs]
        saved = statistics.median(differences)
        predicted = calibrated.saving(edit) / len(calibrated.steps)
        traced = bare.saving(edit) / len(bare.steps)
        clean_ns = truth["old"]["step"]["median_ns"]
        rows.append(
            {
                "fault": name,
                "clean_us": clean_ns / 1e3,
                "measured_us": saved / 1e3,
                "measured_range_us": [min(differences) / 1e3, max(differences) / 1e3],
                "predicted_us": predicted / 1e3,
                "traced_us": traced / 1e3,
                "error": (predicted - saved) / saved if abs(saved) > NOTHING * clean_ns else None,
                "of_step": (predicted - saved) / (clean_ns + saved),
            }
        )
    head = (
        f"{'fault':<26}{'measured':>10}{'predicted':>11}{'error':>9}{'of step':>9}{'traced':>9} us"
    )
    click.echo(head)
    for row in rows:
        error = "-" if row["error"] is None else f"{row['error']:+.1%}"
        click.echo(
            f"{row['fault']:<26}{row['measured_us']:>10.1f}{row['predicted_us']:>11.1f}"
            f"{error:>9}{row['of_step']:>+9.2%}{row['traced_us']:>9.1f}"
        )
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    within = sum(
        abs(row["error"]) <= CLOSE
        or row["measured_range_us"][0] <= row["predicted_us"] <= row["measured_range_us"][1]
        for row in rows
        if row["error"] is not None
    )
    nothing = [abs(row["of_step"]) for row in rows if row["error"] is None]
    click.echo(f"error: median {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    click.echo(f"within {CLOSE:.0%} or between what was measured: {within} of {len(errors)}")
    if nothing:
        click.echo(f"of faults that cost nothing: worst {max(nothing):.2%} of the step")
    result = {"environment": there["environment"], "rows": rows}
    (folder / "savings.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
