"""How a target that several ranks run together is measured: as one target, by all at once.

Each pass has a process per rank, all of which make the same steps (`hostgap.profiling.lockstep`).
A pass that fails in one rank fails in all, is named, and leaves the others standing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hostgap.errors import ConfigError
from hostgap.profiling import requests as r
from hostgap.profiling.bench import Comparison, Variant
from hostgap.profiling.measurement import (
    Estimate,
    Inflation,
    Measurement,
    Pass,
    Site,
    Waits,
)
from hostgap.profiling.protocol import (
    MODES,
    Attempts,
    ProfileOptions,
    Progress,
    assembled,
    whole_step,
)
from hostgap.profiling.rank_group import RankGroup, devices_for
from hostgap.profiling.rank_waits import rank_waits
from hostgap.profiling.rundir import rank_name, trace_name
from hostgap.profiling.target import TargetSpec


def checked_ranked(spec: TargetSpec, options: ProfileOptions) -> list[str | None]:
    """What can be refused before anything runs; else the GPU of each rank.

    Raises:
        ConfigError: a sweep of batches, or fewer GPUs than ranks.
    """
    if options.batches:
        raise ConfigError("--batch: several are for one rank", "give one with --ranks")
    return devices_for(spec.ranks, options.device)


def profile_ranks(
    spec: TargetSpec, options: ProfileOptions, folder: Path, progress: Progress
) -> list[Measurement]:
    """Measure a target that `spec.ranks` processes run together, each on a GPU of its own.

    Args:
        spec: what to run.
        options: how much.
        folder: an existing folder. Each rank's traces go into one of its own in it, `rank0`, ...
        progress: told what is being done, in a few words.

    Returns:
        What was measured of each rank, in order.

    Raises:
        ConfigError: no torch, fewer GPUs than ranks, options that do not fit the target.
        TargetError: the target cannot be imported, built or timed.
    """
    devices = checked_ranked(spec, options)
    folders = rank_folders(folder, spec.ranks)
    ranks = partial(RankGroup, spec, devices, timeout_s=options.timeout_s)
    run = Attempts(spec, options, progress, ranks)
    progress(f"timing {spec.ranks} ranks without a profiler")
    with ranks() as group:
        variant, welcomes = Variant(group.welcomes[0].defects), group.welcomes
        timing = r.Measure(variant, options.warmup, options.steps, options.repeats)
        measured: list[r.Measured] = group.ask(timing, r.Measured)
    passes: list[list[Pass]] = [[] for _ in folders]
    for mode in MODES if options.stacks else MODES[:-1]:
        paths = [rank / trace_name(mode) for rank in folders]
        steps: list[Estimate] | None = run.attempt(
            f"recording them ({mode})",
            [r.Trace(variant, mode, str(p), options.warmup, options.traced_steps) for p in paths],
            Estimate,
        )
        for index, path in enumerate(paths):
            if steps is None:
                path.unlink(missing_ok=True)  # what was recorded until it failed
            else:
                passes[index].append(Pass(mode=mode, file=path.name, step=steps[index]))
    sites: list[list[Site]] | None = run.attempt(
        "finding the lines that wait", r.Sites(variant, options.warmup), list[Site]
    )
    inflation: list[list[Inflation]] | None = run.attempt(
        "calibrating the profiler", r.Calibrate(), list[Inflation]
    )
    graphed: list[Comparison] | None = run.as_one_graph(
        "trying them as one CUDA graph each", variant
    )
    waits = waits_of(measured)
    return [
        assembled(
            spec,
            welcomes[index],
            measured[index],
            passes[index],
            problems=run.problems,
            regions=whole_step(graphed[index] if graphed else None),
            inflation=inflation[index] if inflation else [],
            sites=sites[index] if sites else [],
            waits=waits[index],
        )
        for index in range(spec.ranks)
    ]


def waits_of(measured: Sequence[r.Measured]) -> list[Waits | None]:
    """Per rank, what it waits for the others without a profiler; None where they never meet."""
    return rank_waits([one.watched for one in measured], [one.graphs for one in measured])


def rank_folders(folder: Path, ranks: int) -> list[Path]:
    """The folders of the ranks in that of their job, made here."""
    folders = [folder / rank_name(index) for index in range(ranks)]
    for each in folders:
        each.mkdir(exist_ok=True)
    return folders
