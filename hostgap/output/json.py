"""The diagnosis as JSON: the product, of which every other format is a view."""

from __future__ import annotations

import sys
from importlib import resources
from typing import Any

import msgspec

from hostgap.diagnosis.model import Diagnosis
from hostgap.output.encoded import indented

SCHEMA_FILE = "diagnosis.schema.json"


def render_json(diagnosis: Diagnosis) -> bytes:
    """The whole diagnosis, indented, with a final newline."""
    return indented(diagnosis)


def schema() -> dict[str, Any]:
    """The JSON Schema of a diagnosis, made from its types."""
    made = msgspec.json.schema(Diagnosis)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hostgap.diagnosis/1",
        **made,
    }


def shipped_schema() -> bytes:
    """The JSON Schema as installed with the package; a test holds it against `schema()`."""
    return resources.files("hostgap.output").joinpath(SCHEMA_FILE).read_bytes()


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(schema()), indent=2) + b"\n")
