"""cuda-graph-regions: a CUDA graph for each layer, where the whole step cannot be captured.

## What it does
Captures the layers of the longest `ModuleList` of the workload's modules, one after the other,
during a step, and replays them in place of their `forward` from then on. Everything between the
layers runs as before. A layer that gets the output of the layer before reads it in place.

## When it applies
As cuda-graph, where something in the step, such as a read from the GPU, forbids capturing it whole.

## What it costs
A launch per layer, the launches between them, capture time and memory. The forwards are put in
place when the body begins and taken out when it ends, so that the modules stay as they were.

## Can go wrong
Layers that keep Python state, or that read from the GPU themselves. A layer called with other
shapes or other objects than at capture runs as before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hostgap.errors import FixFailed
from hostgap.fixes.capture import MIB, WARM_UP_STEPS, capture, need_gpu
from hostgap.fixes.fix import Fix, Stage
from hostgap.fixes.warm import restart, warm_up
from hostgap.profiling.workload import Workload


class CudaGraphRegions(Fix):
    """A CUDA graph for each layer."""

    name = "cuda-graph-regions"
    title = "Capture every layer as a CUDA graph of its own"
    codes = ("HG201", "HG301", "HG202", "HG206", "HG207", "HG504", "HG505")
    stage = Stage.EXECUTION
    execution = 1
    captures = True
    pure = True
    rank = 20

    def apply(self, workload: Workload) -> Workload:
        """The body with its layers captured.

        Raises:
            FixFailed: no layers are known, they do not run, or one cannot be captured.
        """
        need_gpu(workload, self.name)
        layers = longest_list(workload.modules)
        if not layers:
            raise FixFailed(
                f"{self.name}: no ModuleList in the workload's modules",
                "give Workload(modules=[model])",
            )
        device = torch.device(workload.device)
        stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            warm_up(workload, WARM_UP_STEPS)
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
        begun = time.perf_counter()
        pool = torch.cuda.graph_pool_handle()
        standing: set[int] = set()
        regions = [Region(layer, self.name, stream, pool, standing) for layer in layers]
        capturing = replace(workload, body=Swapped(workload.body, regions))
        warm_up(capturing, 2)  # captures each layer where its second call comes
        if not any(region.graph for region in regions):
            raise FixFailed(f"{self.name}: none of the {len(layers)} layers ran through forward")
        torch.cuda.synchronize(device)
        costs = workload.costs
        costs["capture_ms"] = costs.get("capture_ms", 0.0) + (time.perf_counter() - begun) * 1e3
        kept = max(0, torch.cuda.memory_reserved(device) - before) / MIB
        costs["graph_mib"] = costs.get("graph_mib", 0.0) + kept
        costs["graphs"] = float(sum(region.graph is not None for region in regions))
        restart(capturing)
        return capturing


def longest_list(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """The layers: what the longest ModuleList inside holds; of several, the outermost first.

    One whose modules have no `forward` of their own, such as a list of caches, is none.
    """
    lists = [
        list(module)
        for root in modules
        for module in root.modules()
        if isinstance(module, nn.ModuleList)
        and all(type(child).forward is not nn.Module.forward for child in module)
    ]
    return max(lists, key=len, default=[])


class Swapped:
    """A body during whose run some modules have another `forward`."""

    def __init__(self, body: Callable[..., Any], regions: list[Region]) -> None:
        self.body, self.regions = body, regions

    def __call__(self, *inputs: Tensor) -> Any:
        """Run the body, with the regions in place."""
        kept = [region.module.__dict__.get("forward") for region in self.regions]
        try:
            for region in self.regions:
                region.module.__dict__["forward"] = region
            return self.body(*inputs)
        finally:
            for region, forward in zip(self.regions, kept, strict=True):
                if forward is None:
                    del region.module.__dict__["forward"]
                else:
                    region.module.__dict__["forward"] = forward


@dataclass(slots=True)
class Region:
    """A module's `forward`: runs once as it is, is captured at the second call, and replayed at
    later ones that are alike.

    Attributes:
        module: whose `forward` it stands for.
        fix: the name, for errors.
        stream, pool: to capture on, and of all regions' memory: they always run in this order.
        standing: addresses of all regions' outputs, which are the same each step.
    """

    module: nn.Module
    fix: str
    stream: torch.cuda.Stream
    pool: Any
    standing: set[int]
    forward: Callable[..., Any] = field(init=False)
    first: list[Any] | None = None
    graph: torch.cuda.CUDAGraph | None = None
    static: tuple[Any, ...] = ()
    lasting: tuple[bool, ...] = ()  # per leaf: read, and written, where it lies
    tree: Any = None
    output: Any = None

    def __post_init__(self) -> None:
        self.forward = self.module.forward  # as it is before any swap

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """In place of the module's `forward`."""
        given, tree = pytree.tree_flatten((args, kwargs))
        if self.first is None:
            self.first = given  # held until the second call, so that no other gets its memory
            return self.forward(*args, **kwargs)
        if self.graph is None:
            self._capture(given, tree)
        elif not self._alike(given, tree):
            return self.forward(*args, **kwargs)
        for mine, new in zip(self.static, given, strict=True):
            if isinstance(mine, Tensor) and mine.data_ptr() != new.data_ptr():
                mine.copy_(new)
        assert self.graph is not None
        self.graph.replay()
        return self.output

    def _capture(self, given: list[Any], tree: Any) -> None:
        """Record the call. What stands at the same place each step is read where it lies: outputs
        of other regions, and what was there at the first call, such as a cache that is written."""
        assert self.first is not None
        if len(self.first) != len(given):
            raise FixFailed(f"{self.fix}: a layer is called differently each time")
        self.lasting = tuple(
            isinstance(leaf, Tensor)
            and (
                leaf.data_ptr() in self.standing
                or (isinstance(old, Tensor) and old.data_ptr() == leaf.data_ptr())
            )
            for old, leaf in zip(self.first, given, strict=True)
        )
        self.static = tuple(
            leaf.detach().clone() if isinstance(leaf, Tensor) and not lasts else leaf
            for leaf, lasts in zip(given, self.lasting, strict=True)
        )
        self.first = []
        self.tree = tree
        args, kwargs = pytree.tree_unflatten(list(self.static), tree)
        captured = capture(
            lambda: self.forward(*args, **kwargs), self.fix, stream=self.stream, pool=self.pool
        )
        self.graph, self.output = captured.graph, captured.output
        leaves = pytree.tree_leaves(self.output)
        self.standing.update(leaf.data_ptr() for leaf in leaves if isinstance(leaf, Tensor))

    def _alike(self, given: list[Any], tree: Any) -> bool:
        """Whether the graph can stand for this call."""
        if tree != self.tree:
            return False
        for mine, new, lasts in zip(self.static, given, self.lasting, strict=True):
            if isinstance(mine, Tensor) and isinstance(new, Tensor):
                if mine.shape != new.shape or mine.dtype != new.dtype:
                    return False
                if lasts and mine.data_ptr() != new.data_ptr():
                    return False  # another tensor, which must not be copied over this one
            elif mine is not new and mine != new:
                return False
        return True
