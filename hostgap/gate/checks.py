"""Single checks: one diagnosis and class of steps, asked for one metric after the other."""

from __future__ import annotations

import statistics
from math import comb
from typing import Literal

from hostgap.diagnosis.model import StepClass
from hostgap.gate import model as g
from hostgap.gate.baseline import Entry, whole_graphs
from hostgap.gate.culprits import Waits, culprits_of
from hostgap.gate.metrics import EXACT, METRICS, Metric, shown
from hostgap.gate.settings import Budget, Settings
from hostgap.gate.subject import Subject
from hostgap.gate.times import FEWEST

_LOST = "HG927"  # the recording tool says that events are missing, of whatever kind
_NO_CALLS = "HG928"
_DROPPED = "HG903"  # some launches without their kernels: only what is read off GPU rows is wrong


class Checks:
    """What one side is held to.

    Attributes:
        new, step: the side, and the class of its steps that is gated.
        bad: why nothing of it may be gated on; None where it may.
        waits: its waits, the allow list taken off.
        entry, against: what it is compared with, and what that comes from.
    """

    def __init__(
        self,
        new: Subject,
        step: StepClass | None,
        bad: str | None,
        waits: Waits,
        entry: Entry | None,
        against: Literal["baseline", "base runs"],
    ) -> None:
        self.new, self.step, self.bad = new, step, bad
        self.waits, self.entry, self.against = waits, entry, against

    def value(self, metric: Metric) -> tuple[float | None, str | None]:
        """A metric's value, or why there is none."""
        diagnosis = self.new.diagnosis
        if metric.kind == "step time":
            if self.new.times_ns:
                return statistics.median(self.new.times_ns), None
            if diagnosis is not None and diagnosis.unprofiled is not None:
                return float(diagnosis.unprofiled.step_ns), None
            return None, None  # a trace says nothing of it: not a fault of the trace
        if diagnosis is None:
            return None, f"{self.new.name} has no trace to count in"
        if self.bad is not None:
            return None, self.bad
        if self.step is None and (metric.name.endswith("_per_step")):
            return None, "a figure per step, and the trace has no steps (--step-marker)"
        for reason in diagnosis.trace.integrity.reasons:
            if reason.code in ((_DROPPED, _LOST) if metric.gpu_side else (_NO_CALLS, _LOST)):
                return None, reason.text
        counts = diagnosis.counts
        launched = counts.launches or counts.graph_launches
        if not (metric.gpu_side or launched) and any(d.kernels for d in diagnosis.devices):
            return None, "kernels and no launches: CUDA calls were not recorded"
        step = self.step or diagnosis.steps.classes[0]
        value = metric.value(diagnosis, step)
        return value, None if value is not None else "the trace does not say"

    def budget(self, budget: Budget) -> g.Check:
        """One budget with a limit of its own."""
        metric, limit = budget.metric, budget.limit
        assert limit is not None
        value, reason = self.value(metric)
        if value is None and reason is None:
            return self._check(
                budget, "skipped", None, "only runs of hostgap profile know the unprofiled step"
            )
        if value is None:
            return self._check(budget, "unmeasurable", None, reason or "")
        held = self._held(metric, value)
        allowed, value = value - held, held
        worse = value > limit + 1e-9 if metric.worse == "higher" else value < limit - 1e-9
        status: g.Status = "passed"
        sure = metric.kind != "step time" or self._surely_above(limit)
        if worse and not sure:
            status = "inconclusive"
        elif worse:
            status = "failed" if budget.level == "error" else "warning"
        held_to = shown(metric, limit)
        wanted = f"at most {held_to} allowed"
        if metric.worse == "lower":
            wanted = f"at least {held_to} wanted"
        text = f"{shown(metric, value)}, {wanted}"
        if metric.kind == "step time":
            n = max(1, len(self.new.runs))
            text += f" ({n} process{'' if n == 1 else 'es'}"
            text += f": undecided; {FEWEST} at least decide)" if worse and not sure else ")"
        if allowed > 1e-9:
            count = METRICS["sync_calls_per_step"]
            text += f"; {shown(count, allowed)} more a step on the allow list"
        if metric.kind in ("share", "traced time") and not self._measured(metric):
            bound = "lower" if metric.worse == "lower" else "upper"
            text += f" (with the profiler on: {'an' if bound == 'upper' else 'a'} {bound} bound)"
        return self._check(budget, status, value, text, allowed=allowed, worse=worse)

    def _surely_above(self, limit_ns: float) -> bool:
        """Whether the median of processes is above a limit: its one-sided 95 % bound is."""
        times = sorted(self.new.times_ns)
        n = len(times)
        if n < FEWEST:
            return False
        below = 0  # processes that may be below it all the same
        while sum(comb(n, k) for k in range(below + 2)) <= 0.05 * 2**n:
            below += 1
        return times[below] > limit_ns

    def _held(self, metric: Metric, value: float) -> float:
        """A count without what the allow list lets be.

        Waits are counted by place over all steps, and so a share of them is taken off a class's.
        """
        if metric.name == "sync_calls_per_step":
            return value * self.waits.left
        if metric.name == "blocking_syncs_per_step":
            return max(0.0, value - self.waits.allowed)
        if metric.name == "copies_per_step":
            return max(0.0, value - self.waits.allowed_copies)
        return value

    def _measured(self, metric: Metric) -> bool:
        """Whether it does not depend on how much the profiler slows the host."""
        if metric.name == "gpu_ops_in_graphs":
            return True
        diagnosis = self.new.diagnosis
        assert diagnosis is not None
        unprofiled = diagnosis.unprofiled
        return metric.name == "kernel_utilization" and (
            unprofiled is not None and unprofiled.kernel_utilization is not None
        )

    def _check(
        self,
        budget: Budget,
        status: g.Status,
        value: float | None,
        text: str,
        *,
        allowed: float = 0.0,
        worse: bool = False,
    ) -> g.Check:
        return g.Check(
            metric=budget.metric.name,
            against="budget",
            level=budget.level,
            status=status,
            value=value,
            limit=budget.limit,
            base=None,
            text=text,
            allowed=round(allowed, 6),
            culprits=self._culprits(budget.metric) if worse else [],
        )

    def _culprits(self, metric: Metric) -> list[g.Culprit]:
        if metric.name == "sync_calls_per_step":
            return self.waits.culprits
        if metric.name in ("copies_per_step", "pageable_copies_per_step") and self.waits.copies:
            return self.waits.copies
        diagnosis = self.new.diagnosis  # runs alone have none
        return culprits_of(metric, diagnosis) if diagnosis is not None else []

    def against_entry(self, settings: Settings) -> list[g.Check]:
        """Every count of the baseline."""
        assert self.entry is not None
        return [
            self._regression(METRICS[name], settings.budgets.get(name))
            for name in EXACT
            if name in self.entry.metrics
        ]

    def _regression(self, metric: Metric, budget: Budget | None) -> g.Check:
        entry = self.entry
        assert entry is not None
        assert self.new.diagnosis is not None
        base = entry.metrics[metric.name]
        level: g.Level = budget.level if budget else "error"
        value, reason = self.value(metric)
        status: g.Status = "passed"
        text, worse = "", False
        if value is None:
            status, text = "unmeasurable", reason or ""
        elif metric.name == "copies_per_step" and entry.whole_graphs != whole_graphs(
            self.new.diagnosis
        ):
            status, text = "skipped", "one of the traces does not show what is inside graphs"
        else:
            # what was allowed after the baseline was written is no regression
            value = max(min(value, base), self._held(metric, value))
            limit = base * (1 + (budget.max_regression or 0.0)) if budget else base
            text = f"{shown(metric, value)}, {self.against} {shown(metric, base)}"
            if value > limit + 1e-6:
                status, worse = ("failed" if level == "error" else "warning"), True
                if metric.name == "graph_launches_per_step" and self._captured(value - base):
                    status, worse = "passed", False
                    text += "; they take the place of more launches"
                elif (value - limit) * min(entry.steps, self._steps) <= 1 + 1e-6 and (
                    value != round(value)
                ):
                    status = "warning"
                    text += f": once in {self._steps} steps, so not in each of them"
        return g.Check(
            metric=metric.name,
            against=self.against,
            level=level,
            status=status,
            value=value,
            limit=None,
            base=base,
            text=text,
            culprits=self._culprits(metric) if worse else [],
        )

    @property
    def _steps(self) -> int:
        return len(self.step.steps) if self.step else 1

    def _captured(self, more: float) -> bool:
        """Whether launches were put into graphs: fewer of them than graphs have come."""
        assert self.entry is not None
        before = self.entry.metrics.get("launches_per_step", 0.0)
        now, _ = self.value(METRICS["launches_per_step"])
        return now is not None and before - now > more

    def notes(self, settings: Settings) -> list[str]:
        """What differs between the two without being worse."""
        entry, diagnosis = self.entry, self.new.diagnosis
        assert entry is not None
        assert diagnosis is not None
        said = []
        if entry.source != diagnosis.trace.source:
            said.append(
                f"{_SOURCES[entry.source]} against {_SOURCES[diagnosis.trace.source]}: counts are "
                "compared, times are not"
            )
        if entry.steps != self._steps:
            said.append(f"counted over {self._steps} steps, the {self.against} over {entry.steps}")
        better = []
        for name in EXACT:
            value, _ = self.value(METRICS[name])
            base = entry.metrics.get(name)
            if value is not None and base is not None and value < base - 1e-6:
                better.append(
                    f"{name} {shown(METRICS[name], base)} -> {shown(METRICS[name], value)}"
                )
        if better:
            update = "; --update-baseline keeps it so" if self.against == "baseline" else ""
            said.append(f"better than the {self.against}: {', '.join(better)}{update}")
        return said


_SOURCES = {"kineto": "a torch.profiler trace", "nsys": "an Nsight trace"}
