"""The tables of an analysis as pandas DataFrames: what SQL-minded people and notebooks want.

Those of the trace itself come with what the analysis adds to them (the step of each op and call,
the depth and parent of each host event); `gaps`, `gap_parts`, `syncs`, `steps` and `sites` are its
own. All times are int64 ns; those of host events stay on the host's clock, those of gaps are on the
GPU's (they differ only where the analysis says so, HG904).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import Cause
from hostgap.analysis.host import CALL, FRAME, OP
from hostgap.analysis.parts import NONE, Parts
from hostgap.analysis.sites import site_of_frame
from hostgap.analysis.syncs import find_syncs
from hostgap.errors import HostgapError
from hostgap.trace.frames import data_frame
from hostgap.trace.model import CopyKind, Int32

if TYPE_CHECKING:
    import pandas as pd

    from hostgap.analysis.examine import Analysis

TABLES = (
    "gpu_ops",
    "api_calls",
    "host_ops",
    "frames",
    "syncs",
    "steps",
    "gaps",
    "gap_parts",
    "sites",
)


def table(analysis: Analysis, name: str) -> pd.DataFrame:
    """One table of an analysis as a DataFrame.

    Args:
        name: one of `TABLES`.

    Raises:
        HostgapError: there is no such table.
    """
    if name not in TABLES:
        raise HostgapError(f"no table {name!r}", f"tables: {', '.join(TABLES)}")
    if name in ("gpu_ops", "api_calls"):
        step = analysis.steps.op_step if name == "gpu_ops" else analysis.steps.call_step
        return data_frame(analysis.trace, name).assign(step=step)
    if name in ("host_ops", "frames"):
        depth, parent = _nesting(analysis, FRAME if name == "frames" else OP)
        return data_frame(analysis.trace, name).assign(depth=depth, parent=parent)
    made: pd.DataFrame = {
        "syncs": _syncs,
        "steps": _steps,
        "gaps": _gaps,
        "gap_parts": _gap_parts,
        "sites": _sites,
    }[name](analysis)
    return made


def _nesting(analysis: Analysis, which: int) -> tuple[Int32, Int32]:
    """Depth and parent (row of the same table, -1) of every frame or host op."""
    trace, host = analysis.trace, analysis.host
    rows = len(trace.frames if which == FRAME else trace.host_ops)
    depth, parent = np.zeros(rows, np.int32), np.full(rows, NONE, np.int32)
    for code in host.threads():
        events = host[code]
        # the nearest event above that is of the same table
        above = np.full(len(events.row), NONE, np.int32)
        level_of = np.zeros(len(events.row), np.int32)
        for level in events.nested.levels[1:]:
            up = events.nested.parent[level]
            same = events.table[up] == which
            above[level] = np.where(same, up, above[up])
            level_of[level] = np.where(same, level_of[up] + 1, level_of[up])
        mine = np.flatnonzero(events.table == which)
        depth[events.row[mine]] = level_of[mine]
        known = mine[above[mine] != NONE]
        parent[events.row[known]] = events.row[above[known]]
    return depth, parent


def _syncs(analysis: Analysis) -> pd.DataFrame:
    import pandas as pd

    trace = analysis.trace
    syncs = find_syncs(trace, [device.pieces for device in analysis.devices.values()])
    names = np.array(trace.names, dtype=object)
    return pd.DataFrame(
        {
            "call": syncs.call,
            "kind": names[trace.api_calls.name[syncs.call]],
            "copy": [CopyKind(code).name.lower() for code in syncs.copy],
            "site": analysis.host.call_sites(syncs.call),
            "blocked_ns": syncs.blocked_ns,
            "shadow_ns": syncs.shadow_ns,
        }
    )


def _steps(analysis: Analysis) -> pd.DataFrame:
    import pandas as pd

    steps = analysis.steps
    chosen = np.zeros(len(steps), np.bool_)
    chosen[list(analysis.chosen)] = True
    return pd.DataFrame(
        {
            "start": steps.boundaries[:-1],
            "end": steps.boundaries[1:],
            "host_start": steps.marks.start,
            "label": list(steps.marks.label),
            "source": steps.marks.source,
            "chosen": chosen,
        }
    )


def _gaps(analysis: Analysis) -> pd.DataFrame:
    import pandas as pd

    frames = []
    gpu = analysis.trace.gpu_ops
    for code, device in analysis.devices.items():
        rows = device.rows
        at = np.searchsorted(gpu.start[rows], device.gaps.end, "left")
        ended = at < len(rows)
        next_op = np.where(ended, rows[np.minimum(at, len(rows) - 1)], NONE)
        step = np.searchsorted(analysis.steps.boundaries, device.gaps.start, "right") - 1
        frames.append(
            pd.DataFrame(
                {
                    "device": str(analysis.trace.devices[code].id),
                    "start": device.gaps.start,
                    "end": device.gaps.end,
                    "next_op": next_op,
                    "step": np.where(step < len(analysis.steps), step, NONE),
                }
            )
        )
    columns = ["device", "start", "end", "next_op", "step"]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


def _gap_parts(analysis: Analysis) -> pd.DataFrame:
    import pandas as pd

    frames = []
    first = 0  # row of `gaps` at which this device's begin
    for device in analysis.devices.values():
        parts = device.parts
        frames.append(
            pd.DataFrame(
                {
                    "gap": parts.gap + first,
                    "start": parts.start,
                    "end": parts.end,
                    "cause": pd.Categorical.from_codes(
                        parts.cause.tolist(), pd.Index([cause.label for cause in Cause])
                    ),
                    "detail": _details(analysis, parts),
                    "site": parts.site,
                    "blame": parts.blame,
                }
            )
        )
        first += len(device.gaps.start)
    columns = ["gap", "start", "end", "cause", "detail", "site", "blame"]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


def _details(analysis: Analysis, parts: Parts) -> NDArray[np.object_]:
    """Name of the innermost host event of each piece, None without one."""
    trace = analysis.trace
    names = np.array([*trace.names, None], dtype=object)
    code = np.full(len(parts), NONE, np.int32)
    sources = ((FRAME, trace.frames), (OP, trace.host_ops), (CALL, trace.api_calls))
    for which, source in sources:
        at = parts.table == which
        code[at] = source.name[parts.row[at]]
    return np.asarray(names[code])


def _sites(analysis: Analysis) -> pd.DataFrame:
    """The user frames under which the GPU was idle or the host waited; the index is their code."""
    import pandas as pd

    used = [np.unique(p.site) for device in analysis.devices.values() for p in device.pieces]
    codes = np.unique(np.concatenate([*used, _syncs(analysis)["site"].to_numpy()]))
    rows = []
    for code in codes[codes != NONE].tolist():
        site = site_of_frame(analysis.trace.names[code])
        if site is not None:
            rows.append((code, site.file, site.line, site.function))
    return pd.DataFrame(rows, columns=["site", "file", "line", "function"]).set_index("site")
