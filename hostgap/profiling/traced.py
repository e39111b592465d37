"""Passes with torch.profiler, and the pass that finds the lines of blocking calls."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch.cuda import _gpu_trace
from torch.profiler import ProfilerActivity, profile, schedule

from hostgap.profiling.events import Mark
from hostgap.profiling.loop import Fresh, Pass
from hostgap.profiling.measurement import Estimate, Site
from hostgap.profiling.statistics import estimate

Mode = Literal["cuda", "cpu+cuda", "stacks"]
WARMUP = 3  # steps with the profiler on before it keeps anything
SITE_STEPS = 5
_OWN = tuple(str(path) for path in Path(__file__).parent.glob("*.py") if path.stem != "workload")


def traced(mode: Mode, path: Path, steps: int) -> Pass[Estimate]:
    """Record `steps` steps into `path` (.json.gz): the step as it was with the profiler on."""
    activities = [ProfilerActivity.CUDA]
    if mode != "cuda":
        activities.append(ProfilerActivity.CPU)
    marks: list[Mark] = []
    collecting = nullcontext() if mode == "cuda" else _gc_ranges()
    with (
        collecting,
        profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=WARMUP, active=steps, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
            with_stack=mode == "stacks",
            experimental_config=torch._C._profiler._ExperimentalConfig(
                enable_cuda_sync_events=True
            ),
        ) as profiler,
    ):
        for index in range(WARMUP + steps):
            ahead = WARMUP + steps - index
            yield ahead if index else Fresh(ahead)
            if index == WARMUP - 1:
                torch.cuda.synchronize()  # or the warm-up's kernels would run inside the window
            marks.append(Mark())
            profiler.step()
    torch.cuda.synchronize()
    ends = marks[WARMUP:]  # of the recorded steps; the first of them fills the pipeline
    lengths = [begin.until(end) for begin, end in pairwise(ends)]
    return estimate(lengths)


@contextmanager
def _gc_ranges() -> Iterator[None]:
    """A range named `gc` around each collection: without stacks a trace does not show them."""
    open_range: list[torch.profiler.record_function] = []

    def collected(phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            open_range.append(torch.profiler.record_function("gc"))
            open_range[-1].__enter__()  # type: ignore[no-untyped-call]
        elif open_range:
            open_range.pop().__exit__(None, None, None)

    gc.callbacks.append(collected)
    try:
        yield
    finally:
        gc.callbacks.remove(collected)


def blocking_sites() -> Pass[list[Site]]:
    """The lines that wait for the GPU, most often first.

    torch calls back before each stream, device and event synchronization, those inside `.item()`
    and blocking copies included; the Python stack of that moment has the exact line, which a trace
    does not. Callbacks cannot be taken back: a process that ran this pass measures nothing else.
    """
    seen: Counter[tuple[str, str, int, str]] = Counter()
    counting = False

    def saw(what: str) -> None:
        if counting:
            frame = _user_frame(sys._getframe(1))
            if frame is not None:
                code = frame.f_code
                seen[what, code.co_filename, frame.f_lineno, code.co_name] += 1

    _gpu_trace.register_callback_for_stream_synchronization(lambda _: saw("stream"))
    _gpu_trace.register_callback_for_device_synchronization(lambda: saw("device"))
    _gpu_trace.register_callback_for_event_synchronization(lambda _: saw("event"))
    torch._C._activate_gpu_trace()
    for ahead in range(SITE_STEPS, 0, -1):
        counting = True
        yield ahead
        counting = False
    return [
        Site(what=what, file=file, line=line, function=function, per_step=count / SITE_STEPS)
        for (what, file, line, function), count in seen.most_common()
    ]


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is neither torch's, an installed package's, nor the profiler's."""
    while frame is not None:
        file = frame.f_code.co_filename
        installed = "site-packages" in file or "dist-packages" in file
        inner = file in _OWN or file.startswith("<") or "/lib/python" in file
        if not installed and not inner:
            return frame
        frame = frame.f_back
    return None
