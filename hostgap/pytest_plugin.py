"""The pytest plugin: budgets for what a test runs on the GPU.

    @pytest.mark.hostgap(max_sync_calls=0, min_utilization="95%")
    def test_decode(hostgap):
        model = build()
        hostgap(lambda: model.step())

The fixture records some steps of the callable with torch.profiler and fails the test where a budget
is exceeded, with the places that exceed it. Without a GPU the test is skipped, with the reason.
pytest loads this file in every project that has hostgap installed, so what it needs is imported
only when a test asks for it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hostgap.diagnosis.model import Diagnosis
    from hostgap.gate.model import GateResult
    from hostgap.gate.record import Recorder
    from hostgap.gate.settings import Budget

MARKER = (
    "hostgap(max_sync_calls=0, min_utilization='95%', ...): budgets of the steps that the fixture "
    "`hostgap` records; max_ or min_ and the name of a metric of `hostgap gate`"
)
STEPS, WARMUP = 5, 3
_SHORT = {"utilization": "kernel_utilization", "idle": "idle_share"}
_LINES = pytest.StashKey[list[str]]()
_PASSED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The ini options."""
    parser.addini("hostgap_steps", "steps that the fixture `hostgap` records", default=str(STEPS))
    parser.addini("hostgap_warmup", "steps that it runs before", default=str(WARMUP))
    parser.addini(
        "hostgap_budgets",
        "budgets of all tests that use it, such as sync_calls_per_step=0; a line each",
        type="linelist",
        default=[],
    )
    parser.addini("hostgap_traces", "a folder in which the traces of failed tests are kept")


def pytest_configure(config: pytest.Config) -> None:
    """The marker, and room for the summary."""
    config.addinivalue_line("markers", MARKER)
    config.stash[_LINES] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A marker that nothing looks at would be a gate that never fails."""
    if item.get_closest_marker("hostgap") and "hostgap" not in getattr(item, "fixturenames", ()):
        pytest.fail("marked hostgap, but does not use the fixture `hostgap`", pytrace=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """Remember whether the test itself passed, for the fixture's end."""
    outcome = yield
    if call.when == "call":
        item.stash[_PASSED] = outcome.get_result().passed


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """A line for each recording."""
    lines = config.stash.get(_LINES, [])
    if lines:
        terminalreporter.section("hostgap")
    for line in lines:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def hostgap_recorder() -> Recorder:
    """What records steps; a project may give another one under this name."""
    from hostgap.gate.record import TorchRecorder

    return TorchRecorder()


@pytest.fixture
def hostgap(
    request: pytest.FixtureRequest, tmp_path: Path, hostgap_recorder: Recorder
) -> Iterator[Profiler]:
    """Call it with a step: `hostgap(step)` records some, and fails the test over its budgets."""
    from hostgap.errors import HostgapError

    markers = list(request.node.iter_markers("hostgap"))
    try:
        budgets = _budgets(request.config, markers)
    except HostgapError as error:
        pytest.fail(_said(error), pytrace=False)
    if reason := hostgap_recorder.unavailable():
        pytest.skip(f"hostgap: {reason}")
    profiler = Profiler(request, tmp_path, hostgap_recorder, budgets)
    yield profiler
    if markers and not profiler.calls and request.node.stash.get(_PASSED, False):
        pytest.fail("marked hostgap, but never called `hostgap(step)`", pytrace=False)


class Profiler:
    """What the fixture `hostgap` gives: call it with a step.

    Attributes:
        calls: how many recordings were made.
    """

    def __init__(
        self,
        request: pytest.FixtureRequest,
        folder: Path,
        recorder: Recorder,
        budgets: dict[str, Budget],
    ) -> None:
        self._request, self._folder, self._recorder = request, folder, recorder
        self._budgets = budgets
        self.calls = 0

    def __call__(
        self, step: Callable[[], object], *, steps: int | None = None, warmup: int | None = None
    ) -> Diagnosis:
        """Record steps and hold them against the test's budgets.

        Args:
            step: does one step; called warmup + steps times.
            steps: recorded; by default the ini option `hostgap_steps`.
            warmup: run before; by default `hostgap_warmup`.

        Returns:
            The diagnosis, for assertions of the test's own.
        """
        __tracebackhide__ = True
        from hostgap.errors import HostgapError
        from hostgap.gate.settings import Settings

        config = self._request.config
        self.calls += 1
        path = self._folder / f"hostgap-{self.calls}.json.gz"
        counted = all(b.metric.kind == "count" for b in self._budgets.values())
        try:
            made = self._recorder.record(
                step,
                path,
                steps=steps if steps is not None else _whole(config, "hostgap_steps", 2),
                warmup=warmup if warmup is not None else _whole(config, "hostgap_warmup", 0),
                # stacks name the lines, and slow the host: not where shares of time are held
                stacks=counted,
            )
            diagnosis, result = self._judged(made, Settings(budgets=self._budgets))
        except HostgapError as error:
            pytest.fail(_said(error), pytrace=False)
        config.stash[_LINES].append(_line(self._request.node.nodeid, diagnosis, result))
        if result is not None and result.exit_code:
            pytest.fail(_report(result) + self._kept(made), pytrace=False)
        return diagnosis

    def _judged(self, trace: Path, settings: Any) -> tuple[Diagnosis, GateResult | None]:
        from dataclasses import replace

        from hostgap.config import find_config, load_config
        from hostgap.gate.judge import gate
        from hostgap.gate.settings import read_settings
        from hostgap.gate.subject import load_subject

        subject = replace(load_subject(trace), name=self._request.node.nodeid)
        assert subject.diagnosis is not None
        if not settings.budgets:
            return subject.diagnosis, None
        root = self._request.config.rootpath
        found = find_config(root)
        if found is not None:
            table = read_settings(load_config(root).gate, found[0].name, found[0].parent)
            settings = replace(settings, allow=table.allow)
        return subject.diagnosis, gate(subject, settings)

    def _kept(self, trace: Path) -> str:
        """Keep the trace of a failed test, where a folder for them is named."""
        import shutil

        folder = self._request.config.getini("hostgap_traces")
        if not folder:
            return ""
        name = f"{_file_name(self._request.node.nodeid)}-{self.calls}.json.gz"
        kept = self._request.config.rootpath / str(folder) / name
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(trace, kept)
        except OSError as error:
            return f"\nthe trace could not be kept as {kept}: {error.strerror or error}"
        return f"\nhostgap analyze {kept}"


def _file_name(nodeid: str) -> str:
    """What a test's files are called: its id as far as a name can hold it, and a hash of all."""
    import hashlib
    import re

    name = re.sub(r"[^\w.-]+", "-", nodeid).encode()[:200].decode("utf-8", "ignore")
    return f"{name}-{hashlib.sha256(nodeid.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _budgets(config: pytest.Config, markers: list[pytest.Mark]) -> dict[str, Budget]:
    """The ini file's budgets, under those of the markers, the closest to the test first."""
    from hostgap.errors import ConfigError
    from hostgap.gate.metrics import METRICS
    from hostgap.gate.settings import parse_budgets, read_settings

    budgets = parse_budgets(config.getini("hostgap_budgets"))
    if any(marker.args for marker in markers):
        raise ConfigError("the marker hostgap takes names: hostgap(max_sync_calls=0)")
    for name, value in [each for marker in reversed(markers) for each in marker.kwargs.items()]:
        bound, _, rest = name.partition("_")
        known = (rest, f"{rest}_per_step", _SHORT.get(rest, ""))
        metric = next((METRICS[each] for each in known if each in METRICS), None)
        if metric is None or bound != metric.bound or metric.kind == "step time":
            names = [
                f"{m.bound}_{m.name.removesuffix('_per_step')}"
                for m in METRICS.values()
                if m.kind != "step time"
            ]
            names += [f"{METRICS[full].bound}_{short}" for short, full in _SHORT.items()]
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
            raise ConfigError(f"the marker hostgap has no {name!r}", hint)
        table = {metric.name: {metric.bound: value}}
        budgets |= read_settings(table, "the marker hostgap", Path()).budgets
    return budgets


def _whole(config: pytest.Config, name: str, least: int) -> int:
    import re

    from hostgap.errors import ConfigError

    text = str(config.getini(name))
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise ConfigError(f"{name} = {text}: not a whole number from {least} on")
    return int(text)


def _said(error: Any) -> str:
    return f"hostgap: {error.message}" + (f"\n  {error.hint}" if error.hint else "")


def _line(nodeid: str, diagnosis: Diagnosis, result: GateResult | None) -> str:
    from hostgap.output.gate_summary import STATUS
    from hostgap.output.summary import count_line

    outcome = "" if result is None else f" {STATUS[result.outcome]}"
    shares = [d.kernel_utilization for d in diagnosis.devices if d.kernel_utilization is not None]
    busy = f"; kernels {min(shares):.0%} of the step" if shares else ""
    return f"{nodeid}{outcome}: {count_line(diagnosis)}{busy}"


def _report(result: GateResult) -> str:
    import io

    from hostgap.output.gate_text import render_gate_text

    text = io.StringIO()
    render_gate_text(result, text, color=False)
    return text.getvalue().rstrip()
