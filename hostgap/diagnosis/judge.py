"""From measured to judged: findings, verdict, cost and launch figures of one analysis."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hostgap.analysis.calibration import Calibration, calibration_of
from hostgap.analysis.examine import Analysis
from hostgap.analysis.integrity import Verdict as Trust
from hostgap.config import refuse_twice
from hostgap.diagnosis import model as m
from hostgap.diagnosis.batches import by_batch
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.engine import MIN_SAVING, run_rules
from hostgap.diagnosis.measured import unprofiled
from hostgap.diagnosis.registry import Registry, load_rules, unknown_code
from hostgap.diagnosis.rule import Options
from hostgap.diagnosis.verdict import give_verdict
from hostgap.errors import ConfigError
from hostgap.profiling.measurement import Measurement
from hostgap.trace.model import Role

# A profiler makes kernels a few per cent longer, dependent launches in graphs more; not twice.
LEAST_OF_KERNELS = 0.5
LARGEST_THRESHOLD = 1e15


@dataclass(frozen=True, slots=True)
class Judging:
    """What to judge by.

    Attributes:
        select, ignore: codes of rules, or their beginnings.
        folders: of rules of the user's own.
        thresholds: code -> settings, as a configuration file has them.
        min_saving: share of the step that a finding must save to be more than `info`.
        gpu_price: per GPU and hour, in any currency.
        tokens_per_step: over all requests of a batch.
        measurement: what `hostgap profile` measured beside the trace.
        calibration: what is known of the unprofiled step; with it, savings are of that.
    """

    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    folders: Sequence[Path] = ()
    thresholds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    min_saving: float = MIN_SAVING
    gpu_price: float | None = None
    tokens_per_step: float | None = None
    measurement: Measurement | None = None
    calibration: Calibration | None = None

    def of_run(self, measurement: Measurement) -> Judging:
        """The same, with what a run directory says.

        Raises:
            TraceError: its step takes no time.
        """
        calibration = calibration_of(measurement)
        return replace(self, measurement=measurement, calibration=calibration)


def _check_given(step_ns: float, diagnosis: m.Diagnosis) -> None:
    """Refuse an unprofiled step that its own kernels do not fit into."""
    busy = max((device.kernel_busy_ns for device in diagnosis.devices), default=0)
    busy_ns = busy / max(1, diagnosis.steps.count)
    if step_ns < LEAST_OF_KERNELS * busy_ns:
        raise ConfigError(
            f"a step of {step_ns / 1e6:g} ms cannot hold its kernels, "
            f"which take {busy_ns / 1e6:.3g} ms",
            "--unprofiled-step-ms is in milliseconds, of one step as the trace divides them",
        )


def judge(diagnosis: m.Diagnosis, analysis: Analysis, judging: Judging) -> m.Diagnosis:
    """A diagnosis with its findings, verdict, cost and launch figures.

    Args:
        diagnosis: the measured figures of `analysis`.
        analysis: the tables.
        judging: which rules, and by what thresholds.

    Raises:
        ConfigError: a code that no rule has, a threshold that a rule does not have, no such folder,
            an unprofiled step for a trace without steps, or one shorter than its kernels.
    """
    if judging.calibration is not None and analysis.steps.marks.source == "whole":
        raise ConfigError(
            "the length of an unprofiled step says nothing of a trace without steps",
            "name what begins a step: --step-marker",
        )
    if judging.calibration is not None and judging.measurement is None:
        _check_given(judging.calibration.step_ns, diagnosis)
    registry = load_rules(judging.folders)
    rules = registry.chosen(judging.select, judging.ignore)
    options = rule_options(registry, judging.thresholds)
    empty = all(device.high <= device.low for device in analysis.devices.values())
    if analysis.integrity.verdict is Trust.UNMEASURABLE or empty:
        reason = "the trace supports no verdict"
        nothing = [m.NotApplicable(code=r.code, name=r.name, reason=reason) for r in rules]
        return msgspec.structs.replace(
            diagnosis,
            verdict="unmeasurable",
            not_applicable=nothing,
            problems=list(registry.problems),
        )
    context = Context(analysis, registry.wait_rules(), judging.measurement, judging.calibration)
    outcome = run_rules(context, rules, options, judging.min_saving)
    busy = {each.device: each.kernel_busy_ns for each in diagnosis.devices}
    kernel_busy = busy[context.trace.devices[context.code].id]
    return msgspec.structs.replace(
        diagnosis,
        verdict=give_verdict(context),
        saving_basis="upper_bound" if context.calibrated is None else "calibrated",
        unprofiled=unprofiled(context, kernel_busy),
        findings=outcome.findings,
        not_applicable=outcome.not_applicable,
        problems=[*registry.problems, *outcome.problems],
        batches=by_batch([diagnosis.steps]),
        whatif=outcome.whatif,
        launch=_launch(context),
        cost=_cost(context, judging),
    )


def rule_options(
    registry: Registry, thresholds: Mapping[str, Mapping[str, Any]]
) -> dict[str, Options]:
    """Options of rules from a configuration's tables.

    Raises:
        ConfigError: no such rule, no such threshold (with the nearest), either of them twice, or a
            value that is none.
    """
    result: dict[str, Options] = {}
    for code, settings in thresholds.items():
        rule = registry.rules.get(code.upper())
        if rule is None:
            raise unknown_code(code, registry.rules)
        if rule.code in result:
            raise ConfigError(
                f"rule {rule.code} is given twice", "put its thresholds into one table"
            )
        known = [f.encode_name for f in msgspec.structs.fields(rule.options)]
        refuse_twice(settings, rule.code)
        values = {key.replace("_", "-"): value for key, value in settings.items()}
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known)}"
                raise ConfigError(f"{rule.code} has no option {key!r}", hint)
        for key, value in values.items():
            if isinstance(value, int | float) and not 0 <= value <= LARGEST_THRESHOLD:
                raise ConfigError(
                    f"{rule.code}: {key} is no number from 0 to {LARGEST_THRESHOLD:.0e}"
                )
        try:
            result[rule.code] = msgspec.convert(values, rule.options)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{rule.code}: {error}") from error
    return result


def _launch(context: Context) -> m.LaunchFigures:
    api, gpu = context.trace.api_calls, context.trace.gpu_ops
    rows = np.flatnonzero(context.calls & np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH)))
    if len(rows) == 0:
        return m.LaunchFigures(call_share=None, lead_median_ns=None)
    inside = int((api.end[rows] - api.start[rows]).sum())
    launched = context.launched
    eager = ~launched.graph
    lead = gpu.start[launched.op[eager]] - context.call_end[launched.call[eager]]
    return m.LaunchFigures(
        call_share=inside / context.window_ns if context.window_ns else None,
        lead_median_ns=int(np.median(lead)) if len(lead) else None,
    )


def _cost(context: Context, judging: Judging) -> m.Cost | None:
    if judging.gpu_price is None:
        return None
    real = unprofiled(context, 0)
    step_ns = context.window_ns / context.steps if real is None else real.step_ns
    hours = step_ns / 3.6e12
    analysis = context.analysis
    stepped = analysis.options.window == "steps" and analysis.steps.marks.source != "whole"
    per_step = judging.gpu_price * hours * 1e6 if stepped else None
    share = context.idle() / context.window_ns if context.window_ns else 0.0
    if real is not None and real.exposed_idle_ns is not None:
        share = real.exposed_idle_ns / real.step_ns
    tokens = judging.tokens_per_step
    per_token = per_step / tokens if per_step is not None and tokens else None
    return m.Cost(
        gpu_price_per_hour=judging.gpu_price,
        per_million_steps=per_step,
        idle_per_million_steps=per_step * share if per_step is not None else None,
        per_million_tokens=per_token,
        idle_per_million_tokens=per_token * share if per_token is not None else None,
    )
