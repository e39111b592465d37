"""One big file: what reading, a part of it, and the whole analysis take of time and memory.

    python benchmarks/bench_scale.py            # 2.5 GB, made if it is missing
    python benchmarks/bench_scale.py --rounds 3

Asked for: reading, and the whole analysis, in at most 150 MB and 40 bytes per event and within
twice the CPU time of a bare typed decode; some steps of the file in a slice of the memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from make_trace import make
from measure import Command, interleaved, machine, script

HERE = Path(__file__).resolve().parent
TRACE = HERE / "data" / "huge.json"
COUNTS = {"eager": 92, "cuda_graph": 140, "compile": 1}  # 2.45 GB, 7.4 million events
BASE_MB, PER_EVENT = 150, 40  # MB, bytes

LOAD = "import sys, hostgap; print(hostgap.load_trace(sys.argv[1]).report.events)"
READ, BARE = "reading (load_trace)", "bare typed decode"
PART, WHOLE = "analyze --steps 20:30", "analyze, all steps"


def count_events() -> int:
    """How many events the trace has, as hostgap counts them."""
    return int(subprocess.check_output([sys.executable, "-c", LOAD, TRACE]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure hostgap on one big trace.")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each command [2]")
    parser.add_argument("--output", type=Path, help="write all runs as JSON")
    options = parser.parse_args()
    if not TRACE.exists():
        make(COUNTS, TRACE, lambda line: print(line, file=sys.stderr))
    for key, value in machine(("hostgap", "msgspec", "numpy")).items():
        print(f"{key}: {value}")
    python = sys.executable
    commands = [
        Command(READ, [python, "-c", LOAD, TRACE]),
        Command(BARE, [python, HERE / "bare_decode.py", TRACE]),
        Command(PART, [script("hostgap"), "analyze", TRACE, "--steps", "20:30"]),
        Command(WHOLE, [script("hostgap"), "analyze", TRACE]),
    ]
    results = interleaved(commands, options.rounds)
    events = count_events()
    print(f"\n{TRACE.name}: {TRACE.stat().st_size / 1e6:,.0f} MB, {events:,} events\n")
    print("| | CPU s, best | peak MB | bytes per event |\n|---|--:|--:|--:|")
    for name, runs in results.runs.items():
        peak = results.median(name, "peak_mb")
        cpu = min(run.cpu_s for run in runs)
        print(f"| {name} | {cpu:.1f} | {peak:,.0f} | {peak * 1e6 / events:.0f} |")
    most = BASE_MB + PER_EVENT * events / 1e6
    peak, time = results.median(READ, "peak_mb"), results.ratio(READ, BARE)
    for words, value, limit in (
        (f"MB of reading, at most {most:.0f}", peak, most),
        ("CPU of reading over a bare decode's, at most 2", time, 2.0),
        (f"MB of some steps, at most {BASE_MB}", results.median(PART, "peak_mb"), BASE_MB),
        ("MB of the whole analysis, the same limit", results.median(WHOLE, "peak_mb"), most),
        (
            "CPU of the whole analysis over a bare decode's, at most 2",
            results.ratio(WHOLE, BARE),
            2.0,
        ),
    ):
        print(f"\ntarget: {words}: {value:.2f}, {'met' if value <= limit else 'MISSED'}")
    if options.output:
        runs_of = {key: [asdict(run) for run in runs] for key, runs in results.runs.items()}
        options.output.write_text(json.dumps(runs_of, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
