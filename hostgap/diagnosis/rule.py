"""What a rule is: a class with its metadata, typed options, and `find`, which yields matches.

One rule stands in one file, `rules/hg101_scalar_read.py`, whose docstring is what
`hostgap explain HG101` and the reference page print.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from hostgap.analysis.edit import Edit
from hostgap.diagnosis.model import Site
from hostgap.trace.model import Int64

if TYPE_CHECKING:
    from hostgap.diagnosis.context import Context
    from hostgap.diagnosis.waits import Wait

HEADINGS = ("What it sees", "Why it costs", "Example", "Use instead", "Options", "Sources")


class Need(enum.Enum):
    """What a rule cannot do without; the value says how to get it."""

    API_CALLS = "CUDA calls: record with ProfilerActivity.CUDA, or nsys profile --trace=cuda"
    OPS = "framework ops: record with ProfilerActivity.CPU, or nsys --pytorch=autograd-nvtx"
    STACKS = "Python stacks: record with profile(..., with_stack=True)"
    STEPS = "steps: mark them with torch.profiler's step(), NVTX ranges, or --step-marker"
    SCHEDULING = "scheduling events: record with nsys profile --cpuctxsw=process-tree"
    GC = "gc ranges: record with_stack=True, or a range named gc around each collection"
    RANKS = "collectives: the trace of a rank of a distributed run"
    PROFILE = "the run directory of hostgap profile"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A rule's thresholds: subclass it; what each means stands under the rule's `## Options`."""


def _none() -> Int64:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Match:
    """One place at which a rule sees its fault.

    Attributes:
        calls: rows of api_calls it consists of: they count, block, cast shadows and say where.
        edit: the world without the fault, to be replayed; None where it takes nothing away.
        site: where; None takes the site of the first call.
        count: how often, where it is not once per call.
        title: instead of the rule's own, where figures belong into it.
        advice: instead of the rule's own.
    """

    calls: Int64 = field(default_factory=_none)
    edit: Edit | None = None
    site: Site | None = None
    count: int | None = None
    title: str = ""
    advice: str = ""


class Rule(ABC):
    """A fault, how to see it, what to do about it.

    Class attributes:
        code: HG and three digits; the first digit is the family.
        name: a few words with dashes.
        title: what is wrong, in one line.
        advice: what to do, in one line.
        needs: what the trace must hold.
        fix: the fix that hostgap applies for it, if there is one.
        options: its thresholds.
        informs: it only says something about the trace, and is never a defect.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    title: ClassVar[str]
    advice: ClassVar[str]
    needs: ClassVar[tuple[Need, ...]] = (Need.API_CALLS,)
    fix: ClassVar[str | None] = None
    options: ClassVar[type[Options]] = Options
    informs: ClassVar[bool] = False

    @abstractmethod
    def find(self, context: Context, options: Any) -> Iterator[Match]:
        """Every place at which the fault stands, each once.

        Args:
            context: the trace's window, and what rules usually ask of it.
            options: an instance of `self.options`.
        """


class WaitRule(Rule):
    """A rule about calls in which the host waits for the GPU.

    Every wait is of one such rule: the first that claims it, lowest `order` first.
    """

    order: ClassVar[int] = 50

    @abstractmethod
    def claims(self, wait: Wait) -> bool:
        """Whether the wait is an instance of this fault."""

    def without(self, context: Context, calls: Int64) -> Edit:
        """The world in which these calls no longer wait, nor the copies that they wait for:
        those of pageable memory hold the host themselves."""
        return Edit(unblock=context.with_copies(calls))

    def find(self, context: Context, options: Any) -> Iterator[Match]:
        """The waits of this rule, by site."""
        for site, calls in context.by_site(context.waits_of(self.code)):
            yield Match(calls=calls, edit=self.without(context, calls), site=site)
