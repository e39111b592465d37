"""One input through everything hostgap does with a trace, and what must hold whatever it is."""

from __future__ import annotations

import io
import json
import os
import re
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
from limits import Hung, limited
from recipes import Case

from hostgap.analysis.calibration import step_alone
from hostgap.analysis.examine import Options, examine
from hostgap.analysis.metrics import diagnose
from hostgap.analysis.tables import TABLES
from hostgap.diagnosis import judge as judges
from hostgap.diagnosis.judge import Judging, judge
from hostgap.diagnosis.model import Diagnosis
from hostgap.diagnosis.run import run_trace
from hostgap.errors import HostgapError
from hostgap.output.json import render_json, shipped_schema
from hostgap.output.markdown import render_markdown
from hostgap.output.printable import printable
from hostgap.output.text import render_text
from hostgap.profiling.rundir import read_measurement
from hostgap.trace.load import load_trace
from hostgap.trace.redact import redact

judges.load_rules = cache(
    judges.load_rules
)  # they depend on no input, and take a sixth of the time
# Control characters, and marks that hide or reorder text.
_UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


class Broken(Exception):
    """Something that must hold does not."""


@dataclass(frozen=True)
class Failure:
    """What went wrong, and where: `key` is the same for what is likely the same fault."""

    key: str
    text: str


@dataclass(frozen=True)
class Result:
    """How far an input came: "analyzed", "unmeasurable" or "refused"; or a failure."""

    reached: str
    failure: Failure | None = None


def drive(case: Case, folder: Path, *, thorough: bool = False) -> Result:
    """Run one input.

    Args:
        case: the input.
        folder: where to write it; emptied first.
        thorough: also check the JSON against its schema, which takes longer than all else.
    """
    for old in folder.iterdir():
        old.unlink()
    for name, data in case.files.items():
        (folder / name).write_bytes(data)
    reached = "refused"
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy's overflows, and what is deprecated
            try:
                diagnosis = _analyzed(case, folder)
                verdict = diagnosis.trace.integrity.verdict
                reached = "unmeasurable" if verdict == "unmeasurable" else "analyzed"
                _rendered(diagnosis, reports=case.more == "reports", thorough=thorough)
            except HostgapError as error:
                _said(error)
            if case.more == "redact":
                _redacted(case, folder)
    except Broken as error:
        return Result("failed", _failure(error, str(error)))
    except Hung as error:
        return Result("failed", _failure(error, "took too long"))
    except Exception as error:  # noqa: BLE001  this is what is looked for
        return Result("failed", _failure(error, ""))
    return Result(reached)


def _analyzed(case: Case, folder: Path) -> Diagnosis:
    options = Options(**case.options)
    more = dict(case.judging)
    step_ms = more.pop("unprofiled_step_ms", None)
    calibration = step_alone(step_ms * 1e6) if step_ms is not None else None
    judging = Judging(**more, calibration=calibration)
    path = folder / case.entry
    if not case.entry:
        measurement = read_measurement(folder)
        path = run_trace(folder, measurement)
        judging = judging.of_run(measurement)
    trace = load_trace(path)
    analysis = examine(trace, options)
    diagnosis = judge(diagnose(analysis), analysis, judging)  # what `analyze` does
    for name in TABLES if case.more == "tables" else ():
        analysis.table(name)
    return diagnosis


def _rendered(diagnosis: Diagnosis, *, reports: bool, thorough: bool) -> None:
    _adds_up(diagnosis)
    if diagnosis.problems:
        raise Broken(f"a rule failed: {diagnosis.problems[0]}")
    data = render_json(diagnosis)
    if msgspec.json.decode(data, type=Diagnosis) != diagnosis:
        raise Broken("JSON does not give the diagnosis back")
    if thorough:
        plain = json.loads(data, parse_constant=_no_constant)
        error = next(_validator().iter_errors(plain), None)
        if error is not None:
            raise Broken(f"JSON is not of its schema: {error.message[:200]}")
    if not reports:
        return
    out = io.StringIO()
    render_text(diagnosis, out)
    _safe("text", out.getvalue())
    _safe("markdown", render_markdown(diagnosis))


def _no_constant(token: str) -> None:
    raise Broken(f"JSON holds {token}")


@cache
def _validator() -> Any:
    return jsonschema.Draft202012Validator(json.loads(shipped_schema()))


def _safe(what: str, text: str) -> None:
    if found := _UNSAFE.search(text):
        around = text[max(0, found.start() - 30) : found.end() + 10]
        raise Broken(f"{what} holds {found[0]!r}: {around!r}")


def _adds_up(diagnosis: Diagnosis) -> None:
    """Busy and idle time are the window, and causes are the idle time, to the nanosecond."""
    for device in diagnosis.devices:
        if device.window_ns != device.active_ns + device.idle_ns:
            raise Broken("busy and idle time are not the window")
        parts: Iterable[Any] = (device, *device.streams)
        for part in parts:
            if sum(part.idle_by_cause.values()) != part.idle_ns:
                raise Broken(f"causes are not the idle time of {type(part).__name__}")
            if part.gaps.total_ns != part.idle_ns:
                raise Broken(f"gaps are not the idle time of {type(part).__name__}")
            if min((part.idle_ns, part.active_ns, *part.idle_by_cause.values())) < 0:
                raise Broken(f"negative time in {type(part).__name__}")
        if not 0 <= device.kernel_busy_ns + device.copy_only_ns == device.active_ns:
            raise Broken("kernels and copies are not the busy time")
        for share in (device.kernel_utilization, device.active_utilization):
            if share is not None and not 0 <= share <= 1:
                raise Broken(f"a utilization of {share}")


def _said(error: HostgapError) -> None:
    """A refusal is one line and a hint, as they are shown."""
    for line in (error.message, error.hint or ""):
        shown = printable(line, 500)
        _safe("an error", shown)
        if "\n" in line.strip("\n") and "\\n" not in shown:
            raise Broken(f"an error of several lines: {line!r}")
    if not error.message.strip():
        raise Broken("an error that says nothing")


def _redacted(case: Case, folder: Path) -> None:
    """A redacted copy can be read again, and its GPU work is the same to the nanosecond."""
    source, out = folder / case.entry, folder / f"out.{case.entry}"
    try:
        done = redact(source, out)
    except HostgapError as error:
        _said(error)
        if out.exists():
            raise Broken("a refused redaction left a file") from error
        return
    try:
        before = load_trace(source)
    except HostgapError:
        return
    report = before.report
    if done.notes or report.damaged or report.truncated or report.repaired:
        return  # what is damaged may be left out
    after = load_trace(out)
    same = len(before.gpu_ops) == len(after.gpu_ops) and bool(
        (before.gpu_ops.start == after.gpu_ops.start).all()
        and (before.gpu_ops.end == after.gpu_ops.end).all()
    )
    if not same or len(before.api_calls) != len(after.api_calls):
        raise Broken("a redacted trace gives other figures")


def _failure(error: BaseException, text: str) -> Failure:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not Path(frame.filename).is_relative_to(Path(__file__).parent)
        and f"{os.sep}hostgap{os.sep}" in frame.filename
    ]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "-"
    said = re.sub(r"\d+", "0", text)[:60]
    key = f"{type(error).__name__} at {where} {said}".strip()
    shown = "".join(traceback.format_exception(error))
    return Failure(key, shown[-4000:])
