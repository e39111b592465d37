"""Where in the user's source something happened."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
from hostgap.trace.model import Int32, Trace

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
    for code in np.unique(threads).tolist():
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
    for code in np.unique(threads).tolist():
        mine = np.flatnonzero(threads == code)
        for i, event in zip(mine.tolist(), host[code].events_of(calls[mine]).tolist(), strict=True):
            site = sites[i]
            if site is None or site.precision != "function" or event < 0:
                continue
            called = _called(host, code, event)
            if called and (site, called) not in known:
                known[site, called] = _with_line(site, called, roots)
            if called:
                exact[i] = known[site, called]
    return exact


def _called(host: Host, code: int, event: int) -> str:
    """The last name of what the user frame around an event calls, "" where the trace has none."""
    thread, trace = host[code], host.trace
    site = thread.site[event]
    inner = ""
    while event >= 0:
        if thread.table[event] == FRAME:
            name = trace.names[trace.frames.name[thread.row[event]]]
            if trace.frames.name[thread.row[event]] == site:
                return inner
            inner = _name_of_frame(name)
        event = int(thread.nested.parent[event])
    return ""


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


def idle_sites(host: Host, parts: Parts, most: int) -> list[IdleSite]:
    """The places with the most idle time, at most `most`, the costliest first.

    A place is a user frame; in a trace without stacks, the outermost framework op.
    """
    trace = host.trace
    # a frame's code is even, an op's odd, so that one number names the place
    place = np.where(parts.site != NONE, parts.site * 2, parts.op * 2 + 1)
    at = np.flatnonzero(place >= 0)
    seen = np.zeros(2 * len(trace.names), np.bool_)
    seen[place[at]] = True
    places = np.flatnonzero(seen)
    which = (np.cumsum(seen) - 1)[place[at]]  # np.unique would sort
    causes = len(Cause)
    total = sum_by(
        which * causes + parts.cause[at], parts.end[at] - parts.start[at], len(places) * causes
    ).reshape(-1, causes)
    result = []
    for i in np.argsort(-total.sum(axis=1), kind="stable")[:most].tolist():
        name = trace.names[places[i] >> 1]
        site = site_of_op(name) if places[i] & 1 else site_of_frame(name, frame_precision(trace))
        result.append(
            IdleSite(
                site=site or site_of_op(name),
                idle_ns=int(total[i].sum()),
                by_cause={Cause(c).label: int(ns) for c, ns in enumerate(total[i]) if ns},
                calls=_calls(host, parts, at[which == i]),
            )
        )
    return result


def _calls(host: Host, parts: Parts, rows: NDArray[np.intp], most: int = 3) -> list[str]:
    """Names of the innermost ops and API calls under which most of some pieces lie."""
    trace = host.trace
    time: dict[str, int] = {}
    for table, source in ((OP, trace.host_ops), (CALL, trace.api_calls)):
        at = rows[parts.table[rows] == table]
        codes, which = np.unique(source.name[parts.row[at]], return_inverse=True)
        total = sum_by(which, parts.end[at] - parts.start[at], len(codes))
        for code, ns in zip(codes.tolist(), total.tolist(), strict=True):
            name = readable(trace.names[code])
            time[name] = time.get(name, 0) + ns
    return sorted(time, key=lambda name: (-time[name], name))[:most]
