"""What is gated or compared: a trace, a result, a run directory, or a folder of run directories."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hostgap.analysis.analyze import analyze
from hostgap.analysis.examine import Options
from hostgap.diagnosis import model as m
from hostgap.diagnosis.judge import Judging
from hostgap.diagnosis.run import load_run, run_trace
from hostgap.errors import ConfigError, TraceError
from hostgap.files import read_head, read_whole
from hostgap.gate.model import Key
from hostgap.profiling import measurement as pm
from hostgap.profiling.rundir import LARGEST, NAME, is_run_dir, parse_measurement, read_measurement
from hostgap.trace.load import load_trace
from hostgap.trace.model import Trace

Reading = Callable[[str], AbstractContextManager[Callable[[int], None] | None]]

_HEAD = 4096  # bytes of a file in which a result names its schema
_SCHEMA = re.compile(rb'\A(?:\xef\xbb\xbf)?\s*\{\s*"schema"\s*:\s*"(hostgap\.[^"]{1,60})"')
# Labels that `hostgap.analysis.step_classes` makes up where nothing names the steps: they change
# with the counts that a gate is to compare.
_MADE_UP = re.compile(
    r"[\d,]+ (?:graph )?launch(?:es)?(?: \+ [\d,]+ graph launch(?:es)?)?(?:, variant \d+)?"
)


@dataclass(frozen=True, slots=True)
class Subject:
    """One side of a gate or a comparison.

    Attributes:
        name: as it was given.
        diagnosis: None where there is no trace to count in.
        gpu, torch, cuda: None where nothing says.
        runs: measurements of processes, each with its unprofiled step.
        trace: None for a result, which holds no calls.
    """

    name: str
    diagnosis: m.Diagnosis | None
    gpu: str | None = None
    torch: str | None = None
    cuda: str | None = None
    runs: tuple[pm.Measurement, ...] = ()
    trace: Trace | None = None
    options: Options = field(default_factory=Options)
    judging: Judging = field(default_factory=Judging)

    @property
    def times_ns(self) -> list[float]:
        """The unprofiled step of each process: its median."""
        return [run.timing.step.median_ns for run in self.runs]

    def key(self, step_class: m.StepClass | None) -> Key:
        """What its counts are exact for."""
        label = class_label(step_class.label) if step_class is not None else ""
        return Key(gpu=self.gpu, torch=self.torch, cuda=self.cuda, step_class=label)


def load_subject(
    path: Path,
    options: Options | None = None,
    judging: Judging | None = None,
    reading: Reading = lambda _: nullcontext(),
) -> Subject:
    """Read one side.

    Args:
        path: a trace, a result JSON, a run directory, a measurement.json, or a folder that holds
            several of the last two; "-" for a trace on standard input.
        options: what of a trace to look at.
        judging: which rules to run on it.
        reading: shows the progress of reading a trace.

    Raises:
        TraceError: unreadable, another schema, or nothing in the folder.
        ConfigError: options that a finished result cannot be asked for any more.
    """
    options, judging = options or Options(), judging or Judging()
    if path != Path("-") and path.is_dir():
        if is_run_dir(path):
            return _of_runs(path, [path], options, judging, reading)
        found = sorted(each for each in path.iterdir() if is_run_dir(each))
        loose = sorted(each for each in path.glob("*.json") if schema_of(each) == pm.SCHEMA)
        if not found and not loose:
            raise TraceError(f"{path}: no run of hostgap in it", "give a trace or a run directory")
        return _of_runs(path, [*found, *loose], options, judging, reading)
    schema = schema_of(path) if path != Path("-") else None
    if schema is None:
        return _of_trace(path, options, judging, reading)
    if schema == pm.SCHEMA:
        return _of_runs(path, [path], options, judging, reading)
    if schema != m.SCHEMA:
        kind = "hostgap reads" if schema.split("/")[0] == m.SCHEMA.split("/")[0] else "wanted is"
        hint = "give one rank's" if "-set" in schema else None
        raise TraceError(f"{path}: schema {schema!r}; {kind} {m.SCHEMA!r} here", hint)
    if options != Options():
        raise ConfigError(
            f"{path}: a result is finished: steps, markers and devices are chosen when it is made",
            "give the trace, or leave these options out",
        )
    diagnosis = _read_result(path)
    return Subject(name=str(path), diagnosis=diagnosis, gpu=_gpus(diagnosis), options=options)


def schema_of(path: Path) -> str | None:
    """The schema that a file of hostgap's own begins with, None for any other file.

    Raises:
        TraceError: it cannot be read.
    """
    try:
        match = _SCHEMA.match(read_head(path, _HEAD))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    return match[1].decode("utf-8", "replace") if match else None


def class_label(label: str) -> str:
    """A class's label, "" where it was made up from its counts."""
    return "" if _MADE_UP.fullmatch(label) else label


def choose_class(
    diagnosis: m.Diagnosis, wanted: str | None, known: list[str] | None = None
) -> m.StepClass | None:
    """The class of steps to gate; None where the trace has no steps.

    The one that `wanted` (a regular expression) matches and that took the most time; else the main
    one, or if the baseline does not know that, the one that it knows.

    Raises:
        ConfigError: none matches, or `wanted` is no regular expression.
    """
    steps = diagnosis.steps
    if steps.source == "whole" or not steps.classes:
        return None

    def time(one: m.StepClass) -> int:
        return one.duration_median_ns * len(one.steps)

    if wanted is not None:
        try:
            found = [one for one in steps.classes if re.search(wanted, one.label)]
        except re.error as error:
            raise ConfigError(f"--step-class {wanted}: no regular expression: {error}") from error
        if not found:
            labels = ", ".join(one.label for one in steps.classes)
            raise ConfigError(f"--step-class {wanted}: no class of steps is called so", labels)
        return max(found, key=time)
    main = next(one for one in steps.classes if one.label == steps.main_class)
    if known and class_label(main.label) not in known:
        others = [one for one in steps.classes if class_label(one.label) in known]
        if others:
            return max(others, key=time)
    return main


def _of_trace(path: Path, options: Options, judging: Judging, reading: Reading) -> Subject:
    with reading(str(path)) as progress:
        trace = load_trace(path, progress=progress)
    diagnosis = analyze(trace, options, judging)
    return Subject(
        name="stdin" if path == Path("-") else str(path),
        diagnosis=diagnosis,
        gpu=_gpus(diagnosis),
        torch=_text(trace.metadata.get("torch_version")),
        cuda=_cuda(trace.metadata.get("cuda_runtime_version")),
        trace=trace,
        options=options,
        judging=judging,
    )


def _of_runs(
    path: Path, paths: list[Path], options: Options, judging: Judging, reading: Reading
) -> Subject:
    """Runs of one side; counts are those of the first that has a trace."""
    runs = [_measured(each) for each in paths]
    first = runs[0]
    for each, run in zip(paths, runs, strict=True):
        if differences := unlike(first, run):
            raise TraceError(
                f"{path}: {paths[0].name} and {each.name} differ in {', '.join(differences)}",
                "the runs of a side are of one workload on one machine",
            )
    diagnosis = trace = None
    for each, run in zip(paths, runs, strict=True):
        if each.is_dir() and any(one.mode == "cpu+cuda" for one in run.passes):
            judging = judging.of_run(run)
            with reading(str(run_trace(each, run))) as progress:
                trace = load_run(each, run, progress=progress)
            diagnosis = analyze(trace, options, judging)
            break
    return Subject(
        name=str(path),
        diagnosis=diagnosis,
        gpu=first.environment.gpu,
        torch=first.environment.torch,
        cuda=first.environment.cuda,
        runs=tuple(runs),
        trace=trace,
        options=options,
        judging=judging,
    )


def unlike(one: pm.Measurement, other: pm.Measurement) -> list[str]:
    """What keeps the times of two runs from being compared: another machine or workload."""
    a, b = one.environment, other.environment
    pairs = {
        "GPU": (a.gpu, b.gpu),
        "torch": (a.torch, b.torch),
        "CUDA": (a.cuda, b.cuda),
        "driver": (a.driver, b.driver),
        "number of CPUs": (a.cpus, b.cpus),
        "target": (one.target, other.target),
    }
    return [name for name, (left, right) in pairs.items() if left != right]


def _measured(path: Path) -> pm.Measurement:
    folder = path if path.is_dir() else path.parent
    if not path.is_dir() and path.name != NAME:
        # a folder of loose measurements: the reader of run directories knows one name only
        try:
            data = read_whole(path, LARGEST)
        except OSError as error:
            raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
        return parse_measurement(data, path)
    return read_measurement(folder)


def _read_result(path: Path) -> m.Diagnosis:
    try:
        found = msgspec.json.decode(read_whole(path, LARGEST), type=m.Diagnosis)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except msgspec.ValidationError as error:
        raise TraceError(
            f"{path}: not as this version of hostgap writes it: {error}", "analyze the trace again"
        ) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{path}: not JSON: {error}", "write it again") from error
    steps = found.steps
    if steps.classes and steps.main_class not in [one.label for one in steps.classes]:
        raise TraceError(
            f"{path}: its main class of steps, {steps.main_class!r}, is none of its classes",
            "analyze the trace again",
        )
    return found


def _gpus(diagnosis: m.Diagnosis) -> str | None:
    names = sorted({device.name for device in diagnosis.devices if device.name})
    return " + ".join(names) or None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _cuda(version: object) -> str | None:
    """13000 -> 13.0"""
    if not isinstance(version, int) or isinstance(version, bool) or version < 1000:
        return None
    return f"{version // 1000}.{version % 1000 // 10}"
