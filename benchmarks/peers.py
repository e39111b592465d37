"""hostgap beside HTA and TraceLens on the same torch.profiler traces.

    python benchmarks/suite/record.py out                # once, on a GPU: the labelled traces
    python benchmarks/peers.py out -o peers.json

Reads the bundled samples and `*.kineto_stack.json.gz` of the folder with each tool, compares the
shares of idle time, and counts what of the labelled faults each tool's output names, locates and
prices. For the others a fault is named when the output holds an operator, CUDA call or Python
function that runs inside the labelled function and nowhere else in the trace, located when it
holds the labelled function, priced when at least 1 % of the window stands against such a name.
hostgap must do more: find it by the labelled rule, at the labelled function, with a saving of 1 %.

Installs both tools into environments of their own. See docs/peers.md.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import re
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from measure import Command, run, script
from peer_tools import (
    HERE,
    HTA_ENV,
    TRACELENS,
    hta_python,
    tracelens_command,
    tracelens_python,
    tracelens_times,
)

# A frame of the suite; all variants stood in variants.py once.
SUITE_FILE = re.compile(rb'"(variants|labelled|hg\d_\w+|no_fault)\.py\(')
HOSTGAP, HTA, LENS = "hostgap", "HTA", "TraceLens"
TOOLS = (HOSTGAP, HTA, LENS)
LEAST = 0.01  # of the window, to count as a price
CALLS = ("cpu_op", "cuda_runtime", "cuda_driver", "python_function")


@dataclass
class Said:
    """What one tool says of one trace; `idle` None where it failed, its message in `error`."""

    idle: float | None = None
    cpu_s: float = 0.0
    named: list[str] = field(default_factory=list)
    located: bool = False
    price: float = 0.0  # largest share of the window against one of the names
    more: dict[str, Any] = field(default_factory=dict)
    error: str = ""


@dataclass
class Fault:
    """A labelled fault in a trace: its function, and the names that run only inside it."""

    code: str
    site: str
    names: set[str]
    window_us: float


def fault_of(path: Path, label: dict[str, Any]) -> Fault:
    """The names that occur inside the labelled function and nowhere else."""
    with gzip.open(path) as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    gpu = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    window = max(e["ts"] + e["dur"] for e in gpu) - min(e["ts"] for e in gpu)
    ending = f"): {label['site']}"
    calls = [e for e in events if e.get("cat") in CALLS]
    sites = [e for e in calls if e["name"].endswith(ending) and label["file"] in e["name"]]
    inside: set[str] = set()
    outside: set[str] = set()
    own = {id(site) for site in sites}
    for event in calls:
        if id(event) in own:
            continue
        within = any(
            s["tid"] == event["tid"] and s["ts"] <= event["ts"] <= s["ts"] + s["dur"] for s in sites
        )
        (inside if within else outside).add(event["name"])
    return Fault(label["code"], label["site"], inside - outside, window)


def hostgap_says(path: Path, fault: Fault | None, folder: Path) -> Said:
    """`hostgap analyze`, over the whole trace and over the steps."""
    said = Said()
    trace, steps = folder / "trace.json", folder / "steps.json"
    command: list[str | Path] = [script("hostgap"), "analyze", path]
    said.cpu_s = run(Command(HOSTGAP, [*command, "-o", steps])).cpu_s
    run(Command(HOSTGAP, [*command, "--window", "trace", "-o", trace]))
    report = json.loads(steps.read_text(encoding="utf-8"))
    said.idle = idle_share(json.loads(trace.read_text(encoding="utf-8")))
    said.more["steps"] = idle_share(report)
    if fault is None:
        return said
    for finding in report["findings"]:
        site = finding["site"] or {}
        if finding["code"] == fault.code:
            said.named.append(finding["code"])
            said.located |= site.get("function") == fault.site
            said.price = max(said.price, finding["predicted_saving_share"] or 0.0)
    return said


def idle_share(report: dict[str, Any]) -> float:
    """Idle time over the window of the first device."""
    device = report["devices"][0]
    return float(device["idle_ns"] / device["window_ns"])


def hta_says(path: Path, fault: Fault | None, folder: Path, python: Path) -> Said:
    """HTA: the two breakdowns of idle time, and the critical path for names."""
    out = folder / "hta.json"
    argv: list[str | Path] = [python, HERE / "hta_analyze.py", "json", path, out, "--critical-path"]
    run(Command(HTA, argv, env=HTA_ENV))
    report = json.loads(out.read_text(encoding="utf-8"))
    said = Said(idle=report["idle_us"] / report["window_us"], cpu_s=report["cpu_s"]["breakdowns"])
    said.more["kinds"] = report["kinds"]
    if report["path"] is None:
        said.more["path_error"] = report.get("path_error", "")
        return said
    whole = sum(us for _, us in report["path"]) or 1.0
    if fault is not None:
        hits = [(name, us) for name, us in report["path"] if name in fault.names]
        said.named = sorted({name for name, _ in hits})
        said.located = any(f"): {fault.site}" in name for name, _ in report["path"])
        said.price = sum(us for _, us in hits) / whole
    return said


def tracelens_says(path: Path, fault: Fault | None, folder: Path, python: Path) -> Said:
    """TraceLens: its report as it comes, and once more with all that could name a fault."""
    more = ["--include_call_stack", "--enable_kernel_summary", "--include_unlinked_kernels"]
    plain, full = folder / "plain", folder / "full"
    said = Said(cpu_s=run(Command(LENS, tracelens_command(python, path, plain))).cpu_s)
    said.idle = lens_idle(plain)
    # its call stacks hold only frames whose path has a folder, which the suite's files lack
    with gzip.open(path) as file:
        text = SUITE_FILE.sub(rb'"suite/\1.py(', file.read())
    foldered = folder / "foldered.json"
    foldered.write_bytes(text)
    run(Command(LENS, tracelens_command(python, foldered, full, *more)))
    said.more["all kernels"] = lens_idle(full)
    if fault is None:
        return said
    csv.field_size_limit(sys.maxsize)
    prices: dict[str, float] = {}
    for table in sorted([*plain.glob("*.csv"), *full.glob("*.csv")]):
        for row in csv.DictReader(table.read_text(encoding="utf-8").splitlines()):
            said.located |= f"): {fault.site}" in " ".join(str(v) for v in row.values())
            # a launch without an operator is listed as `call->kernel (Synthetic Op)`
            name = (row.get("name") or "").partition("->")[0]
            if name not in fault.names:
                continue
            said.named.append(name)
            times = [row.get(c) or 0 for c in ("total_duration_us", "total_direct_kernel_time_sum")]
            key = f"{table.parent.name} {table.stem} {name}"
            prices[key] = prices.get(key, 0.0) + max(float(t) for t in times) / fault.window_us
    said.named = sorted(set(said.named))
    said.price = max(prices.values(), default=0.0)
    return said


def lens_idle(folder: Path) -> float:
    """The idle share in TraceLens's gpu_timeline."""
    total, idle = tracelens_times(folder)
    return idle / total


def read(path: Path, label: dict[str, Any], hta: Path, lens: Path) -> dict[str, Said]:
    """One trace, through all three tools."""
    fault = fault_of(path, label) if label.get("code") else None
    said: dict[str, Said] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for tool in TOOLS:
            try:
                if tool == HOSTGAP:
                    said[tool] = hostgap_says(path, fault, folder)
                elif tool == HTA:
                    said[tool] = hta_says(path, fault, folder, hta)
                else:
                    said[tool] = tracelens_says(path, fault, folder, lens)
            except (SystemExit, OSError, KeyError, ValueError) as error:
                said[tool] = Said(error=f"{type(error).__name__}: {error}")
    if fault is not None:
        said[HOSTGAP].more["names"] = sorted(fault.names)
    return said


def table(results: dict[str, dict[str, Said]], faults: set[str]) -> str:
    """One row per tool."""
    lines = [
        "| tool | traces read | idle share against hostgap's, points: median | worst (trace) "
        "| faults named | located | priced | CPU s per trace |",
        "|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for tool in TOOLS:
        mine = {name: said[tool] for name, said in results.items() if said[tool].idle is not None}
        points = {
            name: 100 * abs((one.idle or 0.0) - (results[name][HOSTGAP].idle or 0.0))
            for name, one in mine.items()
            if results[name][HOSTGAP].idle is not None
        }
        worst = max(points, key=lambda name: points[name])
        of = [mine[name] for name in mine if name in faults]
        told = f"{points[worst]:.2f} ({worst})" if tool != HOSTGAP else "-"
        median = f"{statistics.median(points.values()):.4f}" if tool != HOSTGAP else "-"
        counts = (
            sum(bool(one.named) for one in of),
            sum(one.located for one in of),
            sum(bool(one.named) and one.price >= LEAST for one in of),
        )
        cells = [
            tool,
            f"{len(mine)} of {len(results)}",
            median,
            told,
            *(f"{count} of {len(faults)}" for count in counts),
            f"{statistics.median(one.cpu_s for one in mine.values()):.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def largest(results: dict[str, dict[str, Said]], count: int) -> str:
    """The largest differences of idle share, with what the tools say of it otherwise."""
    rows = []
    for name, said in results.items():
        ours = said[HOSTGAP]
        for tool in (HTA, LENS):
            idle = said[tool].idle
            if idle is not None and ours.idle is not None:
                rows.append((abs(idle - ours.idle), name, tool, idle, ours))
    lines = [
        "| trace | tool | it says | hostgap, whole trace | hostgap, steps |",
        "|---|---|---:|---:|---:|",
    ]
    for _, name, tool, idle, ours in sorted(rows, key=lambda row: -row[0])[:count]:
        lines.append(
            f"| {name} | {tool} | {idle:.2%} | {ours.idle:.2%} | {ours.more['steps']:.2%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare hostgap with HTA and TraceLens.")
    parser.add_argument("suite", type=Path, help="the folder that suite/record.py wrote")
    parser.add_argument("--tracelens", default=TRACELENS, help="what pip installs for TraceLens")
    parser.add_argument("--jobs", type=int, default=2, help="traces at a time [2]")
    parser.add_argument("-o", "--output", type=Path, help="write everything as JSON")
    options = parser.parse_args()
    hta, lens = hta_python(), tracelens_python(options.tracelens)
    labels = json.loads((options.suite / "labels.json").read_text(encoding="utf-8"))
    traces = {p.name.partition(".")[0]: p for p in (HERE.parent / "sample_traces").glob("*.gz")}
    end = "kineto_stack.json.gz"
    traces |= {n: p for n in labels if (p := options.suite / f"{n}.{end}").exists()}
    with ThreadPoolExecutor(options.jobs) as pool:
        said = pool.map(lambda n: read(traces[n], labels.get(n, {}), hta, lens), traces)
        results = dict(zip(traces, said, strict=True))
    print(table(results, {name for name in traces if labels.get(name, {}).get("code")}))
    print("\n" + largest(results, 10))
    if options.output:
        whole = {n: {tool: asdict(s) for tool, s in said.items()} for n, said in results.items()}
        options.output.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
