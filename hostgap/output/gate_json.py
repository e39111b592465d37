"""The gate's result as JSON: the product, of which every other format is a view."""

from __future__ import annotations

import msgspec

from hostgap.gate.model import GateResult


def render_gate_json(result: GateResult) -> bytes:
    """The whole result, indented, with a final newline."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"
