"""A `Bench` without a GPU: steps whose time follows from which fixes are on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hostgap.diagnosis import model as m
from hostgap.errors import FixFailed
from hostgap.fixes.fix import Fix, Stage
from hostgap.profiling.bench import Built, Comparison, Proof, Traced, Variant
from hostgap.profiling.measurement import Estimate, Timing
from hostgap.profiling.workload import Workload

MS = 1_000_000
STEPS = 10


@dataclass
class Machine:
    """The cost model: what a variant's host and GPU take for a step, and what is found in it."""

    times: Callable[[Variant], tuple[float, float]]  # host ns, GPU ns
    findings: Callable[[Variant], Mapping[str, float | None]]  # code -> saving per step, ns
    noise: float = 0.003
    fails: Callable[[Variant], str | None] = lambda _: None
    wrong: Callable[[Variant], str | None] = lambda _: None
    infos: tuple[str, ...] = ()
    tokens: int | None = 1
    log: list[str] = field(default_factory=list)
    alive: set[Variant] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(0)

    def step(self, variant: Variant) -> float:
        return max(self.times(variant))

    def blocks(self, variant: Variant) -> list[float]:
        return [self.step(variant) * (1 + self.random.gauss(0, self.noise)) for _ in range(9)]

    def build(self, variant: Variant) -> Built:
        self.log.append(f"build {named(variant)}")
        if (why := self.fails(variant)) is not None:
            raise FixFailed(why)
        self.alive.add(variant)
        return Built(costs={"capture_ms": 12.0}, tokens=self.tokens)

    def compare(self, old: Variant, new: Variant) -> Comparison:
        self.log.append(f"compare {named(old)} {named(new)}")
        before, after = self.blocks(old), self.blocks(new)
        ratios = sorted(b / a for a, b in zip(before, after, strict=True))
        return Comparison(timing(before), timing(after), ratios[4], ratios[1], ratios[7])

    def prove(self, reference: Variant, variant: Variant) -> Proof:
        self.log.append(f"prove {named(variant)}")
        why = self.wrong(variant)
        return Proof(why is None, 32, 4, 128, 128, 0.001, 0.02, why)

    def trace(self, variant: Variant) -> Traced:
        self.log.append(f"trace {named(variant)}")
        self.last = variant
        return Traced(Path("none"), timing(self.blocks(variant)), None, [])

    def drop(self, variant: Variant) -> None:
        self.alive.discard(variant)

    def diagnose(self, _: Traced) -> m.Diagnosis:
        host, gpu = self.times(self.last)
        return diagnosis(self.findings(self.last), max(host, gpu), gpu, self.infos)


def named(variant: Variant) -> str:
    return "+".join((*variant.defects, *variant.fixes)) or "start"


def timing(blocks: list[float]) -> Timing:
    ordered = sorted(blocks)
    step = Estimate(median_ns=ordered[len(ordered) // 2], low_ns=ordered[1], high_ns=ordered[-2])
    return Timing(step=step, steps=30, blocks_ns=blocks)


class Sim(Fix):
    """A fix that exists by its name alone."""

    stage = Stage.EXECUTION

    def __init__(self, name: str, codes: tuple[str, ...], **more: object) -> None:
        self.name, self.title, self.codes = name, f"do {name}", codes
        for key, value in more.items():
            setattr(self, key, value)

    def apply(self, workload: Workload) -> Workload:
        return workload


def fixes_of(*fixes: Fix) -> dict[str, Fix]:
    return {fix.name: fix for fix in fixes}


def diagnosis(
    findings: Mapping[str, float | None],
    step_ns: float = 10 * MS,
    gpu_ns: float = MS,
    infos: tuple[str, ...] = (),
) -> m.Diagnosis:
    found = [
        m.Finding(
            code=code,
            name=code.lower(),
            severity="info" if code in infos else "warning",
            title=code,
            site=None,
            count=STEPS,
            count_per_step=1.0,
            blocked_ns=0,
            shadow_ns=0,
            predicted_saving_ns=None if saving is None else round(saving * STEPS),
            predicted_saving_low_ns=None,
            predicted_saving_share=None,
            predicted_saving_low_share=None,
            advice="",
            evidence=[],
            fix=None,
        )
        for code, saving in findings.items()
    ]
    busy, window = round(gpu_ns * STEPS), round(step_ns * STEPS)
    device = m.DeviceMetrics(
        device=0,
        name="Simulated",
        window_ns=window,
        kernel_busy_ns=busy,
        active_ns=busy,
        idle_ns=window - busy,
        copy_only_ns=0,
        kernel_utilization=busy / window,
        active_utilization=busy / window,
        utilization_without_collectives=None,
        reason=None,
        kernels=100,
        copies=0,
        memsets=0,
        orphans=0,
        gaps=m.Gaps(over_1us=0, over_10us=0, total_ns=0),
        idle_by_cause={},
        idle_sites=[],
        launch_latency_median_ns=None,
        streams=[],
    )
    per_step = m.PerStep(launches=10, graph_launches=0, sync_calls=1, copies=0, allocs=0, idle_ns=0)
    return m.Diagnosis(
        schema=m.SCHEMA,
        tool=m.Tool(name="hostgap", version="0"),
        trace=m.TraceInfo(
            source="kineto",
            file="none",
            events=1,
            window="steps",
            integrity=m.IntegrityVerdict(verdict="ok", reasons=[]),
        ),
        verdict=None,
        devices=[device],
        counts=m.Counts(
            launches=100,
            graph_launches=0,
            sync_calls=10,
            blocking_syncs=10,
            allocs=0,
            copies=m.Copies(h2d=0, d2h=0, d2d=0, pageable=0),
        ),
        steps=m.StepsSummary(
            count=STEPS,
            total=STEPS,
            source="annotation",
            first=0,
            fill_ns=None,
            durations_ns=[],
            classes=[],
            main_class=None,
            per_step=per_step,
        ),
        syncs=[],
        cost_factor=None,
        saving_basis="upper_bound",
        unprofiled=None,
        capture=m.Capture(gpu_ops_in_graphs=0.0, idle_in_graphs=0.0),
        launch=m.LaunchFigures(call_share=0.3, lead_median_ns=None),
        cost=None,
        batches=None,
        whatif=None,
        findings=found,
        not_applicable=[],
        problems=[],
    )
