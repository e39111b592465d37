"""async-input: the next step's inputs go to the GPU while this step runs.

## What it does
After a step is ordered, the host asks `feed` for the next step's inputs, copies them into pinned
memory and has a side stream upload them into a ring on the device, while the GPU still runs. The
body reads its slot by a counter on the device, so that this is captured and compiled with it, and
has no inputs left to copy.

## When it applies
Each step begins with a blocking upload (HG104, HG109, HG503, HG601, HG602).

## What it costs
Two slots of pinned memory (`pinned_mib`, at most 256 MiB for all fixes of a workload) and of device
memory, a copy on the device per input.

## Can go wrong
A `feed` that depends on what the last step delivered: it is asked before that. The proof of
equality catches it. Inputs whose shape changes do not fit the ring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hostgap.errors import FixFailed
from hostgap.fixes.fix import Fix, Stage
from hostgap.fixes.streams import SLOTS, Event, host_ring, side_stream, within
from hostgap.fixes.warm import restart
from hostgap.profiling.workload import Workload


class AsyncInput(Fix):
    """The next step's inputs go to the GPU while this step runs."""

    name = "async-input"
    title = "Upload the next step's inputs beside this step, through pinned memory"
    codes = ("HG104", "HG109", "HG503", "HG601", "HG602")
    stage = Stage.INPUT
    rank = 42

    def apply(self, workload: Workload) -> Workload:
        """The workload with its inputs uploaded one step ahead.

        Raises:
            FixFailed: there is no feed, something else uploads already, or the inputs do not fit
                into the budget of pinned memory.
        """
        if workload.feed is None:
            raise FixFailed(f"{self.name}: the step takes no inputs from the host")
        if workload.upload is not None:
            raise FixFailed(f"{self.name}: the step has an upload of its own")
        restart(workload)
        first = workload.feed()
        if not first:
            raise FixFailed(f"{self.name}: the step takes no inputs from the host")
        reader = _Reader(workload.body, first, workload.device)
        supply = _Supply(workload, reader, host_ring(first, workload, self.name), first)
        after, reset = workload.after, workload.reset

        def ordered(output: Any) -> None:
            supply.prefetch()
            if after is not None:
                after(output)

        def reset_all(case: int) -> None:
            assert reset is not None
            reset(case)
            supply.restart()

        made = replace(workload, body=reader, upload=supply.upload, after=ordered)
        if reset is not None:
            made.reset = reset_all
        restart(made)
        return made


class _Reader(nn.Module):
    """A body without inputs, which reads them from the next slot of a ring on the device.

    The rings and the counter are buffers: what compiles or captures the body takes them for fixed
    addresses that may be written in place.
    """

    slot: Tensor

    def __init__(self, body: Callable[..., Any], like: tuple[Tensor, ...], device: str) -> None:
        super().__init__()
        self.body: Callable[..., Any]
        self.__dict__["body"] = body  # not as a submodule: the body's own modules stay its own
        self.register_buffer("slot", torch.zeros(1, dtype=torch.int64, device=device))
        self.count = len(like)
        for index, tensor in enumerate(like):
            shape = (SLOTS, *tensor.shape)
            ring = torch.zeros(shape, dtype=tensor.dtype, device=device)
            self.register_buffer(f"ring{index}", ring)

    def ring(self, index: int) -> Tensor:
        """The slots of one of the inputs, [SLOTS, ...]."""
        ring: Tensor = getattr(self, f"ring{index}")
        return ring

    def forward(self) -> Any:
        rings = [self.ring(index) for index in range(self.count)]
        output = self.body(*(ring.index_select(0, self.slot).squeeze(0) for ring in rings))
        self.slot.add_(1).remainder_(SLOTS)
        return output


class _Supply:
    """Asks `feed` a step ahead, and uploads what it gives beside the running step."""

    def __init__(
        self,
        workload: Workload,
        reader: _Reader,
        pinned: list[list[Tensor]],
        first: tuple[Tensor, ...],
    ) -> None:
        assert workload.feed is not None
        self._feed, self._reader, self._pinned = workload.feed, reader, pinned
        self._stream = side_stream(workload)
        self._uploaded = [Event(self._stream) for _ in range(SLOTS)]
        self._read = [Event(self._stream) for _ in range(SLOTS)]
        self._steps = self._staged = 0
        self._ended = False
        for event in self._read:
            event.record()  # behind the ring's own initialisation
        self._stage(first)

    def upload(self) -> tuple[Tensor, ...]:
        """Have the main stream wait for this step's inputs; the body finds them itself.

        Raises:
            StopIteration: `feed` had nothing for this step.
        """
        if self._staged <= self._steps:
            if self._ended:
                raise StopIteration
            self._stage(self._feed())
        self._uploaded[self._steps % SLOTS].order()
        return ()

    def prefetch(self) -> None:
        """This step is ordered: fetch the inputs of the next."""
        self._read[self._steps % SLOTS].record()
        self._steps += 1
        if self._staged > self._steps:
            return
        try:
            given = self._feed()
        except StopIteration:  # is the end only if there is a next step
            self._ended = True
            return
        self._stage(given)

    def restart(self) -> None:
        """Forget what was fetched ahead, and begin with the first slot again."""
        self._steps = self._staged = 0
        self._ended = False
        self._reader.slot.zero_()
        for event in self._read:
            event.record()

    def _stage(self, given: tuple[Tensor, ...]) -> None:
        slot = self._staged % SLOTS
        self._uploaded[slot].wait()  # the pinned slot was last read by that upload
        for index, (host, tensor) in enumerate(zip(self._pinned[slot], given, strict=True)):
            if host.shape != tensor.shape or host.dtype != tensor.dtype:
                raise FixFailed(
                    f"async-input: input {index} is of shape {tuple(tensor.shape)} now, "
                    f"of {tuple(host.shape)} before"
                )
            host.copy_(tensor)
        with within(self._stream):
            self._read[slot].order()
            for index, host in enumerate(self._pinned[slot]):
                self._reader.ring(index)[slot].copy_(host, non_blocking=True)
            self._uploaded[slot].record()
        self._staged += 1
