"""The built-in decoder's defects, each undone: a fix of the defect's own name.

## What it does
Builds the decoder without the defect, which its list of defects (`hostgap.decoder.defects`)
describes; two of them are left to generic fixes, output_blocking to async-output and input_blocking
to async-input.

## When it applies
The decoder has the defect, and something was found that it is known to show as.

## What it costs
Nothing at run time: it is another way to write the same step.

## Can go wrong
Fused arithmetic rounds otherwise; the proof of equality decides."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hostgap.decoder.defects import DEFECTS
from hostgap.fixes.fix import Fix, Stage
from hostgap.profiling.bench import Variant
from hostgap.profiling.workload import Workload

# Defect -> the findings that it shows as.
SHOWS_AS: dict[str, tuple[str, ...]] = {
    "rope_unfused": ("HG202", "HG207"),
    "qkv_split": ("HG203",),
    "attention_unfused": ("HG204",),
    "bias_gelu_unfused": ("HG205",),
    "positions_on_host": ("HG104", "HG110"),
    "page_lens_download": ("HG102",),
    "eos_read": ("HG101",),
    "list_upload": ("HG104", "HG110"),
    "mask_select": ("HG103",),
    "alloc_per_step": ("HG401", "HG404"),
    "gc_pressure": ("HG501",),
}


class UndoDefect(Fix):
    """One defect of the built-in decoder undone."""

    stage = Stage.TARGET
    of_decoder = True
    rank = 25  # after capturing, and before compiling, which takes long

    def __init__(self, defect: str) -> None:
        known = DEFECTS[defect]
        self.name = self.defect = defect
        self.title = f"Undo {defect}: {known.remedy}"
        self.codes = SHOWS_AS[defect]
        self.speeds_kernels = known.kind == "compute"

    def apply(self, workload: Workload) -> Workload:
        """The workload as it is: the target was built without the defect."""
        return workload

    def on(self, variant: Variant, known: Mapping[str, Fix]) -> Variant | None:
        """The variant without the defect; None where it has none."""
        if self.name not in variant.defects:
            return None
        left = tuple(name for name in variant.defects if name != self.name)
        return msgspec.structs.replace(variant, defects=left)


def undo_fixes() -> list[Fix]:
    """A fix for each of the decoder's defects that switching it off removes."""
    return [UndoDefect(name) for name, defect in DEFECTS.items() if defect.fix == name]
