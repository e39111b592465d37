"""What one input may take: ten seconds, and a gigabyte above what the process had before.

The seconds are of this process's CPU time, so that a busy machine makes no failures; what waits
without working is ended after two minutes.
"""

from __future__ import annotations

import faulthandler
import gc
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 10.0
MEMORY = 1 << 30
_AGAIN = 2.0  # a rule of a user's own is stopped by nothing, and neither is the rest by it
_STUCK = 120.0  # seconds after which it waits for something, or the interpreter is stuck


class Hung(BaseException):
    """An input took longer than it may."""


def _hung(number: int, frame: object) -> None:
    raise Hung


def prepare() -> None:
    """Call once, with everything imported: a signal for time, and a ceiling for memory."""
    signal.signal(signal.SIGPROF, _hung)
    gc.collect()
    gc.freeze()  # the seeds stay: looking through them again and again would take much of the time
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + MEMORY, hard))


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise LookupError(field)


def peak() -> int:
    """The largest resident set of this process so far, bytes."""
    return _status("VmHWM")


@contextmanager
def limited() -> Iterator[None]:
    """Raises `Hung` in the block after `SECONDS`; ends the process where nothing else helps."""
    faulthandler.dump_traceback_later(_STUCK, exit=True)
    signal.setitimer(signal.ITIMER_PROF, SECONDS, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
