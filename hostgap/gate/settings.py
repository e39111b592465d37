"""What a gate is asked to hold: `[tool.hostgap.gate]`, `--budget k=v`, the allow list."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hostgap.config import refuse_twice
from hostgap.errors import ConfigError
from hostgap.gate.metrics import METRICS, Metric, metric_named
from hostgap.gate.model import Allow, Level

DEFAULT_BASELINE = "hostgap.json"
_UNITS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_TIME = re.compile(r"([0-9.eE+-]+)\s*(ns|us|µs|ms|s)")
_KEYS = ("baseline", "strict", "allow-mismatch", "step-class", "allow")


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit for one metric.

    Attributes:
        limit: in its own unit (counts, shares from 0 to 1, ns); None: only the regression counts.
        max_regression: share by which it may be worse than before; None: none is held.
        level: what a breach is.
    """

    metric: Metric
    limit: float | None = None
    max_regression: float | None = None
    level: Level = "error"


@dataclass(frozen=True, slots=True)
class Settings:
    """All of a gate's settings.

    Attributes:
        baseline: the file, and whether it was asked for: the default one may be missing.
    """

    budgets: dict[str, Budget] = field(default_factory=dict)
    allow: tuple[Allow, ...] = ()
    baseline: Path | None = None
    baseline_named: bool = False
    strict: bool = False
    allow_mismatch: bool = False
    step_class: str | None = None


def read_settings(table: Mapping[str, Any], where: str, folder: Path) -> Settings:
    """Settings from the table `gate` of a configuration file.

    Args:
        table: as the file has it.
        where: the file, for messages.
        folder: of the file; a baseline named in it lies relative to that.

    Raises:
        ConfigError: an unknown key or metric (with the nearest), or a value that does not fit.
    """
    budgets: dict[str, Budget] = {}
    known: dict[str, Any] = {}
    refuse_twice(table, f"{where}: gate")
    for raw, value in table.items():
        key = raw.replace("_", "-")
        if key in _KEYS:
            known[key] = value
        else:
            if raw.replace("-", "_") not in METRICS:
                near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.8)
                if near:
                    raise ConfigError(
                        f"{where}: unknown key gate.{raw!r}", f"did you mean {near[0]!r}?"
                    )
            metric = metric_named(raw, f"{where}: gate")
            budgets[metric.name] = _budget(metric, value, f"{where}: gate.{raw}")
    named = _of(known, "baseline", str, where)
    if named is not None and (not named.strip() or "\0" in named):
        raise ConfigError(f"{where}: gate.baseline is {named!r}, no name of a file")
    return Settings(
        budgets=budgets,
        allow=_allow_list(known.get("allow", []), where),
        baseline=folder / named if named is not None else None,
        baseline_named=named is not None,
        strict=_of(known, "strict", bool, where) or False,
        allow_mismatch=_of(known, "allow-mismatch", bool, where) or False,
        step_class=_of(known, "step-class", str, where),
    )


def parse_budgets(texts: Iterable[str]) -> dict[str, Budget]:
    """`--budget NAME=VALUE`, each.

    A value is the metric's max or min, whichever it has; `5%` of a count or of `step_time` is how
    much worse it may be than before.

    Raises:
        ConfigError: no `=`, no such metric (with the nearest), or no such value.
    """
    found: dict[str, Budget] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value.strip():
            raise ConfigError(f"--budget {text}: not of the form NAME=VALUE", _example())
        metric = metric_named(name.strip(), "--budget")
        value, where = value.strip(), f"--budget {text}"
        if value.endswith("%") and metric.kind in ("count", "step time"):
            found[metric.name] = Budget(metric, max_regression=_regression(metric, value, where))
        else:
            found[metric.name] = Budget(metric, limit=_limit(metric, value, where))
    return found


def _example() -> str:
    return "such as --budget sync_calls_per_step=0 or --budget kernel_utilization=95%"


def _of(known: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    value = known.get(key)
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{where}: gate.{key} is {value!r}, not a {kind.__name__}")
    return value


def _budget(metric: Metric, value: Any, where: str) -> Budget:
    example = f"{metric.name} = {{ {metric.bound} = {_sample(metric)} }}"
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: {value!r} is no budget", f"write {example}")
    refuse_twice(value, where)
    settings = {key.replace("_", "-"): setting for key, setting in value.items()}
    for key in settings:
        if key not in ("max-regression", "level", metric.bound):
            reason = "" if key not in ("max", "min") else f": {metric.name} has a {metric.bound}"
            raise ConfigError(f"{where}: unknown key {key!r}{reason}", f"write {example}")
    level = settings.get("level", "error")
    if level not in ("error", "warning"):
        raise ConfigError(f"{where}.level is {level!r}, not 'error' or 'warning'")
    limit, regression = settings.get(metric.bound), settings.get("max-regression")
    if limit is None and regression is None:
        raise ConfigError(f"{where}: neither {metric.bound} nor max_regression", f"write {example}")
    return Budget(
        metric,
        _limit(metric, limit, where) if limit is not None else None,
        _regression(metric, regression, where) if regression is not None else None,
        level,
    )


def _sample(metric: Metric) -> str:
    samples = {"count": "0", "share": '"95%"', "traced time": '"1.5ms"', "step time": '"2.5ms"'}
    return samples[metric.kind]


def _limit(metric: Metric, value: Any, where: str) -> float:
    number = math.nan
    if metric.kind == "share":
        number = _share(value)
        fits, form = 0 <= number <= 1, "a share such as 95% or 0.95"
    elif metric.kind == "count":
        number = _number(value)
        fits, form = number >= 0, "a number from 0 on"
    else:
        match = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
        if match:
            number = _number(match[1]) * _UNITS[match[2]]
        fits, form = number > 0, "a time such as 2.5ms or 800us"
    if not fits or math.isinf(number):
        raise ConfigError(f"{where}: {_shown(value)} is not {form}")
    return number


def _regression(metric: Metric, value: Any, where: str) -> float:
    if metric.kind not in ("count", "step time"):
        raise ConfigError(
            f"{where}: {metric.name} varies between runs of the same code",
            f"max_regression is for counts and step_time; give it a {metric.bound}",
        )
    share = _share(value)
    if not 0 <= share <= 10 or (metric.kind == "step time" and share < 0.001):
        raise ConfigError(f"{where}: {value!r} is not a regression such as 5%")
    return share


def _share(value: Any) -> float:
    if isinstance(value, str) and value.strip().endswith("%"):
        return _number(value.strip()[:-1]) / 100
    return _number(value)


def _number(value: Any) -> float:
    """The number, nan where it is none."""
    if isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _shown(value: Any) -> str:
    """A value for a message; Python writes out no integer of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"an integer of some {value.bit_length() * math.log10(2):.0f} digits"
    return repr(value)


def _allow_list(entries: Any, where: str) -> tuple[Allow, ...]:
    if not isinstance(entries, list):
        raise ConfigError(f"{where}: gate.allow is no list", "write [[tool.hostgap.gate.allow]]")
    found = []
    fields = [each.encode_name for each in msgspec.structs.fields(Allow)]
    for number, entry in enumerate(entries, 1):
        at = f"{where}: gate.allow, entry {number}"
        if not isinstance(entry, dict):
            raise ConfigError(f"{at}: {entry!r} is no table")
        refuse_twice(entry, at)
        settings = {key.replace("_", "-"): value for key, value in entry.items()}
        for key in settings:
            if key not in fields:
                near = difflib.get_close_matches(key, fields, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(fields)}"
                raise ConfigError(f"{at}: unknown key {key!r}", hint)
        try:
            allow = msgspec.convert(settings, Allow)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{at}: {error}", "each has an owner and a reason") from error
        if not (allow.owner.strip() and allow.reason.strip()):
            raise ConfigError(f"{at}: an empty owner or reason")
        if not (allow.function or allow.op):
            raise ConfigError(f"{at}: names neither a function nor an op", "lines move: not a line")
        if not 0 < allow.per_step < 1e9:
            raise ConfigError(f"{at}: per_step is {allow.per_step!r}, not a number above 0")
        found.append(allow)
    return tuple(found)
