"""`hostgap analyze` against the cost of merely reading the same trace.

    python benchmarks/bench_analyze.py
    python benchmarks/bench_analyze.py --rounds 9 --output results.json

Makes the benchmark traces if they are missing or out of date. Against other tools:
compare_tools.py. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from measure import Command, Results, interleaved, machine, script

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
TRACES = ("large", "stacks")

IMPORTS = "import numpy, msgspec, click, rich"
WITHOUT_RULES = (
    "import sys, hostgap; from hostgap.analysis.metrics import diagnose; "
    "diagnose(hostgap.examine(hostgap.load_trace(sys.argv[1])))"
)
RULES_SHARE = """
import sys, time, hostgap
from hostgap.analysis.metrics import diagnose
from hostgap.diagnosis.judge import Judging, judge
times = [time.process_time()]
trace = hostgap.load_trace(sys.argv[1]); times.append(time.process_time())
analysis = hostgap.examine(trace); diagnosis = diagnose(analysis); times.append(time.process_time())
judge(diagnosis, analysis, Judging()); times.append(time.process_time())
print((times[3] - times[2]) / (times[1] - times[0]))
"""
JSON_LOADS = "import json, sys; json.loads(open(sys.argv[1], 'rb').read())"

HOSTGAP, PLAIN = "hostgap analyze", "the same without rules"
BARE, JSON, IMPORT = "bare typed decode", "json.loads", "imports alone"


def is_stale(trace: Path) -> bool:
    """Whether a benchmark trace is missing, or older than what it is made from."""
    if not trace.exists():
        return True
    made_from = [HERE / "make_trace.py", *(HERE.parent / "sample_traces").glob("*.json.gz")]
    return trace.stat().st_mtime < max(path.stat().st_mtime for path in made_from)


def commands(trace: Path) -> list[Command]:
    """What is measured on one trace."""
    python = sys.executable
    return [
        Command(HOSTGAP, [script("hostgap"), "analyze", trace, "--format", "json"]),
        Command(PLAIN, [python, "-c", WITHOUT_RULES, trace]),
        Command(BARE, [python, HERE / "bare_decode.py", trace]),
        Command(JSON, [python, "-c", JSON_LOADS, trace]),
        Command(IMPORT, [python, "-c", IMPORTS]),
    ]


def table(results: Results) -> str:
    """Medians per command, and how they compare with hostgap."""
    lines = [
        "| | CPU s | min to max | peak MB | CPU / hostgap's | MB / hostgap's |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, runs in results.runs.items():
        cpu = sorted(run.cpu_s for run in runs)
        lines.append(
            f"| {name} | {results.median(name, 'cpu_s'):.2f} | {cpu[0]:.2f} to {cpu[-1]:.2f} "
            f"| {results.median(name, 'peak_mb'):,.0f} | {results.ratio(name, HOSTGAP):.2f} "
            f"| {results.ratio(name, HOSTGAP, 'peak_mb'):.2f} |"
        )
    return "\n".join(lines)


def rules_share(path: Path, runs: int = 5) -> float:
    """CPU time of the rule engine with its replays over that of reading, both in one process."""
    argv: list[str | Path] = [sys.executable, "-c", RULES_SHARE, path]
    shares = [float(subprocess.check_output(argv)) for _ in range(runs)]
    return statistics.median(shares)


def targets(trace: str, path: Path, results: Results) -> dict[str, tuple[float, float]]:
    """What is asked for: words -> (measured, at most)."""
    peak = results.median(HOSTGAP, "peak_mb")
    if trace == "large":
        return {
            "CPU time without rules over that of a bare typed decode": (
                results.ratio(PLAIN, BARE),
                2.0,
            ),
            "CPU time of rules and replay over that of reading": (rules_share(path), 0.5),
            "peak MB": (peak, 300.0),
        }
    beyond = results.median(HOSTGAP, "cpu_s") - results.median(IMPORT, "cpu_s")
    return {"CPU s beyond imports": (beyond, 1.0), "peak MB": (peak, 150.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure hostgap analyze.")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each command [5]")
    parser.add_argument("--output", type=Path, help="write all runs as JSON")
    options = parser.parse_args()

    stale = [name for name in TRACES if is_stale(DATA / f"{name}.json")]
    if stale:  # in a process of its own: its memory would show up in every child's peak
        subprocess.run([sys.executable, HERE / "make_trace.py", *stale], check=True)
    about = machine(("hostgap", "msgspec", "numpy"))
    print("\n".join(f"{key}: {value}" for key, value in about.items()))

    report: dict[str, object] = {"machine": about}
    for name in TRACES:
        trace = DATA / f"{name}.json"
        print(f"\n{trace.name}, {trace.stat().st_size / 1e6:.1f} MB\n")
        results = interleaved(commands(trace), options.rounds)
        print(table(results), end="\n\n")
        asked = targets(name, DATA / f"{name}.json", results)
        for words, (measured, most) in asked.items():
            verdict = "met" if measured <= most else "MISSED"
            print(f"target: {words} at most {most:g}: {measured:.2f}, {verdict}")
        report[name] = {
            "bytes": trace.stat().st_size,
            "runs": {key: [asdict(run) for run in runs] for key, runs in results.runs.items()},
            "targets": {key: {"measured": m, "most": most} for key, (m, most) in asked.items()},
        }
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
