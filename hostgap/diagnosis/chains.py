"""Sequences of GPU ops in launch order, as rules about chains of kernels read them.

Each op is a letter, so that a pattern such as "GEMM, scale, softmax, GEMM" is a regular expression.
Ops inside CUDA graphs have a letter of their own that no pattern names: fewer launches save nothing
there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hostgap.analysis.causes import frame_parts
from hostgap.analysis.edit import Edit
from hostgap.analysis.host import FRAME, OP, HostThread
from hostgap.analysis.intervals import Intervals, union
from hostgap.analysis.sites import call_sites
from hostgap.diagnosis.model import Site
from hostgap.trace.columns import distinct, distinct_codes
from hostgap.trace.kernels import KernelClass, kernel_class
from hostgap.trace.model import Bool, CopyKind, GpuKind, Int32, Int64, Role

if TYPE_CHECKING:
    from hostgap.diagnosis.context import Context

# Letters: G a GEMM of a linear layer (any, where the trace has no ops), B another GEMM (batched,
# attention's), K the end of a split GEMM, A fused attention, S softmax, R reduction or norm,
# P pointwise, C copy on the device, M memset, T made by Inductor, g in a CUDA graph, o all else.
_LETTER = {
    KernelClass.GEMM: "G",
    KernelClass.ATTENTION: "A",
    KernelClass.SOFTMAX: "S",
    KernelClass.REDUCTION: "R",
    KernelClass.POINTWISE: "P",
    KernelClass.OTHER: "o",
}
_SPLIT_END = re.compile(r"split_?k_?reduce|reduce_?split_?k", re.I)
_WHOLE_DEVICE = re.compile(r"\bcub::|DeviceScan|DeviceReduce")  # scans, sorts: no part of a chain
_LINEAR = ("aten::linear", "aten::addmm", "aten::_addmm_activation")
_LEAF = re.compile(r"nn\.Module: \w*(?:Linear|Dense|Conv|Proj)\w*$")
# GEMM, at most a dozen ops that scale and mask, softmax, a cast or dropout, GEMM
_ATTENTION = re.compile(r"([BG])K?[PCRo]{0,12}S[PC]{0,4}M?\1K?")
_ALL = slice(None)
LONG = 24  # letters of an op's name in a title
_BEFORE_SOFTMAX = 3  # of them at most: scale, mask, cast; what else stands there makes the mask


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention written out, as positions in a `Sequence`.

    Attributes:
        gemms: its two GEMMs.
        inner: what stands between and would be gone: scale, mask, casts, softmax, dropout.
    """

    gemms: tuple[int, int]
    inner: NDArray[np.intp]


class KernelSequence:
    """The launched GPU ops of a window in launch order; columns over n ops.

    Attributes:
        op: rows of gpu_ops.
        call: rows of api_calls.
        name: codes in Trace.names.
        step: the step each belongs to.
        letters: a letter each, see the head of this file.
        lane: a number per thread and stream; patterns do not cross from one to another.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        launched, gpu = context.launched, context.trace.gpu_ops
        api = context.trace.api_calls
        self.op, self.call, self.step = launched.op, launched.call, launched.step
        self.graph = launched.graph
        self.name = gpu.name[self.op]
        lane = api.thread[self.call].astype(np.int64) * (len(context.trace.streams) + 1)
        number = distinct(lane + gpu.stream[self.op])[1]
        self.lane = number.astype(np.min_scalar_type(int(number.max(initial=0))))
        self.letters = self._letters()

    def length(self, at: NDArray[np.intp] | list[int] | slice = _ALL) -> Int64:
        """How long ops at these positions take, ns; by default all."""
        gpu, op = self._context.trace.gpu_ops, self.op[at]
        return gpu.end[op] - gpu.start[op]

    def _letters(self) -> str:
        trace = self._context.trace
        letter = np.full(len(trace.names), b"o")
        for code in distinct_codes(self.name).tolist():
            letter[code] = _letter(trace.names[code]).encode()
        letters = letter[self.name]
        gpu = trace.gpu_ops
        kind = gpu.kind[self.op]
        letters[(kind != GpuKind.KERNEL) & (kind != GpuKind.GRAPH)] = b"o"
        letters[gpu.copy_kind[self.op] == CopyKind.D2D] = b"C"
        letters[kind == GpuKind.MEMSET] = b"M"
        gemm = np.flatnonzero(letters == b"G")
        if len(gemm) and len(self.inner_op):
            with_op = self.inner_op[gemm] >= 0
            letters[gemm[with_op & ~self.inside(gemm, *_LINEAR)]] = b"B"
        letters[self.graph] = b"g"
        return letters.tobytes().decode("ascii")

    # --- what is around each op ---------------------------------------------------------------

    def _innermost(
        self, picks: Callable[[HostThread], Bool], at: NDArray[np.intp] | slice = _ALL
    ) -> Int32:
        """Per op at these positions: the innermost picked event around its call, -1 for none."""
        call = self.call[at]  # those of one call stand together
        first = np.flatnonzero(changes(call))
        found = self._around(call[first], picks)
        return np.repeat(found, np.diff(first, append=len(call)))

    def _around(self, call: Int32, picks: Callable[[HostThread], Bool]) -> Int32:
        """Per call: the innermost picked event around it, -1 for none."""
        found = np.full(len(call), -1, np.int32)
        threads = self._context.trace.api_calls.thread[call]
        for code in distinct_codes(threads).tolist():
            mine = np.flatnonzero(threads == code)
            thread = self._context.host[code]
            picked = picks(thread)
            event = thread.events_of(call[mine])
            alive = np.flatnonzero(event >= 0)
            while len(alive):
                here = event[alive]
                hit = picked[here]
                found[mine[alive[hit]]] = here[hit]
                alive = alive[~hit]
                event[alive] = thread.nested.parent[event[alive]]
                alive = alive[event[alive] >= 0]
        return found

    def _named(self, thread: HostThread, table: int, wanted: Bool) -> Bool:
        """Events of a table (OP or FRAME) whose name's code is wanted."""
        trace = self._context.trace
        names = trace.host_ops.name if table == OP else trace.frames.name
        mask = thread.is_op.copy() if table == OP else thread.table == FRAME
        mask[mask] = wanted[names[thread.row[mask]]]
        return mask

    @cached_property
    def inner_op(self) -> NDArray[np.int32]:
        """Per op: name code of the innermost framework op around its call, -1 without one."""
        event = self._innermost(lambda thread: thread.is_op)
        found = np.full(len(event), -1, np.int32)
        thread = self._context.trace.api_calls.thread[self.call]
        names = self._context.trace.host_ops.name
        for code in distinct_codes(thread[event >= 0]).tolist():
            mine = np.flatnonzero((thread == code) & (event >= 0))
            found[mine] = names[self._context.host[code].row[event[mine]]]
        return found

    def inside(self, at: NDArray[np.intp], *ops: str) -> Bool:
        """Which ops at these positions are launched inside one of these framework ops."""
        wanted = np.array([name in ops for name in self._context.trace.names], np.bool_)
        return self._innermost(lambda thread: self._named(thread, OP, wanted), at) >= 0

    def op_name(self, at: int) -> str:
        """The innermost framework op around one op, without its namespace; "" without one."""
        code = int(self.inner_op[at])
        return self._context.trace.names[code].rpartition("::")[2] if code >= 0 else ""

    def does(self, at: int, pattern: re.Pattern[str]) -> bool:
        """Whether a pattern is in the name of the kernel, or of the framework op around it."""
        name = self._context.trace.names[self.name[at]]
        return bool(pattern.search(self.op_name(at)) or pattern.search(name))

    @property
    def stacks_of_calls(self) -> bool:
        """Whether frames are those of stacks of CUDA calls, and a function's runs look alike."""
        return self._context.trace.source == "nsys"

    @cached_property
    def region(self) -> Int32:
        """Per op: a number of the call of the user's function around it, -1 without stacks.

        In a Kineto trace that is one run of the function; a stack of an Nsight export says only
        which function it was.
        """
        trace, host = self._context.trace, self._context.host
        if len(trace.frames) == 0:
            return np.full(len(self.op), -1, np.int32)
        site = host.call_sites(self.call)
        if self.stacks_of_calls:
            known: dict[object, int] = {}
            number = np.full(len(trace.names) + 1, -1, np.int32)
            for code in distinct_codes(site[site >= 0]).tolist():
                parts = frame_parts(trace.names[code])
                key = (parts[0], parts[2]) if parts else code
                number[code] = known.setdefault(key, len(known))
            return number[site]
        users = np.zeros(len(trace.names), np.bool_)
        users[site[site >= 0]] = True
        return self._innermost(lambda thread: self._named(thread, FRAME, users))

    @cached_property
    def module(self) -> Int32:
        """Per op: a number of the run of the nn.Module around it that is no single layer (not a
        Linear: the module that holds it); where there are no modules, as `region`."""
        names = self._context.trace.names
        wanted = np.array(
            [name.startswith("nn.Module: ") and not _LEAF.match(name) for name in names], np.bool_
        )
        if not wanted.any():
            return self.region
        event = self._innermost(lambda thread: self._named(thread, FRAME, wanted))
        return np.where(event >= 0, event, self.region)

    # --- patterns -----------------------------------------------------------------------------

    def among(self, letters: str) -> Bool:
        """Which ops have one of these letters."""
        code = np.frombuffer(self.letters.encode(), np.uint8)
        return np.isin(code, np.frombuffer(letters.encode(), np.uint8))

    def together(self, low: int, high: int, *, in_module: bool = False) -> bool:
        """Whether ops low to high (exclusive) share thread, stream, step, and a module."""
        begins = self._begins_in_module if in_module else self._begins
        first, last = np.searchsorted(begins, (low, high - 1), "right").tolist()
        return bool(first == last)

    @cached_property
    def _begins(self) -> NDArray[np.intp]:
        """The ops that differ from the one before in thread, stream or step."""
        return np.flatnonzero(changes(self.lane, self.step))

    @cached_property
    def _begins_in_module(self) -> NDArray[np.intp]:
        """The ops that differ from the one before in thread, stream, step or module."""
        return np.flatnonzero(changes(self.lane, self.step, self.module))

    @cached_property
    def attentions(self) -> list[Attention]:
        """Attention that is written out: GEMM, scale and mask, softmax, GEMM in one module."""
        found = []
        at = 0
        while match := _ATTENTION.search(self.letters, at):
            low, high = match.span()
            softmax = low + match[0].index("S")
            second = low + match[0].rindex(match[1])
            at = high
            # a linear layer, softmax, a linear layer: a classifier or a router, not attention
            linear = match[1] == "G" and self.inner_op[low] >= 0
            if linear or not self.together(low, high, in_module=True):
                at = low + 1
                continue
            first = low + 1
            if self.letters[first] == "K":
                first += 1
            before = _neighbours(first, softmax)
            inner = np.concatenate((before, np.arange(softmax, second)))
            found.append(Attention((low, second), inner))
        return found

    @cached_property
    def in_attention(self) -> Bool:
        """Per op: is it part of attention that is written out?"""
        mask = np.zeros(len(self.op), np.bool_)
        for attention in self.attentions:
            mask[attention.inner] = True
            mask[list(attention.gemms)] = True
        return mask

    def runs(self, member: Bool, group: Int32, least: int) -> NDArray[np.intp]:
        """Runs of at least so many members side by side, in one thread, stream, step and group.

        Returns:
            A row [low, high) each.
        """
        n = len(self.op)
        if n == 0:
            return np.zeros((0, 2), np.intp)
        low = np.flatnonzero(changes(self.lane, self.step, group, member))
        high = np.append(low[1:], n)
        keep = member[low] & (high - low >= least)
        return np.stack((low[keep], high[keep]), axis=1)

    # --- what a match needs -------------------------------------------------------------------

    def grouped(self, runs: NDArray[np.intp]) -> list[tuple[Site | None, NDArray[np.intp]]]:
        """Runs put together by place and kernel names: each group is one fault, the most ops
        first. The place is that of a run's first call."""
        places = call_sites(self._context.host, self.call[runs[:, 0]].astype(np.int32))
        groups: dict[tuple[Site | None, bytes], list[int]] = {}
        bounds = zip(places, runs.tolist(), strict=True)
        for i, (site, (low, high)) in enumerate(bounds):
            groups.setdefault((site, self.name[low:high].tobytes()), []).append(i)
        found = [(site, runs[rows]) for (site, _), rows in groups.items()]
        found.sort(key=lambda entry: -int((entry[1][:, 1] - entry[1][:, 0]).sum()))
        return found

    def edit(self, drop: NDArray[np.intp], length: dict[int, int] | None = None) -> Edit:
        """The world without some ops: their GPU time, and the host time of launching them.

        Only those in the steps that are replayed: others would change nothing.

        Args:
            drop: positions of the ops.
            length: position -> new length in ns, of ops that remain.
        """
        if self._context.replay is not None:
            steps = self._context.replay.steps
            replayed = (self.step >= steps.start) & (self.step < steps.stop)
            drop = drop[replayed[drop]]
            length = {at: ns for at, ns in (length or {}).items() if replayed[at]}
        kept = np.ones(len(self.op), np.bool_)
        kept[drop] = False
        gone = np.zeros(len(self._context.trace.api_calls), np.bool_)
        gone[self.call[drop]] = True
        gone[self.call[kept]] = False  # a call that also launches what remains, remains
        calls = np.flatnonzero(gone).astype(np.int64)
        at = list(length or {})
        before = dict(zip(at, self.length(at).tolist(), strict=True)) if at else {}
        changed = {int(self.op[at]): ns for at, ns in (length or {}).items() if ns != before[at]}
        return Edit(cut=self.own_spans(calls), drop=np.sort(self.op[drop]), length=changed)

    def own_spans(self, calls: Int64) -> Intervals:
        """Host time (GPU clock) of API calls with the framework ops around them that launch
        nothing else; `op_spans` would take the outermost op, whatever else is launched in it."""
        context = self._context
        api = context.trace.api_calls
        start, end = context.call_start[calls].copy(), context.call_end[calls].copy()
        launches = np.isin(api.role, (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY))
        launches[calls] = False
        threads = api.thread[calls]
        for code in distinct_codes(threads).tolist():
            mine = np.flatnonzero(threads == code)
            thread = context.host[code]
            others = context.call_start[launches & (api.thread == code)]  # in order already
            event = thread.events_of(calls[mine])
            alive = np.flatnonzero(event >= 0)
            is_op = thread.is_op
            while len(alive):
                here = event[alive]
                low, high = thread.nested.start[here], thread.nested.end[here]
                alone = np.searchsorted(others, low) == np.searchsorted(others, high)
                takes = is_op[here] & alone
                start[mine[alive[takes]]] = low[takes]
                end[mine[alive[takes]]] = high[takes]
                alive = alive[alone]
                event[alive] = thread.nested.parent[event[alive]]
                alive = alive[event[alive] >= 0]
        return union(start, end)

    def told(self, low: int, high: int, most: int = 5) -> str:
        """The framework ops of a run in words, "" without ops: `to, pow, mean, add, rsqrt, ...`."""
        names = [self.op_name(at) for at in range(low, min(high, low + most + 1))]
        if not all(names):
            return ""
        names = [name if len(name) <= LONG else name[: LONG - 3] + "..." for name in names]
        return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def changes(first: NDArray[Any], *others: NDArray[Any]) -> Bool:
    """Per row: does it differ from the one before in any of these columns? The first row does."""
    new = np.ones(len(first), np.bool_)
    new[1:] = first[1:] != first[:-1]
    for column in others:
        new[1:] |= column[1:] != column[:-1]
    return new


def _neighbours(first: int, softmax: int) -> NDArray[np.intp]:
    """Of the ops between GEMM and softmax: the scale, the mask's add and a cast, at most."""
    every = np.arange(first, softmax)
    if len(every) <= _BEFORE_SOFTMAX:
        return every
    return np.concatenate((every[:1], every[1 - _BEFORE_SOFTMAX :]))


def _letter(name: str) -> str:
    if re.match(r"triton_(?:poi|red|per|for)_", name):
        return "T"
    kind = kernel_class(name)
    if _SPLIT_END.search(name):
        return "K"
    if _WHOLE_DEVICE.search(name):
        return "o"
    if kind is KernelClass.OTHER and "dropout" in name:
        return "P"
    return _LETTER[kind]
