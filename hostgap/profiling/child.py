"""The process in which a target runs: takes requests on stdin, answers on what was its stdout.

A profiler stays attached to its process once it has run, and what a target does to its process it
must not do to hostgap's: so each target runs in processes of its own, and those that time it never
profile. What the target prints goes to stderr.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import msgspec

from hostgap.errors import HostgapError
from hostgap.profiling import requests as r
from hostgap.profiling.bench import Built, Comparison, Proof, Variant
from hostgap.profiling.lockstep import Rank, here, join
from hostgap.profiling.loop import Driver, Pass, run_script
from hostgap.profiling.target import Target, TargetSpec, load_target, told
from hostgap.profiling.workload import Workload

if TYPE_CHECKING:
    from hostgap.fixes.equality import Case

T = TypeVar("T")


def main() -> None:
    """Answer requests until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it ends this process
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a target that reads gets nothing
    threading.Thread(target=_end_with, args=(requests.fileno(),), daemon=True).start()
    session = Session()
    decoder = msgspec.json.Decoder(r.Request)
    for line in requests:
        _answer(session, decoder.decode(line), answers)


def _end_with(pipe: int) -> None:
    """End this process, and what it started, when the other end of a pipe is closed.

    hostgap may be killed while a request takes minutes: nothing else would give the GPU back.
    """
    if not hasattr(select, "poll"):
        return
    poll = select.poll()
    poll.register(pipe, 0)  # hanging up is always told
    poll.poll()
    os.killpg(0, signal.SIGKILL)


def _answer(session: Session, request: r.Request, answers: BinaryIO) -> None:
    try:
        reply = r.Reply(result=msgspec.Raw(msgspec.json.encode(session.handle(request))))
    except HostgapError as error:
        kind = type(error).__name__
        reply = r.Reply(failure=r.Failure(kind, error.message, error.hint, traceback.format_exc()))
    except Exception as error:  # noqa: BLE001  the parent raises it
        said = f"{type(error).__name__}: {error}"
        reply = r.Reply(failure=r.Failure("internal", said, None, traceback.format_exc()))
    answers.write(msgspec.json.encode(reply) + b"\n")
    answers.flush()


class Session:
    """A target in this process, and the variants of it that have been built."""

    def __init__(self) -> None:
        self._spec = TargetSpec()
        self._target: Target | None = None
        self._built: dict[Variant, Driver] = {}
        self._stepped: set[Variant] = set()  # of those that are built
        self._recorded: dict[tuple[Variant, int], list[Case]] = {}  # of references, by steps

    def handle(self, request: r.Request) -> Any:
        """Do what a request asks; the answer is whatever its docstring says."""
        match request:
            case r.Hello(spec, rank):
                return self._hello(spec, rank)
            case r.Build(variant):
                workload = self._driver(variant).workload
                built = Built(costs=workload.costs, tokens=workload.tokens)
                # Variants stand beside each other here: what one of them, or a compiler, left on
                # the heap must not make another's garbage collections longer.
                gc.collect()
                gc.freeze()
                return built
            case r.Measure(variant, warmup, steps, repeats):
                if self._target is None:
                    return self._run(variant, measure(warmup, steps, repeats))
                workload = self._driver(variant).workload
                measured = self._run(variant, measure(warmup, steps, repeats, workload.room))
                return msgspec.structs.replace(measured, tokens=workload.tokens)
            case r.Trace(variant, mode, path, warmup, steps):
                from hostgap.profiling.traced import traced

                return self._run(variant, settled(warmup, traced(mode, Path(path), steps)))
            case r.Sites(variant, warmup):
                from hostgap.profiling.traced import blocking_sites

                return self._run(variant, settled(warmup, blocking_sites()))
            case r.Calibrate():
                from hostgap.profiling.calibrate import calibrate

                return calibrate()
            case r.Compare(old, new, warmup, steps, repeats):
                return self._compare(old, new, warmup, steps, repeats)
            case r.Prove(reference, variant, steps, tolerance):
                return self._prove(reference, variant, steps, tolerance)
            case r.Drop(variant):
                return self._drop(variant)

    def _hello(self, spec: TargetSpec, rank: Rank | None) -> Any:
        from hostgap.profiling.environment import environment

        here = environment()
        self._spec = spec
        if rank is not None:
            # a script sets up its own process group, as it does under torchrun
            with told("the ranks cannot meet"):
                join(rank, group=spec.kind != "script")
        if spec.kind != "script":
            self._target = load_target(spec)
        return r.Welcome(here, self._target.defects if self._target is not None else ())

    def _driver(self, variant: Variant) -> Driver:
        if variant not in self._built:
            self._built[variant] = Driver(self._build(variant), self._spec.target)
        return self._built[variant]

    def _build(self, variant: Variant) -> Workload:
        from hostgap.fixes.registry import apply_fixes

        assert self._target is not None
        return apply_fixes(self._target.build(variant.defects), variant.fixes)

    def _run(self, variant: Variant, measured: Pass[T]) -> T:
        if self._target is None:
            return run_script(self._spec, measured)
        self._stepped.add(variant)
        return self._driver(variant).run(measured)

    def _compare(
        self, old: Variant, new: Variant, warmup: int, steps: int, repeats: int
    ) -> Comparison:
        from hostgap.profiling.passes import block_steps, compare, settle

        drivers = self._driver(old), self._driver(new)
        self._stepped |= {old, new}
        slower_ns = max(driver.run(settle(warmup)) for driver in drivers)
        return compare(*drivers, block_steps(steps, slower_ns), repeats)

    def _prove(self, reference: Variant, variant: Variant, steps: int, tolerance: float) -> Proof:
        from hostgap.fixes.equality import prove, reference_of

        if (reference, steps) not in self._recorded:
            self._recorded[reference, steps] = reference_of(self._fresh(reference), steps)
        old = self._recorded[reference, steps]
        return prove(old, self._fresh(variant), steps=steps, tolerance=tolerance)

    def _fresh(self, variant: Variant) -> Workload:
        """A workload that stands at its beginning, or can be made to."""
        workload = self._driver(variant).workload
        if variant in self._stepped and workload.reset is None:
            workload = self._build(variant)
        self._stepped.add(variant)
        return workload

    def _drop(self, variant: Variant) -> None:
        import torch

        self._built.pop(variant, None)
        self._stepped.discard(variant)
        gc.unfreeze()  # or what lies in cycles would stay
        gc.collect()
        gc.freeze()
        with suppress(RuntimeError):  # a device that is lost says so at the next request
            torch.cuda.empty_cache()


def settled(warmup: int, measured: Pass[T]) -> Pass[T]:
    """A pass after the step has become steady."""
    from hostgap.profiling.passes import settle

    yield from settle(warmup)
    return (yield from measured)


def measure(warmup: int, steps: int, repeats: int, room: int | None = None) -> Pass[r.Measured]:
    """All that is measured without a profiler: the step's time, the host's in it, GPU spans.

    Of one rank of several, also when it comes to each collective.
    """
    from hostgap.profiling.passes import block_steps, settle, spans, time_steps

    step_ns = yield from settle(warmup)
    timed = yield from time_steps(block_steps(steps, step_ns), repeats)
    watched = []
    if here() is not None:
        from hostgap.profiling.watch import watch

        watched = yield from watch(block_steps(steps, step_ns), repeats)
    seen = yield from spans(timed.timing.step.median_ns, room)
    return r.Measured(timed.timing, timed.host, seen.step_ns, seen.graphs, watched=watched)


if __name__ == "__main__":
    main()
