"""Tensor-parallel decode on real ranks: what is said of them, against what is known of them.

    python benchmarks/tensor_parallel.py record OUT --ranks 2    # on as many GPUs; some minutes
    python benchmarks/tensor_parallel.py score OUT               # anywhere; OUT/score.json
    python benchmarks/tensor_parallel.py samples OUT DEST        # two redacted pairs of ranks

The suite: {eager, the whole step as one CUDA graph with its collectives} x {even ranks, one rank
held up by 1 ms of Python a step, one rank with a blocking upload of 8 MiB a step}. The truth is what
the fault costs without a profiler: the step with and without it, timed in turn, block by block, in
the same processes. The ranks' steps are recorded in processes of their own, as `hostgap profile
--ranks` does, into one run directory per rank; only that is scored.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import msgspec

from hostgap.errors import HostgapError
from hostgap.profiling import requests as r
from hostgap.profiling.bench import Built, Comparison, Variant
from hostgap.profiling.measurement import Estimate, Inflation, Pass, Site
from hostgap.profiling.protocol import assembled
from hostgap.profiling.rank_group import RankGroup, devices_for
from hostgap.profiling.ranked import rank_folders
from hostgap.profiling.rundir import trace_name, write_measurement
from hostgap.profiling.target import TargetSpec

# Rotary embedding as it is written: compiling it would take longer than all that is measured.
BASE = ("rope_unfused",)
FAULTS = ("host_work", "table_upload")
MODES = ("eager", "graph")
STRAGGLER = 1
WARMUP, STEPS, REPEATS = 10, 20, 15
TRACED = 8
TIMEOUT_S = 150.0  # of one request: a rank that hangs must not take all the time there is


@dataclass(frozen=True)
class Case:
    """One way to run the step, with or without a fault in one rank."""

    mode: str
    fault: str | None

    @property
    def name(self) -> str:
        return f"{self.mode}-{self.fault or 'even'}"

    @property
    def variant(self) -> Variant:
        faults = (f"{self.fault}@{STRAGGLER}",) if self.fault is not None else ()
        return Variant((*BASE, *faults), ("cuda-graph",) if self.mode == "graph" else ())


def cases(modes: tuple[str, ...]) -> list[Case]:
    """The suite, even ranks first."""
    return [Case(mode, fault) for mode in modes for fault in (None, *FAULTS)]


@dataclass
class Recorded:
    """What came back of one case, each by rank."""

    welcome: list[r.Welcome] = field(default_factory=list)
    measured: list[r.Measured] = field(default_factory=list)
    passes: list[list[Pass]] = field(default_factory=list)
    sites: list[list[Site]] = field(default_factory=list)


class Recorder:
    """Asks groups of processes for one thing after another; what fails is noted, and the rest
    goes on, in new processes where the old ones are gone."""

    def __init__(self, spec: TargetSpec, devices: list[str | None]) -> None:
        self.spec, self.devices = spec, devices
        self.problems: list[str] = []
        self.welcomes: list[r.Welcome] = []
        self._group: RankGroup | None = None
        self._begun = time.perf_counter()

    def say(self, what: str) -> None:
        print(f"[{time.perf_counter() - self._begun:6.1f} s] {what}", flush=True)

    @contextmanager
    def processes(self) -> Iterator[None]:
        """What is asked in the block is asked of the same processes, as long as they live."""
        try:
            yield
        finally:
            self._close()

    def ask(self, doing: str, request: Any, answer: Any) -> list[Any] | None:
        self.say(doing)
        try:
            if self._group is None:
                self._group = RankGroup(self.spec, self.devices, timeout_s=TIMEOUT_S)
                self.welcomes = self._group.welcomes
                self.say("  the ranks have met")
            return self._group.ask(request, answer)
        except HostgapError as error:
            self.problems.append(
                f"{doing}: {error.message}" + (f" ({error.hint})" * bool(error.hint))
            )
            self.say(f"  FAILED: {self.problems[-1]}")
            self._close()
            return None

    def _close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None


@click.group()
def main() -> None:
    """Record and score (see the head of this file)."""


@main.command()
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--ranks", type=click.IntRange(2), default=2, show_default=True)
@click.option("--preset", default="small", show_default=True)
@click.option("--device", help="GPUs, as CUDA_VISIBLE_DEVICES takes them.")
@click.option("--only", type=click.Choice(MODES), help="Leave the other way of launching out.")
@click.option("--steps", default=STEPS, show_default=True, help="Of a timed block.")
@click.option("--repeats", default=REPEATS, show_default=True, help="Timed blocks.")
@click.option("--traced", default=TRACED, show_default=True, help="Steps recorded.")
def record(
    out: Path,
    ranks: int,
    preset: str,
    device: str | None,
    only: str | None,
    steps: int,
    repeats: int,
    traced: int,
) -> None:
    """Everything that needs GPUs, into OUT."""
    out.mkdir(parents=True, exist_ok=True)
    spec = TargetSpec(preset=preset, ranks=ranks, defects=BASE)
    run = Recorder(spec, devices_for(ranks, device))
    suite = cases((only,) if only else MODES)
    found = {case.name: Recorded() for case in suite}
    truth: dict[str, Any] = {}
    inflation: list[list[Inflation]] | None = None

    with run.processes():
        for case in suite:
            request = r.Measure(case.variant, WARMUP, steps, repeats)
            one = run.ask(f"{case.name}: timed without a profiler", request, r.Measured)
            if one is not None:
                found[case.name].measured, found[case.name].welcome = one, run.welcomes
        for case in suite:
            even = Case(case.mode, None)
            asked = r.Compare(even.variant, case.variant, WARMUP, steps, repeats)
            compared = run.ask(f"{case.name}: timed in turn with even ranks", asked, Comparison)
            if compared is not None:
                truth[case.name] = [msgspec.to_builtins(one) for one in compared]
        inflation = run.ask("the profiler calibrated", r.Calibrate(), list[Inflation])
    _write(out / "truth.json", {"ranks": ranks, "preset": preset, "truth": truth})
    _write_runs(out, spec, found, inflation)
    for mode in ("cpu+cuda", "stacks"):
        with run.processes():
            for case in suite:
                _trace(run, out, case, mode, traced, found[case.name])
        _write_runs(out, spec, found, inflation)
    with run.processes():
        for case in suite:
            looked = run.ask(
                f"{case.name}: lines that wait", r.Sites(case.variant, WARMUP), list[Site]
            )
            found[case.name].sites = looked or []
    _write_runs(out, spec, found, inflation)
    _write(out / "problems.json", run.problems)
    run.say(f"done, {len(run.problems)} problems")


def _trace(run: Recorder, out: Path, case: Case, mode: Any, steps: int, into: Recorded) -> None:
    """Record a case in one mode of the profiler, a trace per rank."""
    folder = out / case.name
    folder.mkdir(exist_ok=True)
    paths = [each / trace_name(mode) for each in rank_folders(folder, run.spec.ranks)]
    requests = [r.Trace(case.variant, mode, str(path.resolve()), WARMUP, steps) for path in paths]
    doing = f"{case.name}: recorded ({mode})"
    if run.ask(f"{case.name}: built", r.Build(case.variant), Built) is None:
        return
    estimates: list[Estimate] | None = run.ask(doing, requests, Estimate)
    into.passes = into.passes or [[] for _ in paths]
    for index, path in enumerate(paths):
        if estimates is None:
            path.unlink(missing_ok=True)
        else:
            into.passes[index].append(Pass(mode=mode, file=path.name, step=estimates[index]))
    if estimates is not None:
        run.ask(f"{case.name}: freed", r.Drop(case.variant), None)


def _write_runs(
    out: Path,
    spec: TargetSpec,
    found: dict[str, Recorded],
    inflation: list[list[Inflation]] | None,
) -> None:
    """The run directories as far as they have come: what is cut short can be scored too."""
    for name, case in found.items():
        if not case.measured:
            continue
        folder = out / name
        folder.mkdir(exist_ok=True)
        for index, each in enumerate(rank_folders(folder, spec.ranks)):
            measurement = assembled(
                spec,
                case.welcome[index],
                case.measured[index],
                case.passes[index] if case.passes else [],
                inflation=inflation[index] if inflation else [],
                sites=case.sites[index] if case.sites else [],
            )
            write_measurement(each, measurement)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
