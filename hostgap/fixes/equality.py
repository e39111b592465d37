"""Whether a fixed step gives what the step gave before: outputs and deliveries, step by step.

Both run on their own first, as fast as they can, so that a race or a stale buffer shows, and are
compared afterwards. Integers (tokens) must agree bit for bit, floating-point outputs within a
tolerance, and what reached the host must be the same, in order.

Fusing kernels changes rounding, so a token may differ where the two best logits are as good as
equal. That is accepted only where the step's output holds the logits too, those agree within the
tolerance, and each token is the best of its own. The case is compared no further then: what follows
another token is another text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hostgap.errors import HostgapError
from hostgap.fixes.warm import restart
from hostgap.profiling.aside import asides
from hostgap.profiling.bench import Proof
from hostgap.profiling.target import told
from hostgap.profiling.workload import Workload, tensors

STEPS = 32  # of a case, where nothing else is said
# Of norms. bf16 has 8 bits: 0.4 % per operation, and over 16 to 36 layers the plain model itself is
# 1 to 3 % from what float32 gives; a wrong mask or position is off by as much as the output.
TOLERANCE = 0.05
OUTLIERS = 2  # times the tolerance, of the largest value: what a single element may be off by
LATEST = 16  # steps: fixes of a workload without `reset` may run so many to warm up
PART = 1 << 22  # elements that are compared at a time, in 8 bytes each
LEAST_SHARE = 0.25  # of the planned steps that must have been compared


class Tap:
    """Between a workload and its `deliver`: keeps what passes while `kept` is a list."""

    def __init__(self, deliver: Any) -> None:
        self._deliver = deliver
        self.kept: list[tuple[Tensor, ...]] | None = None

    def __call__(self, *delivered: Tensor) -> None:
        """Keep, if asked to, and pass on."""
        if self.kept is not None:
            self.kept.append(tuple(tensor.clone() for tensor in delivered))
        self._deliver(*delivered)


def tapped(workload: Workload) -> Workload:
    """The workload with a tap on its deliveries; to be done before any fix takes hold of them."""
    if workload.deliver is None or isinstance(workload.deliver, Tap):
        return workload
    return replace(workload, deliver=Tap(workload.deliver))


@dataclass(slots=True)
class Case:
    """One beginning, and what followed: outputs and deliveries from step `first` on.

    They are kept by the host, as they may be many. They came from `device`, which compares faster.
    """

    first: int
    outputs: list[tuple[Tensor, ...]] = field(default_factory=list)
    delivered: list[tuple[Tensor, ...]] | None = None
    device: str = "cpu"


def record(workload: Workload, steps: int = STEPS) -> list[Case]:
    """Run every case of a workload for some steps, without waiting between steps.

    Args:
        workload: from `hostgap.fixes.registry.apply_fixes`. With `reset`, every case begins anew.
            Without, it must be fresh: there is one case, which begins after the steps that fixes
            ran to warm up.
        steps: per case; at most the workload's room.

    Returns:
        A `Case` each, with host copies of everything. The workload stands at its beginning again.
    """
    steps = min(steps, workload.room) if workload.room is not None else steps
    tap = workload.deliver if isinstance(workload.deliver, Tap) else None
    cases = []
    for number in range(workload.cases if workload.reset is not None else 1):
        if workload.flush is not None:
            workload.flush()
        if workload.reset is not None:
            workload.reset(number)
        first = 0 if workload.reset is not None else int(workload.costs.get("warmup_steps", 0))
        case = Case(first, device=workload.device)
        if tap is not None:
            tap.kept = case.delivered = []
        try:
            for _ in range(steps):
                case.outputs.append(_copies(workload.step()))
            if workload.flush is not None:
                workload.flush()
        finally:
            if tap is not None:
                tap.kept = None
        case.outputs = [tuple(tensor.cpu() for tensor in output) for output in case.outputs]
        cases.append(case)
    restart(workload)
    return cases


def _copies(output: Any) -> tuple[Tensor, ...]:
    """The output's tensors, copied on the device: the next step may overwrite them."""
    found = (*tensors(output), *asides(output))
    return tuple(tensor.detach().clone() for tensor in found)


def reference_of(workload: Workload, steps: int = STEPS) -> list[Case]:
    """Record what variants are compared with. To be done before any of them is built: what they
    share with it, such as weights, they might change.

    Raises:
        TargetError: the step raises.
    """
    late = LATEST if workload.reset is None else 0
    with told("the step raised"):
        return record(workload, steps + late)


def prove(
    old: Sequence[Case],
    variant: Workload,
    *,
    steps: int = STEPS,
    tolerance: float = TOLERANCE,
) -> Proof:
    """Run a variant and compare it with a reference (`reference_of`).

    Where the variant raises, that is why it is not equal.
    """
    try:
        with told("it raised"):
            new = record(variant, steps)
    except HostgapError as error:
        why = f"{error.message} {error.hint or ''}".strip()
        return Proof(False, 0, 0, 0, 0, 0.0, tolerance, why)
    return compare(old, new, tolerance)


@dataclass(slots=True)
class _Tally:
    """What has been compared so far, on which device; `why` ends it."""

    tolerance: float
    device: str
    steps: int = 0
    planned: int = 0
    exact: int = 0
    compared: int = 0
    largest: float = 0.0
    why: str | None = None


def compare(reference: Sequence[Case], variant: Sequence[Case], tolerance: float) -> Proof:
    """Compare two recordings, case by case.

    Returns:
        The proof. `exact` of `compared` integers agreed; where it is equal and they are not the
        same number, the others were near ties, after each of which a case was compared no further.
    """
    tally = _Tally(tolerance, variant[0].device if variant else "cpu")
    if len(reference) != len(variant):
        tally.why = f"{len(variant)} cases instead of {len(reference)}"
    for number, (old, new) in enumerate(zip(reference, variant, strict=False)):
        if tally.why is None:
            _case(number, old, new, tally)
    if tally.why is None and tally.steps < max(1, LEAST_SHARE * tally.planned):
        tally.why = f"only {tally.steps} of {tally.planned} steps could be compared"
    return Proof(
        equal=tally.why is None,
        steps=tally.steps,
        cases=len(variant),
        exact=tally.exact,
        compared=tally.compared,
        largest_difference=tally.largest,
        tolerance=tolerance,
        why=tally.why,
    )


def _case(number: int, old: Case, new: Case, tally: _Tally) -> None:
    first = max(old.first, new.first)
    last = min(old.first + len(old.outputs), new.first + len(new.outputs))
    tally.planned += max(0, last - first)
    end = last
    if not any(old.outputs) and not any(old.delivered or ()):
        tally.why = "the step has no output that could be compared"
    for step in range(first, last):
        at = f"case {number}, step {step}"
        tie = _outputs(at, old.outputs[step - old.first], new.outputs[step - new.first], tally)
        if tally.why is not None:
            return
        tally.steps += 1
        if tie:
            end = step + 1
            break
    else:
        tie = False
    _deliveries(number, old, new, range(first, end), tally, ends_in_tie=tie)


def _outputs(at: str, old: tuple[Tensor, ...], new: tuple[Tensor, ...], tally: _Tally) -> bool:
    """Compare the outputs of one step; whether they differ by a near tie."""
    if len(old) != len(new):
        tally.why = f"{at}: {len(new)} tensors instead of {len(old)}"
        return False
    tie = False
    for index, (before, after) in enumerate(zip(old, new, strict=True)):
        name = f"{at}, output {index}" if len(old) > 1 else at
        if before.shape != after.shape or before.dtype != after.dtype:
            tally.why = (
                f"{name}: shape {tuple(after.shape)}, {after.dtype} instead of "
                f"{tuple(before.shape)}, {before.dtype}"
            )
        elif before.is_floating_point() or before.is_complex():
            _floats(name, before, after, tally)
        else:
            tie |= _integers(name, before, after, (old, new), tally)
        if tally.why is not None:
            return False
    return tie


def _floats(name: str, before: Tensor, after: Tensor, tally: _Tally) -> None:
    """Compare by the norm of the difference, and by its largest value."""
    wide = torch.complex128 if before.is_complex() else torch.float64
    norm, apart, largest, worst = 0.0, 0.0, 0.0, 0.0
    parts = (torch.split(tensor.flatten(), PART) for tensor in (before, after))
    for pair in zip(*parts, strict=True):
        old, new = (part.to(tally.device, wide) for part in pair)
        if bool((old.isnan() | new.isnan()).any()):
            tally.why = f"{name}: not a number"
            return
        infinite = old.isinf() | new.isinf()
        if bool(infinite.any()):  # as in masked logits; they must stand at the same places
            if bool((old != new)[infinite].any()):
                tally.why = f"{name}: infinities at other places"
                return
            old, new = old[~infinite], new[~infinite]
        if not old.numel():
            continue
        size, error = old.abs(), (old - new).abs()
        norm = math.hypot(norm, float(size.norm()))
        apart = math.hypot(apart, float(error.norm()))
        largest, worst = max(largest, float(size.max())), max(worst, float(error.max()))
    difference = apart / (norm or 1.0)
    outlier = worst / (largest or 1.0)
    tally.largest = max(tally.largest, difference)
    if not difference <= tally.tolerance:
        tally.why = f"{name}: differs by {difference:.2g} of its norm, {tally.tolerance:g} allowed"
    elif not outlier <= OUTLIERS * tally.tolerance:
        tally.why = (
            f"{name}: one value differs by {outlier:.2g} of the largest, "
            f"{OUTLIERS * tally.tolerance:g} allowed"
        )


Outputs = tuple[Tensor, ...]


def _integers(
    name: str, before: Tensor, after: Tensor, outputs: tuple[Outputs, Outputs], tally: _Tally
) -> bool:
    same = before == after
    tally.compared += before.numel()
    tally.exact += int(same.sum())
    if bool(same.all()):
        return False
    old, new = outputs
    if any(
        _chosen(before, of_old, ~same) and _chosen(after, of_new, ~same)
        for of_old, of_new in zip(old, new, strict=True)
    ):
        return True  # how far the two may be apart, the comparison of the logits says
    where = tuple((~same).nonzero()[0].tolist())
    many = int((~same).sum())
    more = f" ({many} of {before.numel()} differ)" if many > 1 else ""
    tally.why = f"{name}: {after[where].item()} instead of {before[where].item()}{more}"
    return False


def _chosen(tokens: Tensor, logits: Tensor, which: Tensor) -> bool:
    """Whether integers (those of the mask `which`) are the indices of the largest logits.

    Logits are floating-point, of the integers' shape with one dimension more, or with that in
    place of a last one of 1.
    """
    if not logits.is_floating_point() or logits.dim() < 1:
        return False
    rows = logits.reshape(-1, logits.shape[-1])
    if rows.shape[0] != tokens.numel():
        return False
    rows, picked = rows[which.reshape(-1)], tokens[which].reshape(-1, 1).long()
    if bool(((picked < 0) | (picked >= rows.shape[1])).any()):
        return False
    return bool((rows.gather(1, picked) >= rows.max(dim=1, keepdim=True).values).all())


def _deliveries(
    number: int, old: Case, new: Case, compared: range, tally: _Tally, *, ends_in_tie: bool
) -> None:
    """What reached the host in the steps that were compared, the last of which may be a tie."""
    if (old.delivered is None) != (new.delivered is None):
        tally.why = f"case {number}: delivers to the host in one of them only"
        return
    if old.delivered is None or new.delivered is None:
        return
    for case, what in ((old, "the reference"), (new, "it")):
        if len(case.delivered or ()) != len(case.outputs):
            tally.why = (
                f"case {number}: {what} delivered {len(case.delivered or ())} of "
                f"{len(case.outputs)} steps"
            )
            return
    for step in compared:
        at = f"case {number}, delivery of step {step}"
        here = _Tally(tally.tolerance, tally.device)
        tie = _outputs(at, old.delivered[step - old.first], new.delivered[step - new.first], here)
        tally.largest = max(tally.largest, here.largest)
        # without the logits beside it, a delivery cannot show that it is a near tie
        if here.why is not None and not (ends_in_tie and step == compared[-1]):
            tally.why = here.why
            return
        if tie:
            return
