"""Reading what `hostgap report` is given: JSON of hostgap, run directories, traces, folders."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec

from hostgap.analysis.examine import Options, examine
from hostgap.analysis.metrics import diagnose
from hostgap.diagnosis import model
from hostgap.diagnosis.judge import Judging, judge
from hostgap.diagnosis.run import load_run, run_trace
from hostgap.errors import TraceError
from hostgap.files import read_head, read_whole
from hostgap.fixes import report as fix
from hostgap.profiling import measurement as measured
from hostgap.profiling.rundir import is_run_dir, read_measurement
from hostgap.ranks import model as ranks
from hostgap.ranks.diagnose import diagnose_set
from hostgap.ranks.names import is_trace_name
from hostgap.report.run import Page, Run, run_of_json, run_of_trace
from hostgap.report.set import Reading, runs_of_set
from hostgap.trace.load import load_trace
from hostgap.trace.model import Trace

LARGEST = 64 << 20  # bytes of a JSON file of hostgap

Found = Run | ranks.DiagnosisSet | fix.FixReport


class _Marked(msgspec.Struct):
    schema: str = ""


def _quietly(_: str) -> AbstractContextManager[None]:
    return nullcontext()


def read_page(paths: Sequence[Path], base: Path | None = None, reading: Reading = _quietly) -> Page:
    """A page of everything given: runs side by side in a picker, at most one ladder of fixes.

    Args:
        paths: results or traces, one or more.
        base: another run, to compare the first one with.
        reading: given a file, a context that gives a callback for the bytes read so far, or None.

    Raises:
        HostgapError: nothing readable, another schema, two ladders, or nothing to compare.
    """
    runs: list[Run] = []
    ladder = None
    together = None
    for path in paths:
        for found in _read(path, reading):
            if isinstance(found, Run):
                runs.append(found)
            elif isinstance(found, ranks.DiagnosisSet):
                together = found if len(paths) == 1 else None
            elif ladder is None:
                ladder = found
            else:
                raise TraceError(f"{path}: a report holds one ladder of fixes", "leave one out")
    against = None
    if base is not None:
        others = [found for found in _read(base, reading) if isinstance(found, Run)]
        if len(others) != 1 or not runs:
            raise TraceError(f"{base}: a comparison needs one run on each side")
        against = others[0]
    return Page(runs, ladder, against, together)


def _read(path: Path, reading: Reading) -> list[Found]:
    if path.is_dir():
        if is_run_dir(path):
            return [_run_dir(path, reading)]
        return _folder(path, reading)
    kind = _schema_of(path)
    if kind is None:
        return [_diagnosed(_loaded(path, reading), path, Judging())]
    if kind == measured.SCHEMA:
        return [_run_dir(path.parent, reading)]
    data = read_whole(path, LARGEST)
    try:
        if kind == model.SCHEMA:
            return [run_of_json(msgspec.json.decode(data, type=model.Diagnosis))]
        if kind == fix.SCHEMA:
            return [msgspec.json.decode(data, type=fix.FixReport)]
        if kind == ranks.SCHEMA:
            found = msgspec.json.decode(data, type=ranks.DiagnosisSet)
            told = [(one.diagnosis, one.label) for one in found.ranks]
            return [found, *(run_of_json(each, label) for each, label in told if each is not None)]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(f"{path}: {error}", "write it again with this hostgap") from error
    known = ", ".join((model.SCHEMA, ranks.SCHEMA, fix.SCHEMA, measured.SCHEMA))
    raise TraceError(f"{path}: schema {kind!r}", f"this hostgap reads {known}")


def _schema_of(path: Path) -> str | None:
    """The schema of a JSON file of hostgap, None of anything else."""
    try:
        head = read_head(path, 256)
        if b'"schema"' not in head or path.stat().st_size > LARGEST:
            return None
        schema = msgspec.json.decode(read_whole(path, LARGEST), type=_Marked).schema
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, RecursionError):
        return None
    return schema if schema.startswith("hostgap.") else None


def _folder(path: Path, reading: Reading) -> list[Found]:
    """A folder of ranks: its traces and run directories, else its diagnoses."""
    entries = sorted(path.iterdir())
    files = [file for file in entries if file.is_file()]
    ours = [file for file in files if file.name.endswith(".json") and _schema_of(file)]
    traces = [file for file in files if is_trace_name(file.name) and file not in ours]
    if traces or any(is_run_dir(entry) for entry in entries):
        together = diagnose_set([str(path)])
        return [together, *runs_of_set(together, Options(), reading)]
    chosen = [file for file in ours if _schema_of(file) == model.SCHEMA]
    if not chosen:
        raise TraceError(f"{path}: holds no traces and no results", "see: hostgap report --help")
    return [found for file in chosen for found in _read(file, reading)]


def _run_dir(folder: Path, reading: Reading) -> Run:
    measurement = read_measurement(folder)
    path = run_trace(folder, measurement)
    with reading(str(path)) as progress:
        trace = load_run(folder, measurement, progress=progress)
    return _diagnosed(
        trace,
        path,
        Judging().of_run(measurement),
        label=folder.resolve().name,
        measurement=measurement,
    )


def _loaded(path: Path, reading: Reading) -> Trace:
    with reading(str(path)) as progress:
        return load_trace(path, progress=progress)


def _diagnosed(
    trace: Trace,
    path: Path,
    judging: Judging,
    *,
    label: str | None = None,
    measurement: measured.Measurement | None = None,
) -> Run:
    analysis = examine(trace, Options())
    diagnosis = judge(diagnose(analysis), analysis, judging)
    return run_of_trace(analysis, diagnosis, path, label=label, measurement=measurement)
