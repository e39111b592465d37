"""A child process as if there were a GPU: events by the clock, traces of what the CPU does.

What is tested with it is how processes work together; none of its times mean anything.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.profiler import ProfilerActivity

BEGIN = "from tests.profiling.cpu_child import main; main()"
# The same of a step whose host is never ahead of its GPU.
BEGIN_WAITING = "from tests.profiling.cpu_child import main; main(ahead=False)"


class ClockMark:
    """In place of `hostgap.profiling.events.Mark`."""

    happens = False

    def __init__(self) -> None:
        self._at = time.perf_counter_ns()

    def happened(self) -> bool:
        return self.happens

    def until(self, later: ClockMark) -> float:
        return float(max(later._at - self._at, 1))


def main(*, ahead: bool = True) -> None:
    """Answer requests, as `hostgap.profiling.child.main`."""
    ClockMark.happens = not ahead
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # so that it is the same where there is a GPU
    import torch
    from torch.profiler import ProfilerActivity

    torch.set_num_threads(1)
    from hostgap.profiling import calibrate, child, environment, passes, traced, watch
    from tests.profiling.build import measurement

    no_wait: Any = lambda *_: None  # noqa: E731
    torch.cuda.synchronize = no_wait
    passes.Mark = traced.Mark = watch.Mark = ClockMark  # type: ignore[assignment, misc, attr-defined]
    passes.spin = no_wait
    profile: Any = traced.profile

    def on_cpu(*, activities: list[ProfilerActivity], **options: Any) -> Any:
        return profile(activities=[ProfilerActivity.CPU], **options)

    traced.profile = on_cpu  # type: ignore[assignment, misc, attr-defined]
    environment.environment = lambda: measurement().environment
    calibrate.calibrate = lambda: measurement().inflation
    child.main()
