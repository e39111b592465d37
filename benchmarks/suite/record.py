"""Record the labelled suite: every variant of variants.py, and the sync probe, in three formats.

    python benchmarks/suite/record.py -o out                        # all, by torch.profiler
    python benchmarks/suite/record.py -o out --only scalar_read,nonzero
    python benchmarks/suite/record.py -o out --nsys nsys            # by Nsight Systems, too
    python benchmarks/suite/record.py steps scalar_read             # what nsys runs

Needs a CUDA GPU, and hostgap importable. Every variant runs in a process of its own, a few at a
time; while one is recorded, no other uses the GPU. A variant that fails is reported and skipped.
By Nsight only variants with evidence there are recorded, and all controls, at most four steps each;
one variant of each rule comes first, then controls, the probe, and the rest.

Writes NAME.kineto_stack.json.gz (with Python stacks), NAME.kineto.json.gz and NAME.nsys.sqlite,
labels.json (what is true of each trace), probe.json (the rows of the probe, by step), and
record.json (what was recorded, and why what failed did).
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import json
import os
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from labelled import FORMATS, NSYS, Bench
from probe import ROWS, SLEEP_CYCLES, WARM_ROWS, fixtures
from recording import PROBE, Suite, Task, file_name, nsys_order
from variants import VARIANTS, labels

SETTLE_STEPS = 12  # run before anything is recorded: lazy loading, compilation, allocator
PROFILER_WARMUP = 3
LOCK = "HOSTGAP_SUITE_LOCK"
# The longest that one variant may keep others from being recorded: alone, and while it gets ready.
ALONE_S = 15
READY_S = 30
NSYS_STEPS = 4


@contextlib.contextmanager
def gpu(*, alone: bool) -> Iterator[None]:
    """Use the GPU: beside others that get ready, or alone, to be recorded."""
    name = os.environ.get(LOCK)
    if name is None:
        yield
        return
    with Path(name).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        # who hangs must not hold up the others
        faulthandler.dump_traceback_later(ALONE_S if alone else READY_S, exit=True)
        yield
        faulthandler.cancel_dump_traceback_later()


@dataclass
class Run:
    """A variant, or the probe, ready to be recorded: `steps[i]()` is step i."""

    name: str
    bench: Bench | None
    steps: list[Callable[[], object]]

    @classmethod
    def ready(cls, name: str) -> Run:
        """Make it and run it until it has settled."""
        import torch

        with gpu(alone=False):
            if name == PROBE:
                run = cls(name, None, probe_steps())
                for _ in range(2):
                    for step in run.steps:
                        step()
            else:
                bench = Bench()
                step = VARIANTS[name].make(bench)
                run = cls(name, bench, [step] * VARIANTS[name].label.steps)
                for _ in range(SETTLE_STEPS):
                    step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        if run.bench is None or run.bench.freeze:
            gc.collect()
            gc.freeze()  # or collections would be faults that no label names
        return run

    def settle(self) -> None:
        """Right before the recording: nothing is left running."""
        import torch

        if self.name == PROBE and torch.cuda.is_available():
            torch.cuda.empty_cache()  # so that the row `empty_cache` has nothing to free
        elif self.bench is not None:
            for _ in range(PROFILER_WARMUP):
                self.steps[0]()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def close(self) -> None:
        """End threads and processes of the variant."""
        if self.bench is not None:
            self.bench.close()


def probe_steps() -> list[Callable[[], object]]:
    """A step per row of the probe, behind the GPU's sleep."""
    import torch

    shared = fixtures()

    def sleep() -> None:
        torch.cuda._sleep(SLEEP_CYCLES)

    def behind(call: Callable[[Any], object]) -> Callable[[], None]:
        def step() -> None:
            sleep()
            call(shared)

        return step

    return [sleep] * WARM_ROWS + [behind(row.run) for row in ROWS.values()]


def warm_profiler(run: Run) -> None:
    """Start the profiler once: its first start takes a second, and others may use the GPU."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with gpu(alone=False), profile(activities=activities):
        run.steps[0]()


def record(run: Run, path: Path, *, stack: bool) -> None:
    """Profile its steps into `path` (.json.gz)."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with gpu(alone=True):
        run.settle()
        profiler = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=len(run.steps), repeat=1),
            with_stack=stack,
            experimental_config=torch._C._profiler._ExperimentalConfig(
                enable_cuda_sync_events=True
            ),
        )
        with profiler:
            if run.name != PROBE:
                run.steps[0]()
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # or the warm-up's kernels would run inside the window
            profiler.step()
            for step in run.steps:
                step()
                profiler.step()
    # what is written has its final name only when it is whole
    part = path.with_name(f"part-{path.name}")
    profiler.export_chrome_trace(str(part))
    part.rename(path)


# --- all of them -----------------------------------------------------------------------------


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def environment() -> dict[str, str]:
    """The GPU and the versions that matter."""
    import platform

    import torch

    return {
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    }


class Names(click.ParamType):
    """Variants, separated by commas."""

    name = "names"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[str]:
        """Check that there are such variants."""
        names = [name for name in value.split(",") if name]
        for name in names:
            if name != PROBE and name not in VARIANTS:
                self.fail(f"no variant {name!r}; all of them: {', '.join(VARIANTS)}", param, ctx)
        return names


@click.group(invoke_without_command=True)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder to write to.")
@click.option("--only", type=Names(), multiple=True, help="Variants, or probe; all by default.")
@click.option("--kineto/--no-kineto", default=True, help="Record by torch.profiler.")
@click.option("--nsys", type=click.Path(path_type=Path), help="nsys, to record with it, too.")
@click.option("--importer", type=click.Path(path_type=Path), help="QdstrmImporter, if needed.")
@click.option("--importer-libs", help="LD_LIBRARY_PATH for QdstrmImporter.")
@click.option("--jobs", default=3, show_default=True, help="Variants at a time.")
@click.option("--timeout", default=90.0, show_default=True, help="Seconds for one variant.")
@click.option("--budget", default=420.0, show_default=True, help="Seconds for everything.")
@click.option("--tar", type=click.Path(path_type=Path), help="Pack everything into this .tar.gz.")
@click.option("--cpu", is_flag=True, help="Try it without a GPU: traces without GPU work.")
@click.pass_context
def main(
    context: click.Context,
    out: Path | None,
    only: Sequence[list[str]],
    kineto: bool,
    nsys: Path | None,
    importer: Path | None,
    importer_libs: str | None,
    jobs: int,
    timeout: float,
    budget: float,
    tar: Path | None,
    cpu: bool,
) -> None:
    """Record the labelled suite (see the head of this file)."""
    if context.invoked_subcommand is not None:
        return
    if out is None:
        raise click.UsageError("--out is missing")
    started = time.monotonic()
    import torch

    if not torch.cuda.is_available() and not cpu:
        raise click.ClickException("no CUDA GPU: the suite can only be recorded on one")
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    lock = out / ".lock"
    os.environ[LOCK] = str(lock)
    names = [name for group in only for name in group] or [PROBE, *VARIANTS]
    if cpu:
        names = [name for name in names if name != PROBE and not VARIANTS[name].label.cuda]
    tasks = []
    if kineto:
        tasks += [Task(name, FORMATS[:2]) for name in names]
    if nsys is not None:
        tasks += [Task(name, (NSYS,)) for name in nsys_order(names)]
    suite = Suite(out, nsys, importer, importer_libs, timeout, started + budget)
    suite.run(tasks, jobs)
    lock.unlink(missing_ok=True)

    # of all of them, so that a few that are recorded again can be put beside the others
    write_json(out / "labels.json", labels())
    if PROBE in names:
        write_json(out / "probe.json", probe_rows())
    write_json(out / "record.json", {**environment(), "outcome": suite.outcome})
    said = [text for by_format in suite.outcome.values() for text in by_format.values()]
    click.echo(
        f"{sum(text == 'ok' for text in said)} of {len(said)} traces recorded "
        f"in {time.monotonic() - started:.0f} s"
    )
    for name, by_format in suite.outcome.items():
        for kind, text in by_format.items():
            if text not in ("ok", "no time left"):
                click.echo(f"--- {name} {kind}\n{text}")
    if tar is not None:
        tar.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(tar, "w:gz") as archive:
            for path in sorted(out.iterdir()):
                if path.is_file() and path.resolve() != tar.resolve():
                    archive.add(path, arcname=f"suite/{path.name}")
        click.echo(f"Wrote {tar} ({tar.stat().st_size:,} bytes)")


def probe_rows() -> list[dict[str, Any]]:
    """The probe's rows, as probe.json holds them: by the step each is."""
    return [
        {"step": WARM_ROWS + i, "row": name, "code": row.code, "blocks": row.blocks}
        for i, (name, row) in enumerate(ROWS.items())
    ]


@main.command("one")
@click.argument("name", type=click.Choice([PROBE, *VARIANTS]))
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path))
def one_command(name: str, out: Path) -> None:
    """Record one variant by torch.profiler, with stacks and without."""
    out.mkdir(parents=True, exist_ok=True)
    run = Run.ready(name)
    try:
        warm_profiler(run)
        for kind in FORMATS[:2]:
            record(run, out / file_name(name, kind), stack=kind == "kineto_stack")
    finally:
        run.close()
    leave()


@main.command("steps")
@click.argument("name", type=click.Choice([PROBE, *VARIANTS]))
def steps_command(name: str) -> None:
    """Run one variant's steps for Nsight: an NVTX range each, in cudaProfilerStart and Stop."""
    import torch

    run = Run.ready(name)
    steps = run.steps if name == PROBE else run.steps[:NSYS_STEPS]
    try:
        with gpu(alone=False):
            run.settle()
        # what Nsight does at its start and end takes seconds, in which others may be recorded
        torch.cuda.profiler.start()
        with gpu(alone=True):
            if name != PROBE:
                run.steps[0]()  # the first behind the start is slow
            torch.cuda.synchronize()
            for index, step in enumerate(steps):
                torch.cuda.nvtx.range_push(f"step#{index}")
                step()
                torch.cuda.nvtx.range_pop()
            torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    finally:
        run.close()


def leave() -> None:
    """Exit without tearing down: a variant may hold raw streams, threads and graphs."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
