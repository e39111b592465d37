"""The defects that the reference decoder can be built with: what each does, and what undoes it.

Each is a thing that a production engine really did, or one that every first version does. Defects
of kind "compute" are part of the model (`hostgap.decoder.model`); those of kind "loop" are done by
the host around a step (`hostgap.decoder.host_defects`). Nothing here needs torch.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hostgap.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Defect:
    """One switch of the reference decoder.

    Attributes:
        name: of the switch.
        kind: "compute" (what the GPU is given to do) or "loop" (what the host does around it).
        what: it does, in one line.
        remedy: what is done instead when it is off.
        seen_in: where it was found, or what is known for it.
        fix: the fix that removes it: the defect's own name where switching it off does, the name
            of a generic fix where that treats it.
        presets: those that can have it; None for all.
    """

    name: str
    kind: Literal["compute", "loop"]
    what: str
    remedy: str
    seen_in: str
    fix: str
    presets: tuple[str, ...] | None = None


def _defect(
    name: str,
    kind: Literal["compute", "loop"],
    what: str,
    remedy: str,
    seen_in: str,
    fix: str | None = None,
    presets: tuple[str, ...] | None = None,
) -> tuple[str, Defect]:
    return name, Defect(name, kind, what, remedy, seen_in, fix or name, presets)


DEFECTS: dict[str, Defect] = dict(
    (
        _defect(
            "rope_unfused",
            "compute",
            "rotary embedding as about 20 pointwise kernels a layer",
            "one compiled function: at most 3 kernels a layer",
            "sglang#9487",
        ),
        _defect(
            "qkv_split",
            "compute",
            "query, key and value, and gate and up, as separate matrix products",
            "one product each, and a split of its result",
            "vLLM's QKVParallelLinear and MergedColumnParallelLinear are the remedy",
        ),
        _defect(
            "attention_unfused",
            "compute",
            "attention as matmul, mask, softmax, matmul over repeated key and value heads",
            "scaled_dot_product_attention, its mask made once a step",
            "FlashAttention is the remedy",
        ),
        _defect(
            "bias_gelu_unfused",
            "compute",
            "bias and GELU as separate pointwise kernels after the matrix product",
            "linear with its bias, and gelu as one op",
            "fused epilogues of cuBLASLt and CUTLASS are the remedy",
            presets=("gelu", "tiny-gelu"),
        ),
        _defect(
            "positions_on_host",
            "loop",
            "rotary positions built on the CPU each step, and uploaded",
            "positions advanced on the device",
            "sglang#9460",
        ),
        _defect(
            "page_lens_download",
            "loop",
            "an all-ones tensor of KV page lengths copied from the device each step",
            "ones made on the host",
            "sglang#9409",
        ),
        _defect(
            "eos_read",
            "loop",
            "`.item()` on every token to see whether it ends its row",
            "the end is looked for in what was delivered, some steps late",
            "transformers#43089",
        ),
        _defect(
            "list_upload",
            "loop",
            "the scheduler's inputs made by `torch.tensor(list, device=...)` each step",
            "values that never change are filled on the device, the others fed as one tensor",
            "sglang#29415, sglang#32575",
        ),
        _defect(
            "mask_select",
            "loop",
            "unfinished rows picked by a boolean index, whose size the host must wait for",
            "`torch.where` over all rows",
            "sglang#23332",
        ),
        _defect(
            "alloc_per_step",
            "loop",
            "a history grown by `torch.cat` each step, and the allocator's cache emptied",
            "a history allocated once and written in place",
            "pytorch#19222",
        ),
        _defect(
            "gc_pressure",
            "loop",
            "records in reference cycles each step, so that the garbage collector runs",
            "no records",
            "vLLM freezes and tunes the collector for this",
        ),
        _defect(
            "output_blocking",
            "loop",
            "tokens downloaded by a blocking, pageable copy before the next step is launched",
            "pinned memory and an event, overlapped with the next step",
            "vLLM's async output processing is the remedy",
            fix="async-output",
        ),
        _defect(
            "input_blocking",
            "loop",
            "inputs of the next step uploaded only after the current one has ended",
            "a double-buffered pinned upload while the current step runs",
            "vLLM's and SGLang's overlapped schedulers are the remedy",
            fix="async-input",
        ),
    )
)

# The model as a first version gets written, wherever a preset can have the defect.
NAIVE: frozenset[str] = frozenset(d.name for d in DEFECTS.values() if d.kind == "compute")

# What holds up one rank of several, and so all that wait for it. Only given with a rank,
# `host_work@1`; the others may be, too (`eos_read@1`), as none of them changes what is reduced.
RANK_FAULTS: dict[str, Defect] = dict(
    (
        _defect(
            "host_work",
            "loop",
            "1 ms of Python before each step",
            "no such work, or on another thread while the step runs",
            "logging, metrics and checks that only the first rank does",
        ),
        _defect(
            "table_upload",
            "loop",
            "a table of 8 MiB uploaded from pageable memory before each step",
            "a table kept on the device, of which only what changed is uploaded",
            "masks and block tables that one rank builds on the host",
        ),
    )
)
_OF_RANK = re.compile(r"(.+)@(\d{1,4})")


def defects_of(preset: str) -> tuple[str, ...]:
    """The names of all defects that a preset can have, in the registry's order."""
    return tuple(
        defect.name
        for defect in DEFECTS.values()
        if defect.presets is None or preset in defect.presets
    )


def checked(names: Iterable[str], preset: str | None = None) -> frozenset[str]:
    """The names as a set, each of which is a defect (that the preset can have).

    `NAIVE` itself stands for those of its defects that the preset can have.

    Raises:
        ConfigError: an unknown name, or one that the preset cannot have.
    """
    wanted = frozenset(names)
    available = tuple(DEFECTS) if preset is None else defects_of(preset)
    if wanted == NAIVE:
        return wanted & set(available)
    for name in sorted(wanted - set(available)):
        if name in DEFECTS:
            presets = ", ".join(DEFECTS[name].presets or ())
            raise ConfigError(
                f"decoder preset '{preset}' cannot have the defect '{name}'",
                f"Presets that can: {presets}.",
            )
        near = difflib.get_close_matches(name, available, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else f"Defects: {', '.join(available)}."
        raise ConfigError(f"no decoder defect '{name}'", hint)
    return wanted


def of_rank(names: Iterable[str], rank: int) -> tuple[str, ...]:
    """What a rank has of some defects: those that all have, and those given as `NAME@RANK` to it.

    Args:
        names: of defects, each as NAME or NAME@RANK.
        rank: from 0.
    """
    mine = []
    for name in names:
        at = _OF_RANK.fullmatch(name)
        if at is None or int(at[2]) == rank:
            mine.append(name if at is None else at[1])
    return tuple(dict.fromkeys(mine))


def checked_ranks(names: Iterable[str], ranks: int) -> None:
    """Look at what defects say of ranks, before anything runs.

    Args:
        names: of defects, each as NAME or NAME@RANK.
        ranks: how many there are, 1 for a run that is no rank of any.

    Raises:
        ConfigError: a rank that there is not, a fault of one rank that is given to all.
    """
    for name in names:
        at = _OF_RANK.fullmatch(name)
        if at is None:
            if name in RANK_FAULTS:
                raise ConfigError(
                    f"--defect {name}: it holds up one rank of several",
                    f"Say which: --ranks 2 --defect {name}@1.",
                )
        elif ranks == 1:
            raise ConfigError(f"--defect {name}: there are no ranks", "Give --ranks N as well.")
        elif int(at[2]) >= ranks:
            raise ConfigError(f"--defect {name}: ranks run from 0 to {ranks - 1}")
