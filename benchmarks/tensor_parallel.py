"""Tensor-parallel decode on real ranks: what is said of them, against what is known of them.

    python benchmarks/tensor_parallel.py record OUT --ranks 2    # on as many GPUs; some minutes
    python benchmarks/tensor_parallel.py score OUT               # anywhere; OUT/score.json
    python benchmarks/tensor_parallel.py samples OUT DEST        # two redacted pairs of ranks

The suite: {eager, the whole step as one CUDA graph with its collectives} x {even ranks, one rank
held up by 1 ms of Python a step, one rank with a blocking upload of 8 MiB a step}. The truth is
what the fault costs without a profiler: the steps with and without it are timed in turn, in rounds,
in the same processes, as hosts change meanwhile. Each rank's waits are measured in the
same rounds. The ranks' steps are recorded in processes of their own, as `hostgap profile --ranks`
does, into one run directory per rank; only that is scored.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rank_samples import sample

from hostgap.errors import HostgapError
from hostgap.profiling import requests as r
from hostgap.profiling.bench import Built, Variant
from hostgap.profiling.measurement import Estimate, Inflation, Pass, Site
from hostgap.profiling.protocol import assembled
from hostgap.profiling.rank_group import RankGroup, devices_for
from hostgap.profiling.ranked import rank_folders, waits_of
from hostgap.profiling.rundir import trace_name, write_measurement
from hostgap.profiling.statistics import estimate, timing
from hostgap.profiling.target import TargetSpec

if TYPE_CHECKING:
    from hostgap.ranks.model import DiagnosisSet

# Rotary embedding as it is written: compiling it would take longer than all that is measured.
BASE = ("rope_unfused",)
FAULTS = ("host_work", "table_upload")
MODES = ("eager", "graph")
STRAGGLER = 1
WARMUP, STEPS, REPEATS, ROUNDS = 10, 15, 4, 8
TRACED = 12
# What may be said of a fault's cause: a blocking copy holds its host in the call, which waits for
# the GPU's copy.
CAUSES = {"host_work": ("python",), "table_upload": ("copy_call", "sync", "copies")}
PLACES = {fault: fault for fault in FAULTS}  # the function that a fault is in
TIMEOUT_S = 100.0  # of one request: a rank that hangs must not take all the time there is
GIVE_UP = 2  # failures of a way to launch, after which no more of it is tried


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
    """What came back of one case, each by rank; of `rounds` one list of ranks after another."""

    welcome: list[r.Welcome] = field(default_factory=list)
    rounds: list[list[r.Measured]] = field(default_factory=list)
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
        self._failed: Counter[str] = Counter()

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
        kind = doing.partition("-")[0]
        if self._failed[kind] >= GIVE_UP:
            self.problems.append(f"{doing}: not tried, after {GIVE_UP} failures")
            return None
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
            self._failed[kind] += 1
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
@click.option("--preset", default="shallow", show_default=True)
@click.option("--device", help="GPUs, as CUDA_VISIBLE_DEVICES takes them.")
@click.option("--only", type=click.Choice(MODES), help="Leave the other way of launching out.")
@click.option("--steps", default=STEPS, show_default=True, help="Of a timed block.")
@click.option("--repeats", default=REPEATS, show_default=True, help="Timed blocks of a round.")
@click.option("--rounds", default=ROUNDS, show_default=True, help="Of all cases in turn.")
@click.option("--traced", default=TRACED, show_default=True, help="Steps recorded.")
def record(
    out: Path,
    ranks: int,
    preset: str,
    device: str | None,
    only: str | None,
    steps: int,
    repeats: int,
    rounds: int,
    traced: int,
) -> None:
    """Everything that needs GPUs, into OUT."""
    out.mkdir(parents=True, exist_ok=True)
    spec = TargetSpec(preset=preset, ranks=ranks, defects=BASE)
    run = Recorder(spec, devices_for(ranks, device))
    suite = cases((only,) if only else MODES)
    found = {case.name: Recorded() for case in suite}
    inflation: list[list[Inflation]] | None = None

    with run.processes():
        for mode in MODES:
            for number in range(rounds):
                for case in (one for one in suite if one.mode == mode):
                    request = r.Measure(case.variant, WARMUP, steps, repeats)
                    doing = f"{case.name}: timed without a profiler, round {number + 1}"
                    one = run.ask(doing, request, r.Measured)
                    if one is not None:
                        found[case.name].rounds.append(one)
                        found[case.name].welcome = run.welcomes
        inflation = run.ask("the profiler calibrated", r.Calibrate(), list[Inflation])
    truth = {name: [_step_ns(one) for one in case.rounds] for name, case in found.items()}
    _write(out / "truth.json", {"ranks": ranks, "preset": preset, "step_ns": truth})
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
        if not case.rounds:
            continue
        folder = out / name
        folder.mkdir(exist_ok=True)
        measured = [_together(one) for one in zip(*case.rounds, strict=True)]
        waits = waits_of(measured)
        for index, each in enumerate(rank_folders(folder, spec.ranks)):
            measurement = assembled(
                spec,
                case.welcome[index],
                measured[index],
                case.passes[index] if case.passes else [],
                inflation=inflation[index] if inflation else [],
                sites=case.sites[index] if case.sites else [],
                waits=waits[index],
            )
            write_measurement(each, measurement)


def _step_ns(ranks: list[r.Measured]) -> float:
    """The step of a round: ranks that meet in it each see the same."""
    return statistics.mean(one.timing.step.median_ns for one in ranks)


def _together(rounds: Sequence[r.Measured]) -> r.Measured:
    """One rank's rounds as one measurement: all blocks, and the middle one's other figures."""
    middle = sorted(rounds, key=lambda one: one.timing.step.median_ns)[len(rounds) // 2]
    blocks = [ns for one in rounds for ns in one.timing.blocks_ns]
    watched = [block for one in rounds for block in one.watched]
    together = timing(blocks, middle.timing.steps)
    return msgspec.structs.replace(middle, timing=together, watched=watched)


@main.command()
@click.argument("out", type=click.Path(path_type=Path, file_okay=False, exists=True))
def score(out: Path) -> None:
    """What is said of each recorded case beside what is known of it; OUT/score.json."""
    from hostgap.ranks.diagnose import diagnose_set
    from hostgap.ranks.engines import Local

    recorded = json.loads((out / "truth.json").read_text(encoding="utf-8"))
    truth: dict[str, list[float]] = recorded["step_ns"]
    rows = []
    for case in cases(MODES):
        folder = out / case.name
        if not (folder / "rank0" / "measurement.json").is_file():
            continue
        try:
            found = diagnose_set([str(folder)], engine=Local(1))
        except HostgapError as error:
            print(f"{case.name}: {error.message}")
            continue
        even = truth.get(Case(case.mode, None).name, [])
        rows.append(_scored(case, found, even, truth.get(case.name, [])))
    for row in rows:
        beyond = _beyond_even(row, rows) if row["fault"] is not None else None
        if beyond is not None:
            row["beyond_even_us"] = beyond
            row["off"] = beyond / row["loss_us"] - 1 if row["loss_us"] else None
    _write(out / "score.json", {"ranks": recorded["ranks"], "rows": rows})
    print(_table(rows))
    for row in rows:
        print(f"{row['case']}: {row['said'] or 'no straggler'}")
    right = sum(row["right"] for row in rows)
    print(f"\n{right} of {len(rows)} right")


def _beyond_even(row: dict[str, Any], rows: list[dict[str, Any]]) -> float | None:
    """What the waits of a case cost beyond those of even ranks, us: of the rank that loses most,
    where that was measured without a profiler."""
    even = next((one for one in rows if one["mode"] == row["mode"] and one["fault"] is None), None)
    if even is None or even["not_compared"] is not None or row["wait_cost_us"] is None:
        return None
    lost, usual = row["lost_us"], even["lost_us"]
    if lost and usual:
        at = lost.index(max(lost))
        return float(lost[at] - usual[at])
    return float(row["wait_cost_us"] - (even["wait_cost_us"] or 0.0))  # even ranks may not wait


def _scored(
    case: Case, found: DiagnosisSet, even_ns: list[float], step_ns: list[float]
) -> dict[str, Any]:
    """One case: what was measured without a profiler, what hostgap says, whether that is right.

    Args:
        case: what was done.
        found: of its ranks.
        even_ns: the step of even ranks in each round.
        step_ns: the case's own, timed in turn with those.
    """
    late, summary = found.summary.straggler, found.summary
    named = late if late is not None and late.clear else None
    function = named.site.function if named is not None and named.site is not None else None
    right = named is None
    if case.fault is not None:
        right = named is not None and named.rank == STRAGGLER
        right = right and named.cause in CAUSES[case.fault] and function == PLACES[case.fault]
    waits = [
        one.figures.rank_wait_ns / max(1, len(one.diagnosis.steps.durations_ns)) / 1e3
        for one in found.ranks
        if one.figures is not None
        and one.figures.rank_wait_ns is not None
        and one.diagnosis is not None
    ]
    figures = [one.figures for one in found.ranks if one.figures is not None]
    shown = [one.diagnosis for one in found.ranks if one.diagnosis is not None]
    devices = [one.devices[0] for one in shown if one.devices]
    return {
        "case": case.name,
        "mode": case.mode,
        "fault": case.fault,
        **_loss(even_ns, step_ns),
        "traced_step_us": [
            one.figures.step_ns / 1e3
            for one in found.ranks
            if one.figures is not None and one.figures.step_ns is not None
        ],
        "straggler": None if late is None else msgspec.to_builtins(late),
        "said": None if named is None else f"{named.label}: {named.cause} at {function}",
        "right": right,
        "not_compared": summary.not_compared,
        "rank_wait_us": waits,
        "untraced_wait_us": _us(one.untraced_wait_ns for one in figures),
        "lost_us": _us(one.untraced_lost_ns for one in figures),
        "late_us": None
        if late is None
        else _us((late.late_ns, late.late_low_ns, late.late_high_ns)),
        "wait_cost_us": None if summary.wait_cost_ns is None else summary.wait_cost_ns / 1e3,
        "utilization": [device.kernel_utilization for device in devices],
        "without_collectives": [device.utilization_without_collectives for device in devices],
    }


def _us(each: Iterable[int | None]) -> list[float]:
    return [ns / 1e3 for ns in each if ns is not None]


def _loss(even_ns: list[float], step_ns: list[float]) -> dict[str, Any]:
    """What the fault costs a step, us: the median over rounds, and its interval."""
    losses = [new - old for old, new in zip(even_ns, step_ns, strict=False)]
    middle = estimate(losses) if losses else None
    return {
        "even_us": statistics.median(even_ns) / 1e3 if even_ns else None,
        "step_us": statistics.median(step_ns) / 1e3 if step_ns else None,
        "loss_us": middle and middle.median_ns / 1e3,
        "loss_low_us": middle and middle.low_ns / 1e3,
        "loss_high_us": middle and middle.high_ns / 1e3,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    """The score as markdown."""
    lines = [
        "| case | step, even us | loss us (95 %) | named | right | late us (95 %) | rank-wait us "
        "| as recorded | costs us | beyond even | off | utilization | without collectives |",
        "|---|--:|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        loss = [row["loss_us"], row["loss_low_us"], row["loss_high_us"]]
        cells = (
            row["case"],
            _number(row["even_us"]),
            _interval(loss if row["loss_us"] is not None else None),
            row["said"] or "none",
            "yes" if row["right"] else "NO",
            _interval(row["late_us"]),
            " / ".join(_number(us) for us in row["untraced_wait_us"]) or "-",
            " / ".join(_number(us) for us in row["rank_wait_us"]),
            _number(row["wait_cost_us"]),
            _number(row.get("beyond_even_us")),
            "-" if row.get("off") is None else f"{row['off']:+.1%}",
            " / ".join(_percent(share) for share in row["utilization"]),
            " / ".join(_percent(share) for share in row["without_collectives"]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _interval(values: list[float] | None) -> str:
    """A median and its interval."""
    if not values:
        return "-"
    middle, low, high = values
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


@main.command()
@click.argument("out", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.argument("dest", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--pairs",
    default="graph-host_work,graph-table_upload",
    show_default=True,
    help="Cases to take, the ranks of each.",
)
@click.option("--steps", default=5, show_default=True, help="Steps kept, the first ones.")
def samples(out: Path, dest: Path, pairs: str, steps: int) -> None:
    """Redact and trim the ranks of some cases into DEST, and add them to DEST/samples.json."""
    dest.mkdir(parents=True, exist_ok=True)
    listed = dest / "samples.json"
    entries = json.loads(listed.read_text(encoding="utf-8")) if listed.is_file() else []
    for name in pairs.split(","):
        for folder in sorted((out / name).glob("rank*")):
            entry = sample(name, folder, dest, steps)
            entries = [each for each in entries if each["name"] != entry["name"]] + [entry]
    _write(listed, entries)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
