"""The gate's decision about times, on processes of a real GPU machine.

Record (on the GPU machine; each process is fresh and never profiles):

    python benchmarks/gate_aa.py record OUT --processes 40
    python benchmarks/gate_aa.py record OUT --processes 40 --slower 0.05

runs processes of the built-in decoder in a row and writes a measurement.json each. With --slower,
the B processes of the ABBA order run a step that waits so much longer: its slowdown is known. With
--fix cuda-graph the step is captured, and processes differ far less.

Score (anywhere):

    python benchmarks/gate_aa.py score OUT

cuts the recorded order into ABBA blocks, decides for each stretch of 5, 8 and 10 processes a side,
and prints how often equal sides failed, and how often the slowdown was found. Neighbouring
stretches overlap, so the counts are not independent; the last column says how many do not overlap.

Counts (record on the GPU machine, gate anywhere):

    python benchmarks/gate_aa.py counts OUT --times 10

records the eager decoder and the graph replay below ten times each, in fresh processes, and gates
every recording against the first of its kind: none may fail.

It also holds two targets, a graph replay and the same with one `.item()`:

    hostgap profile benchmarks/gate_aa.py:replay -o runs/clean
    hostgap profile benchmarks/gate_aa.py:replay_item -o runs/item
    hostgap gate runs/clean --update-baseline
    hostgap gate runs/item        # must fail, with the line of the `.item()` in this file
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from hostgap.gate.times import decide
from hostgap.profiling.measurement import SCHEMA, Measurement

LIMIT = 0.05
SIDES = (5, 8, 10)
TRIES = 5_000
OUTCOMES = ("failed", "passed", "inconclusive")
WAIT = "GATE_AA_WAIT_NS"

Times = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def sides_of(n: int) -> list[str]:
    """The order of n processes: A B B A A B B A."""
    return ["AB"[i % 4 in (1, 2)] for i in range(n)]


def record(args: argparse.Namespace) -> None:
    from hostgap.profiling import requests as r
    from hostgap.profiling.bench import Variant
    from hostgap.profiling.target import TargetSpec
    from hostgap.profiling.worker import Child

    args.out.mkdir(parents=True, exist_ok=True)
    begin = len(list(args.out.glob("[0-9]*.json")))
    order = sides_of(begin + args.processes)
    spec = TargetSpec(target=f"{Path(__file__).resolve()}:decode")
    base_ns = 0.0  # of the last A: the order begins with one
    for index in range(begin, begin + args.processes):
        slower = args.slower if order[index] == "B" else 0.0
        os.environ[WAIT] = str(round(base_ns * slower))
        started = time.time()
        with Child(spec) as child:
            variant = Variant(child.welcome.defects, tuple(args.fix))
            request = r.Measure(variant, args.warmup, args.steps, args.repeat)
            measured: r.Measured = child.ask(request, r.Measured)
            where = child.welcome.environment
        step_ns = measured.timing.step.median_ns
        base_ns = base_ns if slower else step_ns
        run = Measurement(
            schema=SCHEMA,
            target="gate_aa:decode",
            options={"slower": slower, "side": order[index], "fixes": args.fix},
            status="complete",
            problems=[],
            environment=where,
            timing=measured.timing,
            span_ns=measured.span_ns,
            graphs=measured.graphs,
            host=measured.host,
            inflation=[],
            sites=[],
            passes=[],
        )
        path = args.out / f"{index:04d}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n")
        took = time.time() - started
        print(f"{path.name} {order[index]} {step_ns / 1e6:.4f} ms ({took:.0f} s)", flush=True)


def counts(args: argparse.Namespace) -> None:
    """Record the same steps again and again, and gate their counts."""
    from hostgap.profiling import requests as r
    from hostgap.profiling.bench import Variant
    from hostgap.profiling.measurement import Estimate
    from hostgap.profiling.target import TargetSpec
    from hostgap.profiling.worker import Child

    args.out.mkdir(parents=True, exist_ok=True)
    gate = [sys.executable, "-m", "hostgap", "gate"]
    for target in ("decode", "replay"):
        baseline = str(args.out / f"{target}-baseline.json")
        codes: Counter[int] = Counter()
        for number in range(args.times):
            path = args.out / f"{target}-{number}.json.gz"
            with Child(TargetSpec(target=f"{Path(__file__).resolve()}:{target}")) as child:
                variant = Variant(child.welcome.defects)
                child.ask(r.Trace(variant, "cpu+cuda", str(path.resolve()), 10, 6), Estimate)
            if number == 0:
                update = [*gate, str(path), "--update-baseline", "--baseline", baseline]
                subprocess.run(update, check=True)
            else:
                asked = [*gate, str(path), "--baseline", baseline, "--strict"]
                codes[subprocess.run(asked, check=False).returncode] += 1
        print(f"{target}: exit codes {dict(codes)} of {args.times - 1} recordings", flush=True)


def decode() -> object:
    """The built-in decoder with its eager defects, and a wait of the host before each step.

    The host waits for each step's token, so a step takes longer by just the wait.
    """
    from hostgap.profiling.target import TargetSpec, load_target

    workload = load_target(TargetSpec()).build()
    wait_ns = int(os.environ.get(WAIT, "0"))
    before = workload.before

    def waited() -> None:
        until = time.perf_counter_ns() + wait_ns
        while time.perf_counter_ns() < until:
            pass
        if before is not None:
            before()

    workload.before = waited
    return workload


def replay() -> Callable[[], object]:
    """A step that is one replay of a CUDA graph: 100 small products in a row."""
    import torch

    weights = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) / 32
    x = torch.randn(1, 1024, device="cuda", dtype=torch.bfloat16)

    def work() -> torch.Tensor:
        y = x
        for _ in range(100):
            y = y @ weights
        return y

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # what the first run allocates must not be captured
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()

    def step() -> torch.Tensor:
        graph.replay()
        return out

    return step


def replay_item() -> Callable[[], object]:
    """The same step, and a look at its output."""
    step = replay()

    def looked_at() -> object:
        out = step()
        out[0, 0].item()
        return out

    return looked_at


def score(args: argparse.Namespace) -> None:
    paths = sorted(args.out.glob("[0-9]*.json"))
    runs = [msgspec.json.decode(path.read_bytes(), type=Measurement) for path in paths]
    times = np.array([run.timing.step.median_ns for run in runs])
    slower = max((float(run.options.get("slower", 0)) for run in runs), default=0.0)  # type: ignore[arg-type]
    sides = np.array([run.options["side"] == "B" for run in runs])
    between = [np.log(times[sides == side]).std(ddof=1) for side in (False, True)]
    within = [np.std(np.log(run.timing.blocks_ns), ddof=1) for run in runs]
    print(f"{len(runs)} processes on {runs[0].environment.gpu}, true slowdown {slower:.1%}")
    print(f"spread between processes {np.mean(between):.2%}, between blocks {np.mean(within):.2%}")
    rows = []
    for n in SIDES:
        seen: Counter[str] = Counter()
        for first in range(0, len(runs) - 2 * n + 1, 2):
            part = slice(first, first + 2 * n)
            new, old = times[part][sides[part]], times[part][~sides[part]]
            seen[decide(old, new, LIMIT).outcome] += 1
        total = sum(seen.values())
        rows.append({"a side": n, **seen, "of": total, "apart": len(runs) // (2 * n)})
        print(
            f"{n:3} a side: failed {seen['failed']}, passed {seen['passed']}, "
            f"undecided {seen['inconclusive']} of {total} ({len(runs) // (2 * n)} apart)"
        )
    if slower:
        one, two = times[~sides], times[sides]
        drawn("A against A", one, one)
        drawn("B against B", two, two)
        drawn(f"B {slower:.0%} slower", one, two)
    else:
        drawn("equal sides", times, times)
        drawn(f"one made {LIMIT:.0%} slower", times, times, 1 + LIMIT)
    found = {
        "environment": msgspec.to_builtins(runs[0].environment),
        "slower": slower,
        "processes": [
            {"side": run.options["side"], "step_ns": run.timing.step.median_ns} for run in runs
        ],
        "in_order": rows,
    }
    (args.out / "score.json").write_text(json.dumps(found, indent=2) + "\n")


def drawn(name: str, base: Times, new: Times, longer: float = 1.0) -> None:
    """How often each outcome comes about between sides drawn at random from recorded processes.

    Of 5, 8 and 10 processes a side; and as a user would do it: of 5, and where these leave it open
    of as many as are asked for, the first among them.

    Args:
        name: of the pair.
        base, new: step times, one a process; the same array for two sides of one kind.
        longer: what the new side's are multiplied by.
    """
    random = np.random.default_rng(0)
    most = len(base) // 2 if base is new else min(len(base), len(new))
    outcomes: dict[str, Counter[str]] = {f"{n} a side": Counter() for n in SIDES if n <= most}
    asked: Counter[str] = Counter()
    for _ in range(TRIES):
        if base is new:
            both = random.permutation(base)
            old, fresh = both[:most], both[most : 2 * most] * longer
        else:
            old, fresh = random.permutation(base), random.permutation(new) * longer
        decided = {n: decide(old[:n], fresh[:n], LIMIT) for n in SIDES if n <= most}
        for n, decision in decided.items():
            outcomes[f"{n} a side"][decision.outcome] += 1
        first = decided[min(SIDES)]
        needed = first.runs_needed or 0
        if first.outcome == "inconclusive" and needed <= most:
            asked[decide(old[:needed], fresh[:needed], LIMIT).outcome] += 1
        else:
            asked[first.outcome] += 1
    for sides, seen in [*outcomes.items(), (f"as asked, up to {most}", asked)]:
        shares = ", ".join(f"{what} {seen[what] / TRIES:.2%}" for what in OUTCOMES)
        print(f"{name}, {sides}: {shares}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--processes", type=int, default=40)
    recording.add_argument("--slower", type=float, default=0.0)
    recording.add_argument("--fix", action="append", default=[], help="e.g. cuda-graph")
    recording.add_argument("--warmup", type=int, default=10)
    recording.add_argument("--steps", type=int, default=30)
    recording.add_argument("--repeat", type=int, default=8)
    recording.set_defaults(run=record)
    counting = commands.add_parser("counts")
    counting.add_argument("out", type=Path)
    counting.add_argument("--times", type=int, default=10)
    counting.set_defaults(run=counts)
    scoring = commands.add_parser("score")
    scoring.add_argument("out", type=Path)
    scoring.set_defaults(run=score)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
