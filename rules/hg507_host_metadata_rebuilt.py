"""HG507 host-metadata-rebuilt: many tiny CPU tensor ops in every step.

## What it sees
At least 20 framework ops a step at one place that touch only the CPU: no CUDA call lies under
them, they are short, stand alone (outside any other op), and compute something: views,
allocations and conversions that change nothing do not count.

## Why it costs
An op on a CPU tensor of eight numbers takes microseconds, of which the arithmetic is a few
nanoseconds. Lengths, offsets and positions rebuilt so in every step hold up the launches.

## Example
    for request in requests:                        # CPU tensors of one element each
        offsets[i + 1] = offsets[i] + request.length
        positions[i] = request.length - 1

## Use instead
    lengths = [request.length for request in requests]      # plain ints
    offsets = list(itertools.accumulate(lengths, initial=0))
    buffer[: len(offsets)] = torch.tensor(offsets)          # once, into a pinned buffer

Plain ints or one numpy array, one tensor at the end; or keep the metadata on the GPU and update
it there.

## Options
- `min-ops` (20): such ops a step at one place.
- `max-op-us` (50): an op that takes longer is work, not metadata.

## Sources
vLLM and SGLang keep request state in numpy arrays and persistent buffers for this reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.analysis.host import CALL, HostThread
from hostgap.analysis.intervals import union
from hostgap.analysis.sites import frame_precision, site_of_frame, site_of_op
from hostgap.diagnosis import rule as base
from hostgap.diagnosis.context import Context
from hostgap.diagnosis.idle import launching_threads
from hostgap.diagnosis.rule import Match, Need, Rule
from hostgap.trace.model import Bool

# Ops without arithmetic, which GPU tensors go through too: views, allocations, no-ops.
_NO_WORK = re.compile(
    r"^aten::(?:_?reshape\w*|_?unsafe_view|view\w*|t|transpose_?|permute|movedim|numpy_T|swapaxes|"
    r"(?:un)?squeeze_?|expand\w*|slice|select|narrow|split\w*|_?unsafe_split\w*|chunk|tensor_split|"
    r"unbind|as_strided_?|flatten|unflatten|unfold|diagonal|detach_?|alias|lift\w*|to|type_as|"
    r"contiguous|empty\w*|new_empty\w*|resize\w*|set_|resolve_\w+|real|imag|result_type|size|"
    r"stride|is_\w+|\w*dropout_?|requires_grad_|record_stream|pin_memory|_has_\w+|output_nr|"
    r"broadcast_\w+|adjoint|m[TH]|identity|numel)$"
)


class Options(base.Options, frozen=True):
    """Thresholds of HG507."""

    min_ops: float = 20
    max_op_us: float = 50


class HostMetadataRebuilt(Rule):
    """A storm of tiny CPU ops."""

    code = "HG507"
    name = "host-metadata-rebuilt"
    title = "Metadata is rebuilt with tiny CPU tensor ops in every step"
    advice = "Plain ints or one numpy array, and one tensor at the end."
    needs = (Need.API_CALLS, Need.OPS, Need.STEPS)
    options = Options

    def find(self, context: Context, options: Options) -> Iterator[Match]:
        """The places with that many CPU-only ops, on launching threads."""
        trace = context.trace
        works = [name.startswith("aten::") and not _NO_WORK.match(name) for name in trace.names]
        for code in launching_threads(context).tolist():
            thread = context.host[code]
            nested = thread.nested
            events = np.flatnonzero(_alone(context, thread))
            events = events[np.array(works)[trace.host_ops.name[thread.row[events]]]]
            length = nested.end[events] - nested.start[events]
            events = events[length <= options.max_op_us * 1e3]
            events = events[context.in_steps(nested.start[events])]
            # without frames around them, all have one place
            frame = thread.site[events]
            for key in np.unique(frame).tolist():
                at = events[frame == key]
                if len(at) < options.min_ops * context.steps:
                    continue
                names, count = np.unique(thread.op[at], return_counts=True)
                usual = trace.names[int(names[count.argmax()])]
                name = trace.names[key] if key >= 0 else ""
                yield Match(
                    edit=Edit(cut=union(nested.start[at], nested.end[at])),
                    site=site_of_frame(name, frame_precision(trace)) or site_of_op(usual),
                    count=len(at),
                    title=f"{self.title}: {len(at) / context.steps:,.0f}, mostly {usual}",
                )


def _alone(context: Context, thread: HostThread) -> Bool:
    """Per event: is it a framework op with no op around it and no CUDA call under it?"""
    is_op = thread.is_op
    calls, inside = thread.table == CALL, np.zeros(len(is_op), np.bool_)
    parent, levels = thread.nested.parent, thread.nested.levels
    for level in levels[1:]:
        above = parent[level]
        inside[level] = inside[above] | is_op[above]
    for level in levels[:0:-1]:
        calls[parent[level[calls[level]]]] = True
    alone: Bool = is_op & ~inside & ~calls
    return alone
