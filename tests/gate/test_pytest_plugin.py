"""The pytest plugin: budgets of tests, with a recorder that hands out bundled traces."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.gate.sides import SAMPLES

pytest_plugins = "pytester"

# An editable install made before the plugin existed does not know its entry point.
INSTALLED = any(point.name == "hostgap" for point in entry_points(group="pytest11"))

RECORDER = f"""
import shutil
import pytest

class Sample:
    def __init__(self, reason=None):
        self.reason = reason

    def unavailable(self):
        return self.reason

    def record(self, step, path, *, steps, warmup, stacks):
        for _ in range(warmup):
            step()
        shutil.copyfile({str(SAMPLES)!r} + "/" + step() + ".json.gz", path)
        return path

@pytest.fixture(scope="session")
def hostgap_recorder():
    return Sample(REASON)
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest("REASON = None\n" + RECORDER)
    return pytester


def outcome(project: pytest.Pytester, text: str, *args: str) -> pytest.RunResult:
    project.makepyfile("import pytest\n" + text)
    options = ["-p", "no:cacheprovider", "--strict-markers"]
    if not INSTALLED:
        options += ["-p", "hostgap.pytest_plugin"]
    return project.runpytest_inprocess(*options, *args)


def test_clean_passes_and_is_summed_up(project: pytest.Pytester) -> None:
    result = outcome(
        project,
        """
@pytest.mark.hostgap(max_sync_calls=0, max_launches=2000)
def test_decode(hostgap):
    diagnosis = hostgap(lambda: "eager")
    assert diagnosis.steps.per_step.launches == 1228
""",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*= hostgap =*", "*test_decode ok: Per step: 1,228 launches*0 syncs*"]
    )


def test_over_a_budget_fails_with_the_place(project: pytest.Pytester) -> None:
    result = outcome(
        project,
        """
@pytest.mark.hostgap(max_sync_calls=0, min_utilization="95%")
def test_decode(hostgap):
    hostgap(lambda: "eager_item")
    raise AssertionError("not reached")
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "Gate failed: sync_calls_per_step, kernel_utilization",
            "*FAILED sync_calls_per_step*1, at most 0 allowed*",
            "*HG101 record.py:67 decode_until_eos, 1x a step*",
            "*test_decode FAILED: Per step*",
        ]
    )
    assert "not reached" not in result.stdout.str()


def test_without_a_gpu_it_is_skipped_with_the_reason(project: pytest.Pytester) -> None:
    project.makeconftest('REASON = "no CUDA device that torch can use"\n' + RECORDER)
    text = """
@pytest.mark.hostgap(max_sync_calls=0)
def test_decode(hostgap):
    raise AssertionError
"""
    result = outcome(project, text, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*hostgap: no CUDA device that torch can use"])


def test_the_recorder_of_this_machine(pytester: pytest.Pytester) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = outcome(pytester, "def test_it(hostgap): pass", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*hostgap: no CUDA device that torch can use"])


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("max_sync_cals=0", "did you mean 'max_sync_calls'"),
        ("min_sync_calls=0", "did you mean 'max_sync_calls'"),
        ("max_utilization=1", "did you mean 'min_utilization'"),
        ("max_sync_calls='many'", "not a number"),
        ("max_sync_calls=10**400", "digits is not a number"),
        ("max_sync_calls=10**5000", "digits is not a number"),
        ("0", "takes names"),
    ],
)
def test_a_wrong_marker_is_an_error(project: pytest.Pytester, marker: str, said: str) -> None:
    text = f"@pytest.mark.hostgap({marker})\ndef test_decode(hostgap): pass"
    result = outcome(project, text)
    result.assert_outcomes(errors=1)
    assert said in result.stdout.str()


def test_a_marker_that_gates_nothing_is_an_error(project: pytest.Pytester) -> None:
    result = outcome(
        project,
        """
@pytest.mark.hostgap(max_sync_calls=0)
def test_no_fixture():
    pass

@pytest.mark.hostgap(max_sync_calls=0)
def test_no_call(hostgap):
    pass

@pytest.mark.hostgap(max_sync_calls=0)
def test_skips_itself(hostgap):
    pytest.skip("not today")
""",
    )
    result.assert_outcomes(errors=2, passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*does not use the fixture*", "*never called*"])


def test_ini_budgets_steps_and_kept_traces(project: pytest.Pytester) -> None:
    project.makeini(
        "[pytest]\nhostgap_budgets =\n    sync_calls_per_step=0\nhostgap_warmup = 7\n"
        "hostgap_traces = kept\n"
    )
    result = outcome(
        project,
        """
ran = []

def test_item(hostgap):
    hostgap(lambda: ran.append(1) or "eager_item")

def test_warmed_up():
    assert len(ran) == 8

@pytest.mark.hostgap(max_sync_calls=1)
def test_marker_goes_first(hostgap):
    hostgap(lambda: "eager_item", warmup=0)
""",
    )
    result.assert_outcomes(passed=2, failed=1)
    (kept,) = (project.path / "kept").iterdir()
    assert kept.read_bytes() == (SAMPLES / "eager_item.json.gz").read_bytes()


def test_all_markers_hold_and_the_closest_goes_first(project: pytest.Pytester) -> None:
    result = outcome(
        project,
        """
pytestmark = pytest.mark.hostgap(max_sync_calls=0)

@pytest.mark.hostgap(max_launches=1)
def test_adds(hostgap):
    hostgap(lambda: "eager_item")

@pytest.mark.hostgap(max_sync_calls=5)
def test_overrides(hostgap):
    hostgap(lambda: "eager_item")

@pytest.mark.hostgap(max_launches=1)
class TestClass:
    @pytest.mark.hostgap(max_sync_calls_per_step=5)
    def test_in_between(self, hostgap):
        hostgap(lambda: "eager_item")

    @pytest.mark.hostgap(max_launches=1, max_sync_calls=0)
    @pytest.mark.hostgap(max_launches=10_000)
    def test_stacked(self, hostgap):
        hostgap(lambda: "eager_item")

    @pytest.mark.hostgap(max_sync_cals=0)
    @pytest.mark.hostgap(max_sync_calls=5, max_launches=10_000)
    def test_wrong_one_below(self, hostgap):
        hostgap(lambda: "eager_item")
""",
    )
    result.assert_outcomes(failed=3, passed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*test_adds*",
            "Gate failed: sync_calls_per_step, launches_per_step",
            "*test_in_between*",
            "Gate failed: launches_per_step",
            "*test_stacked*",
            "Gate failed: sync_calls_per_step",
        ],
    )


def test_kept_traces_of_long_and_like_names(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nhostgap_traces = kept\n")
    result = outcome(
        project,
        """
@pytest.mark.hostgap(max_sync_calls=0)
@pytest.mark.parametrize("text", ["\\u00fc" * 100, "\\u00fc" * 101, "a/b", "a:b"])
def test_decode(hostgap, text):
    hostgap(lambda: "eager_item")
""",
    )
    result.assert_outcomes(failed=4)
    said = [line for line in result.outlines if line == "Gate failed: sync_calls_per_step"]
    assert len(said) == 4
    kept = list((project.path / "kept").iterdir())
    assert len(kept) == 4
    for path in kept:
        assert f"hostgap analyze {path}" in result.stdout.str()


def test_a_trace_that_cannot_be_kept_hides_no_failure(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nhostgap_traces = taken\n")
    (project.path / "taken").write_text("a file")
    result = outcome(
        project,
        """
@pytest.mark.hostgap(max_sync_calls=0)
def test_decode(hostgap):
    hostgap(lambda: "eager_item")
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["Gate failed: sync_calls_per_step", "the trace could not be kept as *: File exists"]
    )


def test_the_allow_list_of_the_configuration(project: pytest.Pytester) -> None:
    Path(project.path, "hostgap.toml").write_text(
        '[[gate.allow]]\nfunction = "decode_until_eos"\nowner = "me"\nreason = "ends there"\n'
    )
    result = outcome(
        project,
        """
@pytest.mark.hostgap(max_sync_calls=0)
def test_decode(hostgap):
    hostgap(lambda: "eager_item")
""",
    )
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("value", ["few", "1", "-3", "\u00b2", "\u0665", "9" * 5000])
def test_a_bad_ini_value(project: pytest.Pytester, value: str) -> None:
    (project.path / "pytest.ini").write_text(f"[pytest]\nhostgap_steps = {value}\n", "utf-8")
    result = outcome(project, 'def test_it(hostgap): hostgap(lambda: "eager")')
    result.assert_outcomes(failed=1)
    assert f"hostgap_steps = {value}: not a whole number from 2 on" in result.stdout.str()


def test_it_imports_nothing_heavy() -> None:
    """pytest loads it in every project that has hostgap installed."""
    import subprocess
    import sys

    code = (
        "import sys, pytest; before = set(sys.modules); import hostgap.pytest_plugin;"
        "new = {n.partition('.')[0] for n in set(sys.modules) - before};"
        "print(sorted(new & {'numpy', 'torch', 'pandas', 'msgspec', 'rich', 'click'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
