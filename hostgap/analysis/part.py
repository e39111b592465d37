"""Some steps of a large trace, for which only their part of it is read.

What is read is what those steps hold, and a margin: two steps before, whose last ops bound the
first of them, and one behind. In it steps are numbered from its own beginning, so what is said of
them is numbered again as the whole trace has them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from hostgap.analysis.clock import fit_clock
from hostgap.analysis.examine import Options
from hostgap.analysis.steps import find_steps
from hostgap.diagnosis.model import Diagnosis, StepClass
from hostgap.trace.load import load_trace
from hostgap.trace.model import Int64, Trace
from hostgap.trace.nsys_export import is_nsys
from hostgap.trace.part import Marks, Span
from hostgap.trace.remote import is_url

LARGE = 64 << 20  # bytes of a plain file from which on a part is read as such
LARGE_COMPRESSED = 4 << 20
BEFORE, BEHIND = 2, 1  # steps of margin
_EVERYTHING = 2**62
_NO_OP = re.compile(r"(?!)")
_STEPS = re.compile(r"--steps (\d+):")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a trace.

    Attributes:
        trace: its events.
        options: with the steps as they are numbered in it.
        first: the number that its first step has in the whole trace.
        total: how many steps that has.
    """

    trace: Trace
    options: Options
    first: int
    total: int

    def renumbered(self, diagnosis: Diagnosis) -> Diagnosis:
        """A diagnosis of the part, its steps as the whole trace numbers them."""
        steps = diagnosis.steps

        def moved(one: StepClass) -> StepClass:
            return msgspec.structs.replace(one, steps=[step + self.first for step in one.steps])

        def moved_in(title: str) -> str:
            """Advice to choose later steps."""
            return _STEPS.sub(lambda match: f"--steps {int(match[1]) + self.first}:", title)

        return msgspec.structs.replace(
            diagnosis,
            findings=[
                msgspec.structs.replace(one, title=moved_in(one.title))
                for one in diagnosis.findings
            ],
            steps=msgspec.structs.replace(
                steps,
                first=steps.first + self.first,
                total=self.total,
                classes=[moved(one) for one in steps.classes],
            ),
        )


def load_part(
    path: str | os.PathLike[str],
    options: Options,
    *,
    progress: Callable[[int], None] | None = None,
) -> Part | None:
    """Read the steps that `options` choose, and not the rest.

    The file is read twice: for what marks its steps, and for those chosen. Memory holds the calls'
    times and ids meanwhile, 33 bytes each, and the part.

    Args:
        path: a torch.profiler trace.
        options: with `steps`.
        progress: called now and then with the bytes read so far, of twice the file.

    Returns:
        None where the whole must be read: no steps are chosen, the file is not large or is a pipe
        or an Nsight export, or nothing in it but the repetition of launches marks its steps.

    Raises:
        HostgapError: the file cannot be read, or has no such steps.
    """
    name = os.fspath(path)
    if options.steps is None or name == "-" or not is_large(name):
        return None
    marker = _pattern(options.step_marker)
    marked = load_trace(path, progress=progress, keep=Marks(marker))
    if not (len(marked.host_ops) and len(marked.api_calls)):
        return None
    marks = find_steps(marked, fit_clock(marked), options.step_marker)
    if marks.source != "annotation":
        return None
    n = len(marks.start)
    chosen = range(n)[slice(*options.steps)]
    if not chosen:
        return None  # whoever reads the whole says what is wrong
    first, last = chosen.start - BEFORE, chosen.stop + BEHIND
    low = int(marks.start[first]) if first > 0 else -_EVERYTHING
    high = int(marks.start[last]) if last < n else _EVERYTHING
    calls = marked.api_calls
    inside = (calls.start >= low) & (calls.start < high)
    span = Span(low, high, _ids(calls.correlation[inside]), _ids(calls.correlation))
    size = Path(name).stat().st_size if not is_url(name) else 0
    second = None if progress is None else lambda done: progress(size + done)
    del marked, calls
    trace = load_trace(path, progress=second, keep=span)
    first = max(first, 0)
    mine = replace(options, steps=(chosen.start - first, chosen.stop - first))
    return Part(trace, mine, first, n)


def is_large(name: str) -> bool:
    """Whether reading a part as such is worth reading the file twice."""
    if is_url(name):
        return False
    path = Path(name)
    try:
        size = path.stat().st_size
    except (OSError, ValueError):  # its reader says what is wrong
        return False
    if size < LARGE_COMPRESSED or not path.is_file() or is_nsys(path):
        return False
    with path.open("rb") as stream:
        plain = stream.read(1) in (b"{", b"[", b" ", b"\n")
    return size >= LARGE or not plain


def _pattern(marker: str | None) -> re.Pattern[str]:
    """Which ops mark steps beside annotations."""
    if marker is None:
        return _NO_OP
    try:
        return re.compile(marker)
    except (re.error, ValueError, OverflowError, RecursionError):
        return _NO_OP  # who looks for the steps says what is wrong with it


def _ids(correlation: Int64) -> Int64:
    return np.asarray(np.unique(correlation[correlation > 0]))
