"""Where in the user's source something happened."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import Cause, frame_parts
from hostgap.analysis.host import CALL, FRAME, OP, Host
from hostgap.analysis.parts import NONE, Parts, sum_by
from hostgap.analysis.source import lines_of_call
from hostgap.diagnosis.model import IdleSite, Site
from hostgap.trace.columns import distinct, distinct_codes
from hostgap.trace.model import Int32, Int64, Trace

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


Precision = Literal["call", "function"]


def frame_precision(trace: Trace) -> Precision:
    """What a frame's line is: Kineto gives the function's first, a stack in an Nsight export the
    line being run."""
    return "call" if trace.source == "nsys" else "function"


def site_of_frame(name: str, precision: Precision = "function") -> Site | None:
    """A user frame's name as a site, None where it names no place."""
    parts = frame_parts(readable(name))
    if parts is None:
        return None
    file, line, function = parts
    return Site(file=file, line=line, function=function, op=None, precision=precision)


def site_of_op(op: str) -> Site:
    """A chain of framework ops as a site, for traces without stacks."""
    return Site(file=None, line=None, function=None, op=op, precision="none")


def readable(name: str) -> str:
    """A name without the object addresses that make equal things differ."""
    return _ADDRESS.sub("", name)


def op_names(host: Host, calls: NDArray[np.integer]) -> list[tuple[str, ...]]:
    """The framework ops around n API calls, outermost first."""
    found: list[tuple[str, ...]] = [()] * len(calls)
    threads = host.trace.api_calls.thread[calls]
    for code in distinct_codes(threads).tolist():
        mine = np.flatnonzero(threads == code)
        chains = _op_chains(host, code, host[code].events_of(np.asarray(calls)[mine]))
        for i, chain in zip(mine.tolist(), chains, strict=True):
            found[i] = chain
    return found


def _op_chains(host: Host, code: int, event: NDArray[np.intp]) -> list[tuple[str, ...]]:
    """The framework ops at and around n events of a thread, outermost first."""
    thread, trace = host[code], host.trace
    levels = []
    while (event >= 0).any():
        at = np.maximum(event, 0)
        row = thread.row[at]
        is_op = (event >= 0) & thread.is_op[at]
        name = np.full(len(event), NONE, np.int32)
        name[is_op] = trace.host_ops.name[row[is_op]]
        levels.append(name)
        event = np.where(event >= 0, thread.nested.parent[at], NONE)
    if not levels:
        return [()] * len(event)
    known: dict[bytes, tuple[str, ...]] = {}
    result = []
    for codes in np.ascontiguousarray(np.stack(levels[::-1], axis=1)):
        key = codes.tobytes()
        if key not in known:
            known[key] = tuple(trace.names[name] for name in codes.tolist() if name != NONE)
        result.append(known[key])
    return result


def exact_sites(
    host: Host, calls: Int32, sites: Sequence[Site | None], roots: Sequence[Path] = ()
) -> list[Site | None]:
    """The sites of n API calls, with the line of the call where the source at hand tells it.

    Args:
        sites: what `call_sites` gave.
        roots: folders in which relative files are looked for; the current one always.
    """
    threads = host.trace.api_calls.thread[calls]
    exact = list(sites)
    known: dict[tuple[Site, str], Site] = {}
    for code in distinct_codes(threads).tolist():
        mine = np.flatnonzero(threads == code)
        frames = _called(host, code, host[code].events_of(calls[mine]))
        names = {frame: _name_of_frame(host.trace.names[frame]) for frame in set(frames) - {NONE}}
        for i, frame in zip(mine.tolist(), frames, strict=True):
            site, called = sites[i], names.get(frame, "")
            if site is None or site.precision != "function" or not called:
                continue
            if (site, called) not in known:
                known[site, called] = _with_line(site, called, roots)
            exact[i] = known[site, called]
    return exact


def _called(host: Host, code: int, event: NDArray[np.intp]) -> list[int]:
    """Per event of a thread (-1: none): what the user frame around it calls, the code of that
    frame's name, NONE where the trace has no such frame."""
    thread, names = host[code], host.trace.frames.name
    found = np.full(len(event), NONE, np.int32)
    inner = found.copy()
    alive = np.flatnonzero(event >= 0)
    at: NDArray[np.signedinteger] = event[alive]
    site = thread.site[at]
    while len(alive):
        frames = thread.table[at] == FRAME
        name = np.full(len(at), NONE, np.int32)
        name[frames] = names[thread.row[at[frames]]]
        reached = frames & (name == site)
        found[alive[reached]] = inner[alive[reached]]
        passed = frames & ~reached
        inner[alive[passed]] = name[passed]
        at = thread.nested.parent[at]
        on = ~reached & (at >= 0)
        alive, at, site = alive[on], at[on], site[on]
    return found.tolist()


_BUILT_IN = re.compile(r"<built-in (?:method|function) (\w+)")


def _name_of_frame(name: str) -> str:
    built_in = _BUILT_IN.match(name)
    if built_in:
        return built_in[1]
    parts = frame_parts(name)
    return parts[2].rsplit(".", 1)[-1] if parts else ""


def _with_line(site: Site, called: str, roots: Sequence[Path]) -> Site:
    if site.file is None or site.line is None or site.function is None:
        return site
    lines = lines_of_call(site.file, site.line, site.function, called, roots)
    if len(lines) == 1:
        return msgspec.structs.replace(site, line=lines[0], precision="call")
    return msgspec.structs.replace(site, candidates=lines) if lines else site


def call_sites(host: Host, calls: Int32) -> list[Site | None]:
    """Sites of n API calls: their user frame where there is one, else their ops."""
    frames = host.call_sites(calls)
    precision = frame_precision(host.trace)
    chains: list[tuple[str, ...]] = [()] * len(calls)
    bare = np.flatnonzero(frames == NONE)
    for i, chain in zip(bare.tolist(), op_names(host, calls[bare]), strict=True):
        chains[i] = chain
    known: dict[int | tuple[str, ...], Site | None] = {(): None}
    sites = []
    for frame, chain in zip(frames.tolist(), chains, strict=True):
        key = frame if frame != NONE else chain
        if key not in known:
            known[key] = (
                site_of_op(" > ".join(chain))
                if frame == NONE
                else site_of_frame(host.trace.names[frame], precision)
            )
        sites.append(known[key])
    return sites


def places(parts: Parts, rows: NDArray[np.intp] | slice = slice(None)) -> Int32:
    """The places of pieces as numbers: the user frame of each, else its outermost framework op.

    A frame's code doubled, an op's doubled and one more; below 0 for neither.

    Args:
        parts: the pieces.
        rows: those asked for; by default all.
    """
    site, op = parts.site[rows], parts.op[rows]
    return np.where(site != NONE, site * 2, op * 2 + 1).astype(np.int32)


def site_of_place(trace: Trace, place: int) -> Site | None:
    """The site that a number of `places` stands for, None for a frame that names no place."""
    name = trace.names[place >> 1]
    return site_of_op(name) if place & 1 else site_of_frame(name, frame_precision(trace))


def idle_sites(host: Host, pieces: Iterable[Parts], most: int) -> list[IdleSite]:
    """The places with the most idle time, at most `most`, the costliest first.

    A place is a user frame; in a trace without stacks, the outermost framework op.

    Args:
        pieces: of idle time, in blocks.
    """
    trace = host.trace
    causes = len(Cause)
    total: dict[int, Int64] = {}  # place -> ns by cause
    for parts in pieces:
        place = places(parts)
        at = np.flatnonzero(place >= 0)
        found, which = distinct(place[at].astype(np.int64))
        by_cause = sum_by(
            which * causes + parts.cause[at], parts.length[at], len(found) * causes
        ).reshape(-1, causes)
        for key, ns in zip(found.tolist(), by_cause, strict=True):
            total[key] = total[key] + ns if key in total else ns
    costliest = sorted(total, key=lambda key: (-int(total[key].sum()), key))[:most]
    calls = _calls(host, pieces, costliest)
    result = []
    for key in costliest:
        site = site_of_place(trace, key) or site_of_op(trace.names[key >> 1])
        result.append(
            IdleSite(
                site=site,
                idle_ns=int(total[key].sum()),
                by_cause={Cause(c).label: int(ns) for c, ns in enumerate(total[key]) if ns},
                calls=calls[key],
            )
        )
    return result


def _calls(
    host: Host, pieces: Iterable[Parts], wanted: list[int], most: int = 3
) -> dict[int, list[str]]:
    """Place -> names of the innermost ops and API calls under which most of its pieces lie."""
    trace = host.trace
    time: dict[int, dict[str, int]] = {key: {} for key in wanted}
    number = np.full(2 * len(trace.names), NONE, np.int64)
    number[wanted] = np.arange(len(wanted))
    for parts in pieces:
        place = places(parts)
        for table, source in ((OP, trace.host_ops), (CALL, trace.api_calls)):
            at = np.flatnonzero((parts.table == table) & (place >= 0))
            of = number[place[at]]
            at, of = at[of >= 0], of[of >= 0]
            keys, which = distinct(of * len(trace.names) + source.name[parts.row[at]])
            total = sum_by(which, parts.length[at], len(keys))
            for key, ns in zip(keys.tolist(), total.tolist(), strict=True):
                names = time[wanted[key // len(trace.names)]]
                name = readable(trace.names[key % len(trace.names)])
                names[name] = names.get(name, 0) + ns
    return {
        key: sorted(names, key=lambda name: (-names[name], name))[:most]
        for key, names in time.items()
    }
