"""What a fix is: something done to a step, the findings it answers, and where it goes among others.

One fix stands in one file, whose docstring says what it promises under fixed headings: *What it
does*, *When it applies*, *What it costs*, *Can go wrong*.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

import msgspec

from hostgap.diagnosis.model import Diagnosis
from hostgap.profiling.bench import Variant
from hostgap.profiling.workload import Workload

HEADINGS = ("What it does", "When it applies", "What it costs", "Can go wrong")


class Stage(enum.IntEnum):
    """In which order fixes are applied: what changes the body, before what compiles or captures it,
    before what surrounds the whole step."""

    TARGET = 0
    INPUT = 10
    OUTPUT = 20
    EXECUTION = 30
    HOST = 40


class Prediction(msgspec.Struct, frozen=True):
    """What a fix should save, and why one thinks so.

    Attributes:
        saving_ns: of a step, as the trace has it; None where that cannot be told from the trace.
        codes: of the findings that it answers.
    """

    saving_ns: float | None
    codes: tuple[str, ...]


class Fix(ABC):
    """Something that can be done to a step.

    Attributes:
        name: how it is called on the command line and in reports.
        title: what it does, in one line.
        codes: findings it answers.
        stage: its place among the fixes of a variant.
        execution: how thoroughly it changes the way a body is run, 0 where it does not. A variant
            has one such fix at most: a more thorough one takes the place of another.
        captures: it captures CUDA graphs, which steps that wait for the GPU do not allow.
        pure: the same kernels run as before.
        speeds_kernels: the kernels themselves get faster or fewer, which no replay of a trace can
            predict; so it is worth a try wherever its findings were seen, even as harmless.
        rank: where predictions say nothing, lower ones are tried first.
        defect: of the target's own, which it undoes.
        of_decoder: it knows the built-in decoder, and can do nothing for another target.
    """

    name: str
    title: str
    codes: tuple[str, ...] = ()
    stage: ClassVar[Stage]
    execution: ClassVar[int] = 0
    captures: ClassVar[bool] = False
    pure: ClassVar[bool] = False
    speeds_kernels: bool = False
    rank: ClassVar[int] = 50
    defect: str | None = None
    of_decoder: ClassVar[bool] = False

    @abstractmethod
    def apply(self, workload: Workload) -> Workload:
        """The workload with this fix, in the process that runs it; `workload` is used up by it.

        Raises:
            FixFailed: it cannot be done; the device is left as it was.
        """

    def applies_to(self, diagnosis: Diagnosis) -> Prediction | None:
        """What it should save of a step, None where nothing was found that it answers."""
        found = [finding for finding in diagnosis.findings if finding.code in self.codes]
        defects = [finding for finding in found if finding.severity != "info"]
        codes = tuple(dict.fromkeys(finding.code for finding in defects or found))
        saving_ns = promised(diagnosis, self.codes)
        if saving_ns is not None or defects or (found and self.speeds_kernels):
            return Prediction(saving_ns, codes)
        return None

    def on(self, variant: Variant, known: Mapping[str, Fix]) -> Variant | None:
        """The variant with this fix too; None where it has it, or has a more thorough one."""
        if self.name in variant.fixes:
            return None
        others = [name for name in variant.fixes if not self.execution or not known[name].execution]
        if any(known[name].execution > self.execution > 0 for name in variant.fixes):
            return None
        order = sorted([*others, self.name], key=lambda name: known[name].stage)
        return msgspec.structs.replace(variant, fixes=tuple(order))


def promised(diagnosis: Diagnosis, codes: Collection[str]) -> float | None:
    """What a step should be shorter by without the findings of some codes, ns; None where a replay
    cannot tell.

    Findings overlap, so what several of them save together is at most what the replay without all
    defects saves.
    """
    savings = [
        finding.predicted_saving_ns
        for finding in diagnosis.findings
        if finding.code in codes and finding.severity != "info"
        if finding.predicted_saving_ns is not None
    ]
    if not savings:
        return None
    together = sum(savings)
    if diagnosis.whatif is not None:
        together = min(together, diagnosis.whatif.combined_saving_ns)
    return max(together, *savings, 0) / max(1, diagnosis.steps.count)
