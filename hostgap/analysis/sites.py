"""Where in the user's source something happened."""

from __future__ import annotations

import re

import numpy as np

from hostgap.analysis.attribution import Parts
from hostgap.analysis.causes import Cause, frame_parts
from hostgap.analysis.host import CALL, FRAME, OP, Host
from hostgap.diagnosis.model import IdleSite, Site
from hostgap.trace.model import Int32, Int64, Trace

NONE = -1
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def site_of_frame(name: str) -> Site | None:
    """A user frame's name as a site: Kineto gives the function's first line, not the call's."""
    parts = frame_parts(name)
    if parts is None:
        return None
    file, line, function = parts
    return Site(file=file, line=line, function=function, op=None, precision="function")


def site_of_op(op: str) -> Site:
    """A chain of framework ops as a site, for traces without stacks."""
    return Site(file=None, line=None, function=None, op=op, precision="none")


def readable(name: str) -> str:
    """A name without the object addresses that make equal things differ."""
    return _ADDRESS.sub("", name)


def event_names(trace: Trace, table: Int32, row: Int32) -> Int32:
    """Name codes of host events given as (table, row); -1 for none."""
    names = np.full(len(table), NONE, np.int32)
    sources = ((FRAME, trace.frames), (OP, trace.host_ops), (CALL, trace.api_calls))
    for which, source in sources:
        at = table == which
        names[at] = source.name[row[at]]
    return names


def op_chain(host: Host, thread: int, table: int, row: int) -> str | None:
    """The framework ops around a host event, outermost first: `aten::item > aten::_local...`."""
    trace = host.trace
    if thread == NONE or table == NONE:
        return None
    events = host[thread]
    found = np.flatnonzero((events.table == table) & (events.row == row))
    chain: list[str] = []
    at = int(found[0]) if len(found) else NONE
    while at != NONE:
        if events.table[at] == OP:
            chain.append(trace.names[trace.host_ops.name[events.row[at]]])
        at = int(events.nested.parent[at])
    return " > ".join(reversed(chain)) if chain else None


def call_site(host: Host, call: int, frame: int) -> Site | None:
    """Site of an API call: its user frame (a name code) where there is one, else its ops."""
    if frame != NONE:
        return site_of_frame(host.trace.names[frame])
    chain = op_chain(host, int(host.trace.api_calls.thread[call]), CALL, call)
    return site_of_op(chain) if chain else None


def idle_sites(host: Host, parts: Parts, most: int) -> list[IdleSite]:
    """The places with the most idle time, at most `most`, the costliest first.

    Pieces are put together by cause, user frame and the name of the innermost host event.
    """
    trace = host.trace
    names = event_names(trace, parts.table, parts.row)
    keys = (parts.cause.astype(np.int64) << 56) | (parts.site.astype(np.int64) + 1 << 28)
    keys |= names.astype(np.int64) + 1
    unique, first, which = np.unique(keys, return_index=True, return_inverse=True)
    total: Int64 = np.zeros(len(unique), np.int64)
    np.add.at(total, which, parts.length)
    # object addresses make many names of one thing: put those together too
    grouped: dict[tuple[int, int, str], tuple[int, int]] = {}
    for i in range(len(unique)):
        piece = int(first[i])
        name = readable(trace.names[names[piece]]) if names[piece] != NONE else ""
        key = (int(parts.cause[piece]), int(parts.site[piece]), name)
        so_far, example = grouped.get(key, (0, piece))
        grouped[key] = (so_far + int(total[i]), example)
    ranked = sorted(grouped.items(), key=lambda item: (-item[1][0], item[0]))[:most]
    result = []
    for (cause, frame, name), (idle, piece) in ranked:
        if frame != NONE:
            site = site_of_frame(trace.names[frame])
        else:
            chain = op_chain(
                host, int(parts.thread[piece]), int(parts.table[piece]), int(parts.row[piece])
            )
            site = site_of_op(chain) if chain else None
        result.append(
            IdleSite(cause=Cause(cause).label, idle_ns=idle, detail=name or None, site=site)
        )
    return result
