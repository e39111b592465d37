"""async-output: the output comes to the host while the next step runs.

## What it does
The body writes its output into a ring of slots on the device, counted on the device, so that this
is captured and compiled with it. A side stream copies the slot into pinned memory behind an event,
and the host hands it to `deliver` one step late, in order; `flush` delivers the rest. A slot is
used again only after the host has seen its copy done.

## When it applies
Each step ends in a blocking download (HG102, HG109, HG601, HG602, HG604).

## What it costs
A copy on the device per output, two slots of pinned memory (`pinned_mib`, at most 256 MiB for all
fixes of a workload), and one step of delay. One step is run to learn the output's shape.

## Can go wrong
A host that needs the output of a step before it can begin the next, such as one that stops at an
end token, runs one step too many. Outputs whose shape changes do not fit the ring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hostgap.errors import FixFailed
from hostgap.fixes.fix import Fix, Stage
from hostgap.fixes.streams import SLOTS, Event, host_ring, side_stream, within
from hostgap.fixes.warm import restart, warm_up
from hostgap.profiling.workload import Workload, tensors


class AsyncOutput(Fix):
    """The output comes to the host while the next step runs."""

    name = "async-output"
    title = "Download the output beside the next step, through pinned memory"
    codes = ("HG102", "HG109", "HG601", "HG602", "HG604")
    stage = Stage.OUTPUT
    rank = 41

    def apply(self, workload: Workload) -> Workload:
        """The workload with its outputs delivered one step late.

        Raises:
            FixFailed: nothing is delivered, something else delivers already, or the outputs do not
                fit into the budget of pinned memory.
        """
        if workload.deliver is None:
            raise FixFailed(f"{self.name}: the step delivers nothing to the host")
        if workload.download is not None:
            raise FixFailed(f"{self.name}: the step has a download of its own")
        spy = _Spy(workload.body)
        warm_up(replace(workload, body=spy), 1)
        if not spy.outputs:
            raise FixFailed(f"{self.name}: the body has no output")
        writer = _Writer(workload.body, spy.outputs)
        delivery = _Delivery(workload, writer, host_ring(spy.outputs, workload, self.name))
        flush, reset = workload.flush, workload.reset

        def flush_all() -> None:
            if flush is not None:
                flush()
            delivery.flush()

        def reset_all(case: int) -> None:
            flush_all()
            assert reset is not None
            reset(case)
            delivery.restart()

        made = replace(workload, body=writer, download=delivery.download, flush=flush_all)
        if reset is not None:
            made.reset = reset_all
        restart(made)
        return made


class _Spy:
    """A body that remembers of what shapes its output is."""

    def __init__(self, body: Callable[..., Any]) -> None:
        self.body = body
        self.outputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> Any:
        output = self.body(*inputs)
        self.outputs = tensors(output)
        return output


class _Writer(nn.Module):
    """A body that also writes its output into the next slot of a ring.

    The rings and the counter are buffers: what compiles or captures the body takes them for fixed
    addresses that may be written in place.
    """

    slot: Tensor

    def __init__(self, body: Callable[..., Any], like: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.body: Callable[..., Any]
        self.__dict__["body"] = body  # not as a submodule: the body's own modules stay its own
        self.register_buffer("slot", torch.zeros(1, dtype=torch.int64, device=like[0].device))
        self.count = len(like)
        for index, tensor in enumerate(like):
            self.register_buffer(f"ring{index}", tensor.new_zeros((SLOTS, *tensor.shape)))

    def ring(self, index: int) -> Tensor:
        """The slots of one of the outputs, [SLOTS, ...]."""
        ring: Tensor = getattr(self, f"ring{index}")
        return ring

    def forward(self, *inputs: Tensor) -> Any:
        output = self.body(*inputs)
        written = tensors(output)
        for index in range(self.count):
            self.ring(index).index_copy_(0, self.slot, written[index].detach().unsqueeze(0))
        self.slot.add_(1).remainder_(SLOTS)
        return output


class _Delivery:
    """Brings slots to the host, and to `deliver` a step late."""

    def __init__(self, workload: Workload, writer: _Writer, pinned: list[list[Tensor]]) -> None:
        assert workload.deliver is not None
        self._deliver, self._writer, self._pinned = workload.deliver, writer, pinned
        self._stream = side_stream(workload)
        self._written = Event(self._stream)
        self._arrived = [Event(self._stream) for _ in range(SLOTS)]
        self._steps = self._delivered = 0

    def download(self, _output: Any) -> None:
        """Order this step's copy, then deliver the step before, whose copy is done by now."""
        slot = self._steps % SLOTS
        self._written.record()
        with within(self._stream):
            self._written.order()
            for index, host in enumerate(self._pinned[slot]):
                host.copy_(self._writer.ring(index)[slot], non_blocking=True)
            self._arrived[slot].record()
        self._steps += 1
        self._deliver_until(self._steps - 1)

    def flush(self) -> None:
        """Deliver what is still on its way."""
        self._deliver_until(self._steps)

    def restart(self) -> None:
        """Begin with the first slot again; nothing may be on its way."""
        self._steps = self._delivered = 0
        self._writer.slot.zero_()

    def _deliver_until(self, steps: int) -> None:
        while self._delivered < steps:
            slot = self._delivered % SLOTS
            self._arrived[slot].wait()
            self._delivered += 1
            # clones: a slot is written again two steps later, whoever still holds it
            self._deliver(*(host.clone() for host in self._pinned[slot]))
