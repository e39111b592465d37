"""One small decode step in many variants: each with a single fault and its label, and controls.

They stand by family of rules, in modules that register theirs; their order is that in which they
are recorded. Needs torch only inside functions that make steps; labels can be read without it.
"""

from __future__ import annotations

from typing import Any

import hg1_waits
import hg2_launches
import hg3_captures
import hg4_memory
import hg5_host
import hg6_copies
import no_fault
from labelled import VARIANTS

FAMILIES = (
    hg1_waits,
    hg2_launches,
    hg3_captures,
    hg4_memory,
    hg5_host,
    hg6_copies,
    no_fault,
)


def labels() -> dict[str, dict[str, Any]]:
    """Every variant's label, as labels.json holds them."""
    return {name: found.label.to_json() for name, found in VARIANTS.items()}
