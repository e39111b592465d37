"""The other end of `hostgap.profiling.child`: child processes, and the `Bench` made of two."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from hostgap import errors
from hostgap.errors import HostgapError, TargetError, TargetExited
from hostgap.profiling import requests as r
from hostgap.profiling.bench import Built, Comparison, Proof, Traced, Variant
from hostgap.profiling.lockstep import Rank
from hostgap.profiling.measurement import Estimate
from hostgap.profiling.target import TargetSpec

CLOSING_S = 2.0  # for a process whose pipe has ended to end too
TIMEOUT_S = 900.0  # for one request; compilation with tuning takes minutes
_KINDS = ("ConfigError", "TargetError", "TargetExited", "FixFailed", "TraceError")
# without the current folder, whose modules are not hostgap's: a target is looked for there later
_BEGIN = (
    "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
    "from hostgap.profiling.child import main; main()"
)


class Child:
    """A process of its own for a target; use as a context manager.

    Attributes:
        welcome: its environment, and the target's defects.

    Args:
        spec: what it runs.
        device: the GPU that it sees; None leaves that to the environment.
        timeout_s: for each request.
        rank: which rank of several it is. It is then told so by `greet`, which the others must be
            at the same time: they meet each other.

    Raises:
        ConfigError: no torch, no CUDA device.
        TargetError: the target cannot be imported; the process died or does not answer.
    """

    def __init__(
        self,
        spec: TargetSpec,
        *,
        device: str | None = None,
        timeout_s: float = TIMEOUT_S,
        rank: Rank | None = None,
    ) -> None:
        self._spec, self._timeout_s, self._rank = spec, timeout_s, rank
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        environ = dict(os.environ)
        if device is not None:
            environ["CUDA_VISIBLE_DEVICES"] = device
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environ,
            start_new_session=True,  # so that what it starts can be ended with it
        )
        if rank is None:
            self.greet()

    def greet(self) -> None:
        """Say what to run, and as which rank.

        Raises:
            ConfigError, TargetError: see the class; the process has ended then.
        """
        try:
            self.welcome: r.Welcome = self.ask(r.Hello(self._spec, self._rank), r.Welcome)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                # what could not be sent to a process that is gone is of no use any more
                with suppress(BrokenPipeError):
                    stream.close()

    def ask(self, request: r.Request, answer: Any) -> Any:
        """Send a request and wait for its answer.

        Args:
            request: what to do.
            answer: type of the result.

        Raises:
            HostgapError: what the child raised, or it died, or took longer than its time.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(self._timeout_s, self._kill)
        watchdog.start()
        try:
            with suppress(BrokenPipeError):  # if it is gone, there is no answer either
                self._process.stdin.write(msgspec.json.encode(request) + b"\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            late = not watchdog.is_alive()
            watchdog.cancel()
        if not line:
            raise self._died(late=late)
        reply = msgspec.json.decode(line, type=r.Reply)
        if reply.failure is not None:
            error = _raised(reply.failure)
            if isinstance(error, TargetExited) and error.hint is None:
                error.hint = self.last_line()
            raise error
        return msgspec.json.decode(reply.result, type=answer)

    def end(self) -> None:
        """Kill the process, from another thread than the one that waits for its answer."""
        self._kill()

    def _kill(self) -> None:
        """The process and all that it started, which hold the pipes too."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _died(self, *, late: bool) -> TargetError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSING_S)
        alive = self._process.poll() is None
        self._kill()  # it closed its pipe and lives on, or what it started does
        code = self._process.wait()
        said = self.last_line()
        if alive and not late:
            return TargetError(f"{self._spec.target}: closed the pipe to hostgap", said)
        if late:
            return TargetError(
                f"{self._spec.target}: no answer within {self._timeout_s:.0f} s", said
            )
        how = f"exit code {code}"
        if code < 0:
            how = signal.Signals(-code).name
        return TargetError(f"{self._spec.target}: its process died ({how})", said)

    def last_line(self) -> str | None:
        """The last line that the process wrote to stderr."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 10_000))
        lines = self._log.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), None)


class ChildError(HostgapError):
    """A fault that hostgap did not foresee, in a child."""

    exit_code = 70

    def __init__(self, message: str) -> None:
        hint = "Please report it with the output of the same command and --debug."
        super().__init__(f"in the target's process: {message}", hint)


class ChildTraceback(Exception):
    """The traceback of an error in a child, shown as its cause with --debug."""

    def __str__(self) -> str:
        return "\n" + "".join(map(str, self.args))


def _raised(failure: r.Failure) -> HostgapError:
    error: HostgapError = HostgapError(failure.message, failure.hint)
    if failure.kind in _KINDS:
        error = getattr(errors, failure.kind)(failure.message, failure.hint)
    elif failure.kind == "internal":
        error = ChildError(failure.message)
    if failure.trace is not None:
        error.__cause__ = ChildTraceback(failure.trace)
    return error


class BenchOptions(msgspec.Struct, frozen=True):
    """How much is measured: steps a block, pairs of blocks, steps recorded and compared."""

    warmup: int = 10
    steps: int = 30
    repeats: int = 10
    traced_steps: int = 6
    proof_steps: int = 24
    tolerance: float = 0.05
    device: str | None = None
    timeout_s: float = TIMEOUT_S


class Workers:
    """A `Bench` of two processes: one that times and compares, and one that records."""

    def __init__(self, timing: Child, tracing: Child, options: BenchOptions, folder: Path) -> None:
        self._timing, self._tracing = timing, tracing
        self._options, self._folder = options, folder
        self.welcome = timing.welcome
        self._traces = 0

    def build(self, variant: Variant) -> Built:
        """See `Bench.build`."""
        built: Built = self._timing.ask(r.Build(variant), Built)
        return built

    def compare(self, old: Variant, new: Variant) -> Comparison:
        """See `Bench.compare`."""
        o = self._options
        request = r.Compare(old, new, o.warmup, o.steps, o.repeats)
        compared: Comparison = self._timing.ask(request, Comparison)
        return compared

    def prove(self, reference: Variant, variant: Variant) -> Proof:
        """See `Bench.prove`."""
        o = self._options
        request = r.Prove(reference, variant, o.proof_steps, o.tolerance)
        proof: Proof = self._timing.ask(request, Proof)
        return proof

    def trace(self, variant: Variant) -> Traced:
        """See `Bench.trace`."""
        o = self._options
        request = r.Measure(variant, o.warmup, o.steps, o.repeats)
        measured: r.Measured = self._timing.ask(request, r.Measured)
        self._traces += 1
        path = self._folder / f"{self._traces}.json.gz"
        self._tracing.ask(r.Build(variant), Built)
        record = r.Trace(variant, "cpu+cuda", str(path), o.warmup, o.traced_steps)
        self._tracing.ask(record, Estimate)
        self._tracing.ask(r.Drop(variant), None)
        return Traced(path, measured.timing, measured.span_ns, measured.graphs, measured.host)

    def drop(self, variant: Variant) -> None:
        """See `Bench.drop`."""
        self._timing.ask(r.Drop(variant), None)


@contextmanager
def open_bench(spec: TargetSpec, options: BenchOptions) -> Iterator[Workers]:
    """Two child processes for a target, ended with the block; traces are removed with them.

    Raises:
        ConfigError, TargetError: as `Child`.
    """
    with (
        tempfile.TemporaryDirectory(prefix="hostgap-") as folder,
        Child(spec, device=options.device, timeout_s=options.timeout_s) as timing,
        Child(spec, device=options.device, timeout_s=options.timeout_s) as tracing,
    ):
        yield Workers(timing, tracing, options, Path(folder))
