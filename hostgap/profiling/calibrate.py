"""How much longer calls take under the profiler, on this machine.

Measured on H200 hosts with torch 2.11: a graph launch of 1,230 nodes 25 to 217 us without, 725 to
1,676 with; an eager launch 8.7 to 10.9 us without, 9.8 to 18.6 with.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

from hostgap.profiling.events import Mark, spin
from hostgap.profiling.measurement import Inflation

GRAPH_NODES = (1, 100, 500, 1230)
EAGER_LAUNCHES = 200
REPEATS = 15
HOLD_CYCLES = 10_000_000  # about 5 ms; the largest of these graphs was launched in 1.7 at worst
_MODES: tuple[tuple[ProfilerActivity, ...] | None, ...] = (
    None,
    (ProfilerActivity.CUDA,),
    (ProfilerActivity.CPU, ProfilerActivity.CUDA),
)


def calibrate() -> list[Inflation]:
    """Launches, graph launches and waits: unprofiled, with CUDA tracing, with CPU and CUDA.

    The unprofiled ones come first: CUPTI stays attached to a process once it has profiled.
    """
    x = torch.zeros(1, device="cuda")
    graphs = {nodes: _graph(x, nodes) for nodes in GRAPH_NODES}
    columns = []
    for mode in _MODES:
        with _profiled(mode):
            columns.append(_figures(x, graphs))
    plain, cuda, both = columns
    return [
        Inflation(
            what=what, nodes=nodes, unprofiled_ns=ns, cuda_ns=cuda[key], cpu_cuda_ns=both[key]
        )
        for key, ns in plain.items()
        for what, nodes in [key]
    ]


@contextmanager
def _profiled(activities: tuple[ProfilerActivity, ...] | None) -> Iterator[None]:
    if activities is None:
        yield
    else:
        with profile(activities=activities):
            yield


def _graph(x: torch.Tensor, nodes: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    x.add_(1)
    torch.cuda.synchronize()
    # thread_local: a rank has a thread that watches its collectives
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(nodes):
            x.add_(1)
    return graph


def _figures(
    x: torch.Tensor, graphs: dict[int, torch.cuda.CUDAGraph]
) -> dict[tuple[str, int | None], float]:
    """What and its number of nodes -> ns, medians."""

    def launches() -> None:
        for _ in range(EAGER_LAUNCHES):
            x.add_(1)

    figures: dict[tuple[str, int | None], float] = {}
    figures["eager launch", None] = _call_ns(launches) / EAGER_LAUNCHES
    figures["item", None] = _call_ns(x.item)
    figures["synchronize", None] = _call_ns(torch.cuda.synchronize)
    for nodes, graph in graphs.items():
        figures["graph launch", nodes] = _call_ns(graph.replay)
        figures["graph span", nodes] = _span_ns(graph.replay)
    return figures


def _call_ns(call: Callable[[], object]) -> float:
    """Host time of a call on an idle device."""
    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    torch.cuda.synchronize()
    return statistics.median(times[2:])  # the first ones warm up


def _span_ns(call: Callable[[], object]) -> float:
    """GPU time of what a call orders, with the host ahead: the GPU is held up until it has."""
    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        spin(HOLD_CYCLES)
        begin = Mark()
        call()
        times.append(begin.until(Mark()))
    return statistics.median(times[2:])
