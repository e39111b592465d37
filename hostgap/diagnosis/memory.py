"""Device memory taken from and given back to the driver: calls that a caching allocator avoids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import events_under, named
from hostgap.trace.model import Int64, Role

# Those in the order of a stream (cudaMallocAsync, cudaFreeAsync) are made to be called in a loop.
ALLOCATES = re.compile(
    r"(?:cuda|hip)(?:Ext)?Malloc(?:Pitch|Array|Managed|MipmappedArray|WithFlags|3D\w*)?$"
    r"|cuMemAlloc(?:Pitch|Managed)?(?:_v2)?$|(?:cu|hip)Mem(?:Create|Map|SetAccess)$"
    r"|(?:cu|hip)MemAddressReserve$"
)
FREES = re.compile(
    r"(?:cuda|hip)Free(?:Array|MipmappedArray)?$|cuMemFree(?:_v2)?$"
    r"|(?:cu|hip)Mem(?:Unmap|Release|AddressFree)$"
)
EMPTY_CACHE = re.compile(r": empty_cache$|\b_cuda_emptyCache\b|\bemptyCache\b")
FEWEST = 3  # frees in a row that are a cache being emptied, where no stack says so


@dataclass(frozen=True, slots=True)
class Emptied:
    """A cache of device memory given back to the driver, and what was allocated anew behind it.

    Attributes:
        frees: rows of api_calls.
        allocations: those of the same thread until the cache is emptied again.
        retry: the allocator did it itself: an allocation failed and is tried again.
    """

    frees: Int64
    allocations: Int64
    retry: bool


def device_memory_calls(context: Context) -> tuple[Int64, Int64]:
    """Rows of api_calls of the window that allocate device memory, and that free it."""
    rows = context.calls_of(Role.ALLOC, Role.FREE)
    name = context.trace.api_calls.name[rows]
    return rows[named(context, ALLOCATES)[name]], rows[named(context, FREES)[name]]


def caches_emptied(context: Context) -> Iterator[Emptied]:
    """The times at which a cache of device memory was emptied in the window.

    A row of frees with no launch between them is one, if allocations follow it; a single free is
    one too if it was made in `empty_cache`.
    """
    api, trace = context.trace.api_calls, context.trace
    allocations, frees = device_memory_calls(context)
    launching = context.calls_of(Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY)
    empty = named(context, EMPTY_CACHE)
    for code in np.unique(api.thread[frees]).tolist():
        freed = frees[api.thread[frees] == code]
        taken = allocations[api.thread[allocations] == code]
        launched = launching[api.thread[launching] == code]
        # what lies between two frees, or allocations, counts as the number of launches before
        freed_at, taken_at = np.searchsorted(launched, freed), np.searchsorted(launched, taken)
        taken_by = np.searchsorted(taken, freed)
        new = (np.diff(freed_at) != 0) | (np.diff(taken_by) != 0)
        bursts = np.split(freed, np.flatnonzero(new) + 1)
        events = context.host[code].events_of(freed)
        marked = np.zeros(len(freed), np.bool_)
        if empty.any():
            marked[events >= 0] = events_under(context, code, empty)[events[events >= 0]]
        in_call = dict(zip(freed.tolist(), marked.tolist(), strict=True))
        for i, burst in enumerate(bursts):
            until = bursts[i + 1][0] if i + 1 < len(bursts) else len(trace.api_calls)
            first, last = np.searchsorted(taken, [burst[0], until])
            again = taken[first:last]
            if not in_call[int(burst[0])] and (len(burst) < FEWEST or len(again) == 0):
                continue
            here = int(np.searchsorted(launched, burst[0]))
            retry = (
                not in_call[int(burst[0])]
                and first > 0
                and taken_at[first - 1] == here
                and taken_at[first] == here
            )
            yield Emptied(burst, again, bool(retry))
