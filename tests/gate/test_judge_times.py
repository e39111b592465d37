"""Judging times, of processes that were measured without a profiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostgap.errors import ConfigError
from hostgap.gate.judge import gate
from hostgap.gate.model import GateResult
from hostgap.gate.settings import Settings, read_settings
from hostgap.gate.subject import Subject
from tests.gate.sides import check_of, judged, runs_of, sample


def timed(base: Subject | None, new: Subject, **settings: object) -> GateResult:
    table = {"step_time": {"max_regression": "5%"}, **settings}
    made = read_settings(table, "test.toml", Path())
    return gate(new, made, None, base)


def test_slower_processes_fail() -> None:
    base = runs_of(100e6, 100.3e6, 99.8e6, 100.1e6, 99.9e6)
    slow = runs_of(107e6, 106.5e6, 107.3e6, 106.9e6, 107.1e6)
    result = gate(slow, Settings(), None, base)
    check = check_of(result, "step_time", "base runs")
    assert (check.status, result.exit_code) == ("failed", 1)
    assert check.times is not None
    assert check.times.ratio == pytest.approx(1.07, abs=0.005)
    assert "slower" in check.text
    assert gate(base, Settings(), None, base).exit_code == 0
    assert gate(base, Settings(), None, slow).exit_code == 0


def test_too_few_processes_are_undecided() -> None:
    base, slow = runs_of(100e6, 100.1e6, 99.9e6), runs_of(120e6, 120.1e6, 119.9e6)
    for strict, code in ((False, 0), (True, 1)):
        result = gate(slow, Settings(strict=strict), None, base)
        assert (result.outcome, result.exit_code) == ("inconclusive", code)
        assert "5 runs a side would decide" in result.checks[0].text


def test_a_noisy_machine_is_undecided_and_says_what_would_decide() -> None:
    base = runs_of(95e6, 105e6, 99e6, 101e6, 108e6)
    new = runs_of(100e6, 110e6, 103e6, 107e6, 98e6)
    result = gate(new, Settings(), None, base)
    assert result.outcome == "inconclusive"
    assert result.checks[0].times is not None
    assert (result.checks[0].times.runs_needed or 0) > 5


@pytest.mark.parametrize("where", [{"gpu": "NVIDIA A100"}, {"torch": "2.9"}, {"driver": "1"}])
def test_times_of_other_machines_are_refused(where: dict[str, str]) -> None:
    base, new = runs_of(*[100e6] * 5, **where), runs_of(*[100e6] * 5)
    with pytest.raises(ConfigError, match="differ in"):
        gate(new, Settings(), None, base)
    assert gate(new, Settings(allow_mismatch=True), None, base).outcome == "passed"


@pytest.mark.parametrize(
    ("times", "status"),
    [
        ([11e6] * 4, "inconclusive"),
        ([10.5e6, 10.6e6, 10.4e6, 10.7e6, 10.5e6], "failed"),
        ([9.9e6, 10.6e6, 10.4e6, 10.7e6, 10.5e6], "inconclusive"),
        ([9.9e6, *[10.6e6] * 9], "failed"),
        ([9e6, 9e6, 9e6, 9e6, 30e6], "passed"),
        ([9e6], "passed"),
    ],
)
def test_a_limit_of_the_steps_time(times: list[float], status: str) -> None:
    result = judged(runs_of(*times), step_time={"max": "10ms"})
    assert check_of(result, "step_time").status == status


def test_of_an_even_number_of_processes_the_mean_of_the_middle_two_is_held_to_it() -> None:
    result = judged(runs_of(1e6, 2e6), step_time={"max": "1.6ms"})
    assert check_of(result, "step_time").value == 1.5e6
    assert check_of(result, "step_time").status == "passed"


def test_traces_have_no_unprofiled_times() -> None:
    result = timed(sample("eager.json.gz"), sample("eager.json.gz"))
    check = check_of(result, "step_time", "base runs")
    assert check.status == "skipped"
    alone = timed(None, sample("eager.json.gz"))
    assert "--base" in check_of(alone, "step_time", "base runs").text
    assert (alone.outcome, alone.exit_code) == ("inconclusive", 0)  # it decides nothing
    assert timed(None, sample("eager.json.gz"), strict=True).exit_code == 1


def test_counts_against_the_base_runs_trace() -> None:
    """A base with a trace needs no baseline file."""
    result = gate(sample("eager_item.json.gz"), Settings(), None, sample("eager.json.gz"))
    assert check_of(result, "sync_calls_per_step", "base runs").status == "failed"
