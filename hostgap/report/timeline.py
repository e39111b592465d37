"""The events of a trace as the page's canvas draws them: lanes, packed columns, evidence.

Times are ns since the first event, on the GPU's clock. Every table is sorted by start; `lane` is an
index of `lanes`, `depth` the row within it, `many` above 0 marks a block that stands for so many
events. Name 0 is none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import MEANING, ROLE_CAUSE, Cause, is_user_frame
from hostgap.analysis.examine import Analysis
from hostgap.analysis.host import CALL, FRAME, OP
from hostgap.analysis.nesting import nest
from hostgap.analysis.parts import Parts
from hostgap.diagnosis.model import Diagnosis
from hostgap.output.printable import printable
from hostgap.report.evidence import Evidence, evidence_of, finding_ids
from hostgap.report.names import Names
from hostgap.report.overview import MOST_DEVICES, overview
from hostgap.report.packing import Packer
from hostgap.report.thinning import Detail, Thinned, choose, thin
from hostgap.trace.model import Int64, Role

MOST_LANES = 1_000
MOST_STEPS = 2_000
LONGEST = 10 * 86_400 * 10**9  # ns that are shown
# rows of a lane; what is nested deeper is left out, and counted
DEEPEST = {"stream": 4, "calls": 3, "ops": 24, "frames": 60}


@dataclass(slots=True)
class _Table:
    """One table before it is packed: all its events, then those that are shown."""

    kind: str
    start: Int64
    end: Int64
    name: NDArray[np.signedinteger]
    lane: NDArray[np.int64]
    thinned: Thinned | None = None


def timeline(
    analysis: Analysis, diagnosis: Diagnosis, budget: int | None = None
) -> tuple[dict[str, Any], list[str]] | None:
    """The timeline's data, and a line for everything that was merged or left out.

    None where the trace has no events at all.

    Args:
        budget: how many events to show one by one, where a page shares its size among ranks.
    """
    lanes: list[dict[str, Any]] = []
    tables = _tables(analysis, lanes)
    if not any(len(table.start) for table in tables):
        return None
    evidence = evidence_of(analysis, diagnosis)
    devices = list(analysis.devices.values())[:MOST_LANES]
    notes: list[str] = []
    low, high = _range(tables, [device.low for device in devices], notes)
    steps = analysis.steps.boundaries
    window = min((device.low for device in analysis.devices.values()), default=0)
    wanted = [spot[0] for each in evidence for spot in each.spots[:2]]
    shown = [table.start[table.lane >= 0] for table in tables]
    detail = choose(shown, steps, window, np.array(wanted, dtype=np.int64), budget)
    for table in tables:
        table.thinned = thin(detail, table.start, table.end, table.lane)

    packer = Packer()
    kept_parts: list[NDArray[np.intp]] = []
    shown_parts: list[Parts] = []
    for device in devices:
        parts = device.parts
        kept = detail.keeps(parts.start) & (parts.start >= low) & (parts.end <= high)
        kept_parts.append(np.flatnonzero(kept))
        shown_parts.append(parts.take(kept))
    names = _names(analysis, tables, shown_parts)
    packed = {table.kind: _pack(analysis, table, low, names, packer, notes) for table in tables}
    packed["parts"] = _parts(analysis, shown_parts, low, names, packer)
    _links(analysis, tables, packed, packer)
    outlined = _outlined(evidence, tables, kept_parts, devices, packer)
    ids = finding_ids(diagnosis.findings)
    data = {
        "length": high - low,
        "windows": [_within(device.low, device.high, low, high) for device in devices],
        "detail": None if detail.everything else [detail.first - low, detail.last - low],
        "names": names.texts,
        "causes": [
            {"name": cause.label, "meaning": MEANING[cause]} for cause in sorted(Cause, key=int)
        ],
        "roles": [int(ROLE_CAUSE[role]) for role in sorted(Role, key=int)],
        "lanes": lanes,
        "steps": _steps(analysis, low, high),
        "tables": packed,
        "overview": overview(analysis.trace.gpu_ops, devices, low, high, packer),
        "findings": {
            name: {**marks, "spots": [_within(*spot, low, high) for spot in each.spots]}
            for name, marks, each in zip(ids, outlined, evidence, strict=True)
        },
        "blob": packer.blob(),
    }
    _say(detail, tables, names, analysis, notes)
    return data, notes


def _range(tables: list[_Table], windows: list[int], notes: list[str]) -> tuple[int, int]:
    """The time that is shown: from the first event to the end of the last.

    Damaged traces hold times of another age, which a script's numbers and a screen's width cannot
    hold beside the others: then what lies within `LONGEST` of the middle, and the rest is left out.
    """
    filled = [table for table in tables if len(table.start)]
    low = min([*windows, *(int(table.start.min()) for table in filled)])
    high = max(int(table.end.max()) for table in filled)
    if high - low > LONGEST:
        middle = int(np.median(np.concatenate([table.start for table in filled])))
        low, high = max(low, middle - LONGEST // 2), min(high, middle + LONGEST // 2)
        lost = 0
        for table in filled:
            outside = (table.start < low) | (table.end > high)
            lost += int(np.count_nonzero(outside & (table.lane >= 0)))
            table.lane[outside] = -1
        inside = [table for table in filled if (table.lane >= 0).any()]
        low = max(low, min((int(t.start[t.lane >= 0].min()) for t in inside), default=low))
        high = min(high, max((int(t.end[t.lane >= 0].max()) for t in inside), default=high))
        notes.append(
            f"Left out for lying days from the others, or lasting as long: {lost:,} of the events."
        )
    return low, max(high, low + 1)


def _within(start: int, end: int, low: int, high: int) -> list[int]:
    """An interval as far as it is shown, from the beginning of what is."""
    return [min(max(time, low), high) - low for time in (start, end)]


def _tables(analysis: Analysis, lanes: list[dict[str, Any]]) -> list[_Table]:
    """The four tables of events, their lanes added to `lanes`: idle time and streams of each
    device, then calls, ops and frames of each thread, the one that launches first."""
    trace, clock = analysis.trace, analysis.clock
    gpu = trace.gpu_ops
    stream_lane = np.full(len(gpu), -1, np.int64)
    for number, (code, device) in enumerate(analysis.devices.items()):
        gpu_name = f"GPU {printable(str(trace.devices[code].id), 40)}"
        if len(lanes) < MOST_LANES and number < MOST_DEVICES:
            lanes.append({"kind": "idle", "device": number, "label": gpu_name})
        for stream, rows in device.streams.items():
            if len(lanes) < MOST_LANES:
                stream_lane[rows] = len(lanes)
                label = f"{gpu_name} stream {printable(str(trace.streams[stream]), 40)}"
                lanes.append({"kind": "stream", "device": number, "label": label})
    sources = (("calls", trace.api_calls), ("ops", trace.host_ops), ("frames", trace.frames))
    launches = Counter(trace.api_calls.thread[np.unique(gpu.call[gpu.call >= 0])].tolist())
    events: Counter[int] = Counter()
    for _, source in sources:
        events.update(dict(enumerate(np.bincount(source.thread, minlength=1).tolist())))
    order = sorted(events, key=lambda code: (-launches[code], -events[code], code))
    lane_of = {kind: np.full(len(trace.threads) + 1, -1, np.int64) for kind, _ in sources}
    for code in order:
        for kind, source in sources:
            if len(lanes) < MOST_LANES and (source.thread == code).any():
                lane_of[kind][code] = len(lanes)
                thread = printable(str(trace.threads[code]), 60)
                lanes.append({"kind": kind, "label": f"{_KINDS[kind]}, thread {thread}"})
    tables = [_Table("stream", gpu.start, gpu.end, gpu.name, stream_lane)]
    for kind, source in sources:
        start, end = clock.to_gpu(source.start), clock.to_gpu(source.end)
        tables.append(_Table(kind, start, end, source.name, lane_of[kind][source.thread]))
    return tables


_KINDS = {"calls": "CUDA calls", "ops": "Framework ops", "frames": "Python"}


def _names(analysis: Analysis, tables: list[_Table], shown_parts: list[Parts]) -> Names:
    used = np.zeros(len(analysis.trace.names), np.int64)
    for table in tables:
        assert table.thinned is not None
        rows = table.thinned.row[table.thinned.row >= 0]
        used += np.bincount(table.name[rows], minlength=len(used))
        if table.kind == "calls":
            site = analysis.host.call_sites(rows)
            used += np.bincount(site[site >= 0], minlength=len(used))
    for parts in shown_parts:
        used += np.bincount(parts.site[parts.site >= 0], minlength=len(used))
    return Names(analysis.trace.names, used)


def _pack(
    analysis: Analysis,
    table: _Table,
    low: int,
    names: Names,
    packer: Packer,
    notes: list[str],
) -> dict[str, Any]:
    """Pack what is shown of a table; afterwards `table.thinned` holds what was packed."""
    thinned = table.thinned
    assert thinned is not None
    depth = _depths(thinned)
    fits = depth < DEEPEST[table.kind]
    if not fits.all():
        notes.append(
            f"{np.count_nonzero(~fits):,} {_WHAT[table.kind]} nested deeper than "
            f"{DEEPEST[table.kind]} rows are left out of the timeline."
        )
        thinned = thinned.take(fits)
        table.thinned, depth = thinned, depth[fits]
    single = thinned.row >= 0
    name = np.zeros(len(thinned.row), np.int64)
    name[single] = names.of(table.name[thinned.row[single]])
    packed = {
        "start": packer.sorted(thinned.start - low),
        "dur": packer.add(np.maximum(thinned.end - thinned.start, 0)),
        "name": packer.add(name),
        "lane": packer.add(thinned.lane),
        "depth": packer.add(depth),
        "many": packer.add(thinned.many),
        "busy": packer.add(thinned.busy),
        "class": packer.add(_classes(analysis, table.kind, thinned)),
    }
    if table.kind == "calls":
        site = np.zeros(len(thinned.row), np.int64)
        site[single] = names.of(analysis.host.call_sites(thinned.row[single]))
        packed["site"] = packer.add(site)
    return packed


_WHAT = {"stream": "GPU ops", "calls": "CUDA calls", "ops": "ops", "frames": "Python frames"}


def _depths(thinned: Thinned) -> NDArray[np.int64]:
    """The row of each event in its lane: below what it is nested in or overlaps."""
    depth = np.zeros(len(thinned.row), np.int64)
    for lane in np.unique(thinned.lane).tolist():
        rows = np.flatnonzero(thinned.lane == lane)
        start = thinned.start[rows]
        end = np.maximum(thinned.end[rows], start + 1)
        order = np.lexsort((-end, start))
        for level, members in enumerate(nest(start[order], end[order]).levels):
            depth[rows[order[members]]] = level
    return depth


def _classes(analysis: Analysis, kind: str, thinned: Thinned) -> NDArray[np.int64]:
    """What an event is coloured by: GpuKind, Role, HostKind, or 1 for frames of the user's own."""
    trace = analysis.trace
    single = thinned.row >= 0
    rows = thinned.row[single]
    result = np.zeros(len(single), np.int64)
    if kind == "stream":
        result[single] = trace.gpu_ops.kind[rows]
    elif kind == "calls":
        result[single] = trace.api_calls.role[rows]
    elif kind == "ops":
        result[single] = trace.host_ops.kind[rows]
    else:
        codes, inverse = np.unique(trace.frames.name[rows], return_inverse=True)
        user = np.array([is_user_frame(trace.names[code]) for code in codes.tolist()], np.int64)
        result[single] = user[inverse] if len(codes) else 0
    return result


def _parts(
    analysis: Analysis,
    shown_parts: list[Parts],
    low: int,
    names: Names,
    packer: Packer,
) -> dict[str, Any]:
    """Idle pieces of all devices, one device after the other: `first` says where each begins."""
    trace = analysis.trace
    starts, durations, causes, sites, details, first = [], [], [], [], [], [0]
    for parts in shown_parts:
        starts.append(np.diff(parts.start - low, prepend=np.int64(0)))
        durations.append(parts.length)
        causes.append(parts.cause)
        sites.append(names.of(parts.site))
        code = np.full(len(parts), -1, np.int64)
        for which, source in ((FRAME, trace.frames), (OP, trace.host_ops), (CALL, trace.api_calls)):
            at = parts.table == which
            code[at] = source.name[parts.row[at]]
        details.append(names.of(code))
        first.append(first[-1] + len(parts))

    def column(chunks: list[Any]) -> list[int]:
        return packer.add(np.concatenate(chunks) if chunks else np.zeros(0, np.int64))

    return {
        "first": first,
        "start": column(starts),  # differences, from 0 again for each device
        "dur": column(durations),
        "cause": column(causes),
        "site": column(sites),
        "detail": column(details),
    }


def _position(table: _Table, rows: int) -> NDArray[np.int64]:
    """Where each row of a trace's table stands among the events shown, -1 where it does not."""
    assert table.thinned is not None
    at = np.full(rows, -1, np.int64)
    single = np.flatnonzero(table.thinned.row >= 0)
    at[table.thinned.row[single]] = single
    return at


def _links(
    analysis: Analysis, tables: list[_Table], packed: dict[str, Any], packer: Packer
) -> None:
    """From GPU ops to the calls that launched them: the index of the call plus 1, 0 for none."""
    ops, calls = tables[0].thinned, tables[1]
    assert ops is not None
    gpu_call = np.append(analysis.trace.gpu_ops.call, np.int32(-1))  # the last is that of blocks
    at = np.append(_position(calls, len(calls.start)), -1)
    packed["stream"]["call"] = packer.add(at[gpu_call[ops.row]] + 1)


def _outlined(
    evidence: list[Evidence],
    tables: list[_Table],
    kept_parts: list[NDArray[np.intp]],
    devices: list[Any],
    packer: Packer,
) -> list[dict[str, Any]]:
    """Per finding, what to outline: indices of calls, and of idle pieces."""
    calls = _position(tables[1], len(tables[1].start))
    offsets = np.cumsum([0, *(len(device.pieces) for device in devices)])
    rows = [kept + offset for kept, offset in zip(kept_parts, offsets, strict=False)]
    shown = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    result = []
    for each in evidence:
        at = calls[each.calls]
        parts = np.flatnonzero(np.isin(shown, each.parts))
        result.append({"calls": packer.add(at[at >= 0]), "parts": packer.add(parts)})
    return result


def _steps(analysis: Analysis, low: int, high: int) -> list[list[Any]]:
    """[start, end, name, whether it counts] of every step."""
    steps = analysis.steps
    if steps.marks.source == "whole" or not len(steps):
        return []
    return [
        [
            *_within(int(steps.boundaries[k]), int(steps.boundaries[k + 1]), low, high),
            printable(steps.marks.label[k], 60) or f"step {k}",
            int(k in analysis.chosen),
        ]
        for k in range(min(len(steps), MOST_STEPS))
    ]


def _say(
    detail: Detail,
    tables: list[_Table],
    names: Names,
    analysis: Analysis,
    notes: list[str],
) -> None:
    """Say what is not shown one by one."""
    total = sum(len(table.start) for table in tables)
    if not detail.everything:
        blocks = events = 0
        for table in tables:
            assert table.thinned is not None
            merged = table.thinned.many
            blocks += int(np.count_nonzero(merged))
            events += int(merged.sum())
        notes.append(
            f"The trace has {total:,} events. {total - events:,} are shown one by one: the first "
            f"steps of the window, and what surrounds the evidence of findings. The other "
            f"{events:,} are merged into {blocks:,} blocks, drawn half as high. The overview and "
            "every figure on this page are of all of them."
        )
    hidden = sum(int(np.count_nonzero(table.lane < 0)) for table in tables)
    if hidden:
        notes.append(f"Not shown at all: {hidden:,} of {total:,} events.")
    if names.left_out:
        notes.append(f"{names.left_out:,} of the rarest names are left out.")
    if len(analysis.steps) > MOST_STEPS:
        notes.append(f"Only the first {MOST_STEPS:,} of {len(analysis.steps):,} steps are marked.")
    if not len(analysis.trace.frames):
        notes.append("The trace has no Python stacks (with_stack=True records them).")
