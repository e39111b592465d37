"""What people hand over instead of a trace, and what they are told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hostgap.errors import TraceError
from hostgap.trace.load import load_trace


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def x(name: str, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": 1, "dur": 2, **more}


def meta(name: str, **more: Any) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": name}, **more}


BINARY = {
    "qdstrm": (b"QDSTRM\0\1\2", "raw Nsight Systems capture"),
    "zip": (b"PK\x03\x04" + b"\0" * 30, "a zip archive"),
    "tar": (b"out/t.json".ljust(257, b"\0") + b"ustar  \0" + b"/host:\1" * 90, "a tar archive"),
    "bzip2": (b"BZh91AY&SY", "bzip2 data"),
    "xz": (b"\xfd7zXZ\0\0\4", "xz data"),
    "lz4": (b"\x04\x22\x4d\x18\x64", "lz4 data"),
    "elf": (b"\x7fELF\2\1\1\0", "a program (ELF)"),
    "pickle 2": (b"\x80\x02}q\0.", "a Python pickle"),
    "pickle 4": (b"\x80\x04\x95\x10\0", "a Python pickle"),
    "png": (b"\x89PNG\r\n\x1a\n", "a picture"),
    "pdf": (b"%PDF-1.7\n", "a PDF document"),
    "utf-16": ("[]".encode("utf-16"), "UTF-16 text"),
    "utf-16 be": (b"\xfe\xff\0[\0]", "UTF-16 text"),
    "xplane": (b"\n\x18\x08\x01\x12\x0c/host:CPU\0\0\x1a\x04jit_" + b"\1" * 40, "XPlane profile"),
    "noise": (bytes(range(1, 200)), "binary data, not a trace"),
}
TEXT = {
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        "a Git LFS pointer",
    ),
    "annex": (b"/annex/objects/MD5E-s1--0.json\n", "a git-annex pointer"),
    "html": (b"<!DOCTYPE html>\n<html>", "a web page"),
    "html 2": (b"\n\n <HTML lang=en, x>", "a web page"),
    "html 3": (b"\xef\xbb\xbf<!doctype html>", "a web page"),
    "svg": (b"<svg version='1.1'>", "an SVG picture"),
    "xml": (b"<?xml version='1.0'?>", "an XML file"),
    "csv": (b"Name,Self CPU,Calls\naten::add,1,2\n", "a CSV table"),
    "quoted csv": (b'"Time (%)","Total Time (ns)"\n1,2\n', "a CSV table"),
    "stacks": (b"<module> (a.py:1);step (a.py:9) 12\n<module> (a.py:1) 3\n", "folded stacks"),
    "prose": (b"Traceback (most recent call last):\n", "text, but not JSON"),
    "string": (b'"a, b"', "JSON, but neither an object nor a list"),
    "number": (b" 12.5\n", "JSON, but neither an object nor a list"),
    "null": (b"null", "JSON, but neither an object nor a list"),
}
DOCUMENTS = {
    "chakra": (
        {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []},
        "an execution trace (Chakra",
    ),
    "an object": ({"traceEvents": {"a": []}}, "its traceEvents is no list"),
    "speedscope": ({"$schema": "https://", "shared": {}, "profiles": []}, "a speedscope profile"),
    "cpuprofile": ({"nodes": [], "samples": [], "timeDeltas": []}, "a Chrome CPU profile"),
    "memory": ({"segments": [], "device_traces": [[]]}, "a CUDA memory snapshot"),
    "xplane": ({"planes": []}, "an XPlane profile"),
    "opentelemetry": ({"resourceSpans": []}, "an OpenTelemetry trace"),
    "firefox": ({"meta": {}, "libs": [], "threads": []}, "a Firefox profile"),
    "notebook": ({"cells": [], "nbformat": 4}, "a Jupyter notebook"),
    "empty": ({}, "an empty JSON object"),
    "other": ({"a\nb": 1, "c": 2}, r"it has no traceEvents (keys: 'a\nb', 'c')"),
    "null events": ({"traceEvents": None}, "its traceEvents is null"),
}
LEGACY = [x("aten::add", pid="CPU functions", args={}), x("add", pid="CUDA functions", args={})]
NPU = [meta("Ascend Hardware"), x("AscendCL@aclnn", ts="1.5", dur=1)]
EVENTS = {
    "empty list": ([], "the trace is empty: it has no events"),
    "no events": ({"schemaVersion": 1, "traceEvents": []}, "the trace is empty: it has no events"),
    "only metadata": ([meta("python")], "holds only metadata"),
    "numbers": ([1, 2, 3], "a JSON list, but not of trace events"),
    "lists": ([[1], [2]], "a JSON list, but not of trace events"),
    "strings": (["a", "b"], "a JSON list, but not of trace events"),
    "objects": ([{"a": 1}] * 5000, "a JSON list, but not of trace events"),
    "triton": (
        [{"id": 1, "timestamps": [{"name": "QUEUE_START", "ns": 1}]}] * 5000,
        "Triton Inference",
    ),
    "legacy": (LEGACY, "the legacy autograd profiler's format"),
    "ascend": (NPU, "an Ascend NPU trace"),
    "jax": ({"traceEvents": [meta("/device:GPU:0"), x("fusion")]}, "a TensorFlow or JAX trace"),
    "jax 2": ({"metadata": {}, "traceEvents": [meta("python3"), x("f")]}, "TensorFlow or JAX"),
    "chromium": ([x("dynamo", cat="dynamo_timed", ph="B")], "torch.compile's own events"),
    "devtools": (
        {"traceEvents": [x("RunTask", cat="disabled-by-default-devtools.timeline")]},
        "a Chrome",
    ),
    "hermes": ({"traceEvents": [x("[root]", ph="B")]}, "JavaScript sampling profile (Hermes)"),
    "viztracer": (
        {"traceEvents": [x("main", cat="FEE")], "viztracer_metadata": {}},
        "a VizTracer trace",
    ),
    "cuda calls": ([x("cudaLaunchKernel", cat="PROF")], "CUDA calls, but not with torch.profiler"),
    "other": ([x("work", cat="a\nb")], r"not one of torch.profiler (categories: 'a\nb')"),
    "no category": ([x("work")], "its events have no category"),
}
CASES = {
    **{f"binary {name}": case for name, case in BINARY.items()},
    **{f"text {name}": case for name, case in TEXT.items()},
    **{f"document {name}": (text(value), words) for name, (value, words) in DOCUMENTS.items()},
    **{f"events {name}": (text(value), words) for name, (value, words) in EVENTS.items()},
}


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    message, hint = caught.value.message, caught.value.hint or ""
    assert "\n" not in message + hint
    assert message.startswith(f"{path}: ")
    assert len(message) - len(str(path)) < 130
    return message


@pytest.mark.parametrize("name", CASES)
def test_refused_as_what_it_is(name: str, tmp_path: Path) -> None:
    data, words = CASES[name]
    path = tmp_path / "t.json"
    path.write_bytes(data)
    assert words in refusal(path)


@pytest.mark.parametrize("name", CASES)
def test_compressed_or_not(name: str, tmp_path: Path) -> None:
    data, words = CASES[name]
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(data))
    assert words in refusal(path)


def test_every_refusal_tells_what_to_do(tmp_path: Path) -> None:
    without = set()
    for name, (data, _) in CASES.items():
        path = tmp_path / "t.json"
        path.write_bytes(data)
        with pytest.raises(TraceError) as caught:
            load_trace(path)
        if not caught.value.hint:
            without.add(name)
    assert without == {"binary qdstrm", "events ascend"}


def test_a_cut_or_broken_lookalike_says_both(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'{"traceEvents": [')
    assert "it has no events (the file ends in the middle" in refusal(path)
    path.write_bytes(b'[{"ph":"X","name":"a"},\n{"ph" oops},{"ph":"X","name":"a"}]')
    assert "no category) (and broken at line 2 column 1 (byte 24))" in refusal(path)


@pytest.mark.parametrize("category", ["kernel", "Runtime", "cpu_op", "python_function", "overhead"])
def test_one_event_is_enough_to_be_a_trace(tmp_path: Path, category: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text([*LEGACY, *NPU, x("k", cat=category)]))
    trace = load_trace(path)
    tables = (trace.gpu_ops, trace.api_calls, trace.host_ops, trace.frames)
    assert sum(map(len, tables)) == 1
