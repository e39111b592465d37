"""Redacted copies of whole traces: the same figures, and nothing of where they were made."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hostgap
from hostgap.trace.redact import own_names, redact
from tests.trace.figures import figures
from tests.trace.scan import scan

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "sample_traces").glob("*.json.gz"))
CASES = ROOT.parent / "shared" / "cases" / "kineto"
REAL = [
    "nv_h100_bert_small.json.gz",
    "nv_h100_tutorial_intts_stacks.pt.trace.json",
    "amd_mi300_sglang_qwen3_decode_graph.json.gz",
    "amd_mi300_torch_compile_triton.json.gz",
    "nv_a100_event_sync_multistream.json.gz",
    "nv_3060_cuda13_cudagraph.json",
    "mtia_inference_rank0.json.gz",
    "nv_v100_dlrm_rank0.pt.trace.json",
    "nv_t4_fp32.pt.trace.json",
]


def opened(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def without_folders(value: Any, key: str = "") -> Any:
    """A diagnosis in which files and frames go by their names alone."""
    if isinstance(value, dict):
        return {name: without_folders(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner) for inner in value]
    if key in ("file", "detail") and isinstance(value, str):
        return re.sub(r"^.*[/\\]", "", value)
    return value


def diagnosis(path: Path) -> Any:
    found = msgspec.to_builtins(hostgap.analyze(hostgap.load_trace(path)))
    found["trace"]["file"] = ""
    for device in found["devices"]:
        device["streams"].sort(key=lambda stream: str(stream["stream"]))
    return without_folders(found)


def check_file(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "clean.json.gz"
    redact(path, out)
    text, clean = opened(path), opened(out)
    assert figures(clean) == figures(text)
    assert diagnosis(out) == diagnosis(path)
    homes = [f"/{folder}/" for folder in ("home", "root", "tmp")]
    assert scan(clean, [*homes, "site-packages/../", *long_names()]) == []


def long_names() -> list[str]:
    return [name for name in own_names() if len(name) > 6]


@pytest.mark.skipif(not SAMPLES, reason="no bundled traces in sample_traces/")
@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.name)
def test_figures_of_the_bundled_traces_stay(path: Path, tmp_path: Path) -> None:
    check_file(path, tmp_path)


@pytest.mark.skipif(not CASES.is_dir(), reason="the public traces are not beside this checkout")
@pytest.mark.parametrize("name", REAL)
def test_figures_of_real_traces_stay(name: str, tmp_path: Path) -> None:
    check_file(CASES / name, tmp_path)
