"""HG305 graph-input-copies: tensors are copied into a graph's inputs before each replay.

## What it sees
Copies on the device (DtoD, or a copy kernel such as those of `Tensor.copy_` and `_foreach_copy_`)
as the last launches before a graph launch. Uploads from the host are not meant: they have to be
made somewhere.

## Why it costs
Each copy is a launch that the graph was meant to save, 5 to 15 us of host time, and a short op on
the GPU in front of the graph. torch.compile in mode `reduce-overhead` copies each input that
moves in memory.

## Example
    for step in range(n):
        static_tokens.copy_(tokens)          # three launches before the one
        static_positions.copy_(positions)
        static_slots.copy_(slots)
        graph.replay()
        tokens = sample(static_logits)

## Use instead
    for step in range(n):
        graph.replay()                       # reads static_tokens, static_positions, static_slots
        sample(static_logits, out=static_tokens)

Let what makes the input write into the graph's buffer (`out=`, one packed buffer for all of
them), or capture it as well. With torch.compile: `torch._dynamo.mark_static_address`, and
parameters or buffers that are updated in place.

## Options
None.

## Sources
PyTorch's CUDA graph notes; `torch/_inductor/cudagraph_trees.py` (copies of inputs that are not
static), seen in public traces of compiled training steps."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import named
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import CopyKind

COPY_KERNEL = re.compile(r"copy_kernel|at::native::Copy<|copy_device_to_device")
RNG_STATE = re.compile(r"FillFunctor")  # a replay itself sets its generator's seed and offset so

COPY_OPS = ("aten::copy_", "aten::_foreach_copy_")


class GraphInputCopies(Rule):
    """Copies into a graph's inputs before each replay."""

    code = "HG305"
    name = "graph-input-copies"
    title = "Tensors are copied into a graph's inputs before each replay"
    advice = "Let what makes the input write into the graph's own buffer, or capture it as well."
    needs = (Need.API_CALLS, Need.STEPS)

    def find(self, context: Context, options: object) -> Iterator[Match]:
        """The copies right before a graph launch, by site."""
        gpu, made = context.trace.gpu_ops, context.launches
        if not made.graph.any():
            return
        ops = context.launched.op
        copies = (gpu.copy_kind[ops] == CopyKind.D2D) | named(context, COPY_KERNEL)[gpu.name[ops]]
        is_copy = np.isin(made.call, context.launched.call[copies]) & made.eager
        fills = named(context, RNG_STATE)[gpu.name[ops]]
        is_fill = np.isin(made.call, context.launched.call[fills])
        # the next graph launch, and the next launch that is no copy, upload or part of a replay
        index = np.arange(len(made))
        other = made.eager & ~is_copy & ~is_fill
        until = np.where(made.graph, index, len(made))
        next_graph = np.minimum.accumulate(until[::-1])[::-1]
        until = np.where(other, index, len(made))
        next_other = np.minimum.accumulate(until[::-1])[::-1]
        found = is_copy & (next_graph < next_other)
        found[found] = made.step[found] == made.step[next_graph[found]]
        copied = made.call[found]
        chains = context.op_names(copied)  # without ops in the trace, names must do
        by_copy = [not ops or ops[-1] in COPY_OPS for ops in chains]
        for site, calls in context.by_site(copied[np.array(by_copy, np.bool_)]):
            each = len(calls) / context.steps
            title = f"{each:,.3g} copies a step into the inputs of CUDA graphs, before their replay"
            yield Match(calls=calls, edit=context.without(calls), site=site, title=title)
