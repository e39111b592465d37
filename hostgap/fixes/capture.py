"""Capturing a body as a CUDA graph, and clearing up where that fails."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hostgap.errors import FixFailed
from hostgap.fixes.streams import on_gpu
from hostgap.fixes.warm import restart, warm_up
from hostgap.profiling.target import where
from hostgap.profiling.workload import Workload

WARM_UP_STEPS = 3
MIB = 1 << 20

# What a failed capture says -> what the step does, the first that fits.
_REASONS = (
    ("out of memory", "the GPU's memory runs out"),
    ("graph is empty", "the step orders nothing on the GPU"),
    ("unjoined", "the step leaves work on another stream that nothing waits for"),
    ("isolation", "the step waits for work that was ordered before the capture"),
    ("cpu and cuda tensors", "the step copies between the GPU and pageable memory during capture"),
    ("pinned", "the step copies between the GPU and pageable memory during capture"),
    ("generator", "the step draws from a random generator other than torch's own"),
    ("offset increment", "the step draws from a random generator other than torch's own"),
    ("capturing", "the step reads from the GPU or waits for it during capture"),
    ("capture", "the step does something that a capture does not allow"),
)
# Graphs whose capture failed: the allocators may go on asking them whether it is still under way.
_failed: list[torch.cuda.CUDAGraph] = []


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured function: replaying `graph` writes `output` in place.

    A graph knows addresses only. To hold `function` is to keep what lies there: a model that
    nothing else holds would be freed, and its memory given to the next tensor.
    """

    graph: torch.cuda.CUDAGraph
    output: Any
    function: Callable[[], Any]


def need_gpu(workload: Workload, name: str) -> None:
    """Raises FixFailed where there is no GPU to capture on."""
    if not on_gpu(workload) or not torch.cuda.is_available():
        raise FixFailed(f"{name}: captures CUDA graphs, and the step does not run on a CUDA device")


def capture(
    function: Callable[[], Any],
    name: str,
    *,
    stream: torch.cuda.Stream,
    pool: Any = None,
) -> Captured:
    """Capture what a function orders on the GPU; nothing of it runs.

    Args:
        function: must have run before, or its kernels are loaded and its memory is taken during
            the capture, which is not allowed.
        name: of the fix, for the error.
        stream: to capture on; the one it was warmed up on, whose workspaces exist already.
        pool: of `torch.cuda.graph_pool_handle()`, to be shared with other graphs that are never
            replayed at the same time.

    Raises:
        FixFailed: it cannot be captured. The capture is over then, and the device works.
    """
    graph = torch.cuda.CUDAGraph()
    pool = pool if pool is not None else torch.cuda.graph_pool_handle()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="The CUDA Graph is empty")
            # thread_local: what other threads do, such as loading data, is no concern of a capture
            with torch.cuda.graph(
                graph, pool=pool, stream=stream, capture_error_mode="thread_local"
            ):
                output = function()
    except (RuntimeError, Warning, TypeError, ValueError, AttributeError) as error:
        failure = explained(error, name)
        for link in _chain(error):
            traceback.clear_frames(link.__traceback__)  # they hold tensors of the pool
        _clear_up(graph, pool, stream.device, failure)
        raise failure from None
    return Captured(graph, output, function)


def explained(error: BaseException, name: str) -> FixFailed:
    """Why a capture failed: of a chain of errors the first, which is the cause of the others."""
    *_, first = _chain(error)
    text = str(first).strip().split("\n")[0]
    lowered = str(first).lower()
    if isinstance(first, torch.OutOfMemoryError):
        lowered = "out of memory"
    reason = next((said for word, said in _REASONS if word in lowered), "the step raised")
    return FixFailed(f"{name}: {reason} ({type(first).__name__}: {text[:200]})", where(first))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, the one that it arose from, and so on to the first."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _clear_up(
    graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device, failure: FixFailed
) -> None:
    """End a failed capture wherever torch keeps one, and see whether the device still works.

    Up to torch 2.11 `CUDAGraph.capture_end` raises before it has told the allocator and the random
    generator, both of which go on as if captured; later ones tell the allocator, and keep what the
    pool holds until the process ends.

    Raises:
        FixFailed: the device does not work any more.
    """
    index = device.index
    try:
        torch._C._cuda_endAllocateToPool(index, pool)
    except RuntimeError:  # torch has ended it itself
        graph.reset()
    else:
        _failed.append(graph)
        torch._C._cuda_releasePool(index, pool)
    generator = torch.cuda.default_generators[index]
    try:
        torch.rand(1, device=device)
    except RuntimeError:  # it goes on as if captured, which a clone does not
        generator.graphsafe_set_state(generator.clone_state())
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        probe = torch.ones(4, device=device) + torch.rand(4, device=device)
        works = bool((probe >= 1).all().item())
    except RuntimeError as error:
        raise FixFailed(
            f"{failure.message}; after that the device does not work any more "
            f"({str(error).splitlines()[0][:120]})",
            "context lost: what follows needs a new process",
        ) from None
    if not works:
        raise FixFailed(f"{failure.message}; after that the device computes wrong", failure.hint)


class _Spy:
    """A body that remembers what it was last given."""

    def __init__(self, body: Callable[..., Any]) -> None:
        self.body = body
        self.inputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> Any:
        self.inputs = inputs
        return self.body(*inputs)


def capture_body(workload: Workload, name: str, pool: Any = None) -> Workload:
    """The workload with its body as one CUDA graph: warmed up, captured, replayed from then on.

    Inputs are copied into static tensors each step; the output is the same static tensors each
    time. Costs: `capture_ms`, `graph_mib` (memory the graph keeps), `warmup_steps` without `reset`.

    Raises:
        FixFailed: see `capture`.
    """
    need_gpu(workload, name)
    device = torch.device(workload.device)
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    spy = _Spy(workload.body)
    warmed = replace(workload, body=spy)  # shares `costs`
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            warm_up(warmed, WARM_UP_STEPS)
    except RuntimeError as error:
        raise explained(error, name) from None
    torch.cuda.current_stream(device).wait_stream(stream)
    static = tuple(torch.empty_like(given).copy_(given) for given in spy.inputs)
    spy.inputs = ()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)
    begun = time.perf_counter()
    captured = capture(lambda: workload.body(*static), name, stream=stream, pool=pool)
    costs = workload.costs
    costs["capture_ms"] = costs.get("capture_ms", 0.0) + (time.perf_counter() - begun) * 1e3
    kept = max(0, torch.cuda.memory_reserved(device) - before) / MIB
    costs["graph_mib"] = costs.get("graph_mib", 0.0) + kept
    graph = captured.graph

    def replay(*inputs: Tensor) -> Any:
        for mine, given in zip(static, inputs, strict=True):
            fill(mine, given)
        graph.replay()
        return captured.output

    made = replace(workload, body=replay)
    if workload.upload is None and workload.feed is not None:
        feed = workload.feed

        def upload() -> tuple[Tensor, ...]:
            for mine, given in zip(static, feed(), strict=True):
                fill(mine, given)  # straight from the host, without a tensor in between
            return static

        made.upload = upload
    restart(made)
    return made


def fill(static: Tensor, given: Tensor) -> None:
    """Copy an input into the tensor that a graph reads.

    Raises:
        FixFailed: it has another shape or dtype, which a graph cannot take.
    """
    if static is given:
        return
    if static.shape != given.shape or static.dtype != given.dtype:
        raise FixFailed(
            f"an input of shape {tuple(given.shape)}, {given.dtype} for a graph captured with "
            f"{tuple(static.shape)}, {static.dtype}",
            "a graph has one shape: use a bucket for each (hostgap.fixes.buckets)",
        )
    static.copy_(given)
