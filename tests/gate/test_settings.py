"""Budgets and allow lists as people write them, and what they are told of a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hostgap.errors import ConfigError
from hostgap.gate.metrics import METRICS
from hostgap.gate.settings import parse_budgets, read_settings

ALLOW = {"function": "f", "owner": "me", "reason": "why"}


def read(**table: Any) -> Any:
    return read_settings(table, "hostgap.toml", Path("/repo"))


def test_the_table_of_the_documentation() -> None:
    settings = read(
        sync_calls_per_step={"max": 0},
        launches_per_step={"max": 10, "max_regression": "5%"},
        kernel_utilization={"min": "95%", "level": "warning"},
        step_time={"max_regression": 0.05, "level": "warning"},
        idle_per_step={"max": "1.5ms"},
        baseline="ci/hostgap.json",
        strict=True,
        step_class="DECODE",
        allow=[{"function": "sample", "op": "aten::item", "owner": "a", "reason": "b"}],
    )
    budgets = settings.budgets
    assert budgets["sync_calls_per_step"].limit == 0
    assert budgets["launches_per_step"].max_regression == 0.05
    assert budgets["kernel_utilization"].limit == 0.95
    assert budgets["kernel_utilization"].level == "warning"
    assert budgets["step_time"].limit is None
    assert budgets["idle_per_step"].limit == 1.5e6
    assert settings.baseline == Path("/repo/ci/hostgap.json")
    assert (settings.strict, settings.step_class) == (True, "DECODE")
    assert settings.allow[0].per_step == 1
    assert read(**{"sync-calls-per-step": {"max": 0}}).budgets["sync_calls_per_step"].limit == 0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"sync_calls_per_stp": {"max": 0}}, "did you mean 'sync_calls_per_step'"),
        ({"basline": "x"}, "did you mean 'baseline'"),
        ({"utilization": {"min": 0.9}}, "did you mean 'kernel_utilization'"),
        ({"sync_calls_per_step": {"min": 0}}, "sync_calls_per_step has a max"),
        ({"kernel_utilization": {"max": 0.9}}, "kernel_utilization has a min"),
        ({"sync_calls_per_step": 0}, "{ max = 0 }"),
        ({"sync_calls_per_step": {}}, "neither max nor max_regression"),
        ({"sync_calls_per_step": {"max": -1}}, "not a number from 0 on"),
        ({"sync_calls_per_step": {"max": True}}, "not a number from 0 on"),
        ({"sync_calls_per_step": {"max": 0, "level": "fatal"}}, "not 'error' or 'warning'"),
        ({"kernel_utilization": {"min": 95}}, "not a share"),
        ({"kernel_utilization": {"max_regression": "5%"}}, "varies between runs"),
        ({"idle_per_step": {"max": 3}}, "a time such as"),
        ({"step_time": {"max_regression": "0%"}}, "not a regression"),
        ({"step_time": {"max_regression": 10**400}}, "not a regression"),
        ({"kernel_utilization": {"min": 10**400}}, "digits is not a share"),
        ({"launches_per_step": {"max": 10**400}}, "some 400 digits is not a number from 0 on"),
        ({"launches_per_step": {"max": 10**5000}}, "some 5000 digits is not a number from 0 on"),
        ({"strict": "yes"}, "not a bool"),
        ({"baseline": 3}, "not a str"),
        ({"baseline": "a\0b"}, "no name of a file"),
        ({"baseline": ""}, "no name of a file"),
        ({"step_class": "a", "step-class": "b"}, "'step-class' is given twice"),
        (
            {"launches_per_step": {"max": 1}, "launches-per-step": {"max": 2}},
            "'launches-per-step' is given twice",
        ),
        (
            {"launches_per_step": {"max_regression": 0.1, "max-regression": 0.2}},
            "'max-regression' is given twice",
        ),
        ({"allow": [{**ALLOW, "per_step": 1, "per-step": 2}]}, "'per-step' is given twice"),
        ({"allow": {"function": "f"}}, "no list"),
        ({"allow": [{"function": "f"}]}, "owner and a reason"),
        ({"allow": [{**ALLOW, "line": 3}]}, "unknown key 'line'"),
        ({"allow": [{**ALLOW, "owner": " "}]}, "empty owner"),
        (
            {"allow": [{"owner": "a", "reason": "b", "file": "x.py"}]},
            "neither a function nor an op",
        ),
        ({"allow": [{**ALLOW, "per_step": 0}]}, "per_step"),
    ],
)
def test_what_is_wrong_is_named(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(**table)
    whole = f"{raised.value.message}\n{raised.value.hint or ''}"
    assert said in whole
    assert "hostgap.toml" in whole


def test_budgets_of_the_command_line() -> None:
    budgets = parse_budgets(
        ["sync_calls_per_step=0", "kernel-utilization=95%", "step_time=5%", "launches_per_step=2%"]
    )
    assert budgets["kernel_utilization"].limit == 0.95
    assert budgets["step_time"].max_regression == 0.05
    assert budgets["launches_per_step"].max_regression == 0.02
    assert parse_budgets(["step_time=2.5ms"])["step_time"].limit == 2.5e6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sync_calls_per_step", "NAME=VALUE"),
        ("syncs=0", "no metric is called 'syncs'"),
        ("sync_calls_per_step=x", "not a number"),
        ("sync_calls_per_step=nan", "not a number"),
        ("launches_per_step=inf", "not a number"),
        ("step_time=5", "a time such as"),
    ],
)
def test_a_wrong_budget(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_budgets([text])


def test_every_metric_has_a_direction_and_a_meaning() -> None:
    for name, metric in METRICS.items():
        assert metric.bound == ("min" if metric.worse == "lower" else "max"), name
        assert metric.meaning, name
        if metric.kind == "count":
            assert metric.worse == "higher", name
    assert METRICS["kernel_utilization"].bound == "min"
    assert METRICS["idle_share"].bound == "max"
