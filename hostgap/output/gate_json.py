"""The gate's result as JSON: the product, of which every other format is a view."""

from __future__ import annotations

from hostgap.gate.model import GateResult
from hostgap.output.encoded import indented


def render_gate_json(result: GateResult) -> bytes:
    """The whole result, indented, with a final newline."""
    return indented(result)
