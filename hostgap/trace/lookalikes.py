"""What a file is when it is not a torch.profiler trace.

People hand over whatever a profiler left behind. A refusal that says "this is a Chakra execution
trace" saves them the search for what is wrong. One function per stage of reading answers: `binary`
for the first bytes, `document` for JSON without a trace in it, `events` for another tool's trace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hostgap.errors import TraceError

RECORD = "record one with torch.profiler: prof.export_chrome_trace('trace.json.gz')"


class OtherDocument(TraceError):
    """A whole, readable JSON document that is something else than a trace."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One line that says what the file looks like, and one that says what to do."""

    what: str
    hint: str | None = RECORD


_MAGIC: tuple[tuple[bytes, str, str | None], ...] = (
    (b"SQLite format 3\0", "an SQLite file: give its path, it cannot be read from a pipe", None),
    (b"QDSTRM", "a raw Nsight Systems capture (.qdstrm)", None),
    (b"PK\x03\x04", "a zip archive", "unpack it and give the trace inside"),
    (b"BZh", "bzip2 data", "decompress it first: bunzip2"),
    (b"\xfd7zXZ\0", "xz data", "decompress it first: unxz"),
    (b"\x04\x22\x4d\x18", "lz4 data", "decompress it first: lz4 -d"),
    (b"\xff\xfe", "UTF-16 text", "convert it first: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "convert it first: iconv -f UTF-16 -t UTF-8"),
    (b"\x7fELF", "a program (ELF)", RECORD),
    (b"\x80\x02", "a Python pickle (a CUDA memory snapshot?)", RECORD),
    (b"\x80\x04", "a Python pickle (a CUDA memory snapshot?)", RECORD),
    (b"\x80\x05", "a Python pickle (a CUDA memory snapshot?)", RECORD),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "run: git lfs pull"),
    (b"/annex/objects/", "a git-annex pointer, not the file itself", "run: git annex get"),
    (b"%PDF", "a PDF document", RECORD),
    (b"\x89PNG", "a picture", RECORD),
)
# in small letters, white space before it ignored
_MARKUP: tuple[tuple[bytes, str, str | None], ...] = (
    (b"<!doctype", "a web page, not a trace", "download the file itself"),
    (b"<html", "a web page, not a trace", "download the file itself"),
    (b"<svg", "an SVG picture (a flame graph?)", RECORD),
    (b"<?xml", "an XML file", RECORD),
)


def binary(head: bytes) -> Refusal | None:
    """What the first bytes of a file say it is, None when they may be JSON."""
    for magic, what, hint in _MAGIC:
        if head.startswith(magic):
            return Refusal(f"this is {what}", hint)
    if head[257:262] == b"ustar":
        return Refusal("this is a tar archive", "unpack it and give the trace inside: tar -xf")
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n\0")
    for tag, what, hint in _MARKUP:
        if start[:16].lower().startswith(tag):
            return Refusal(f"this is {what}", hint)
    if start and start[:1] not in b"{[":
        text = head[:512]
        control = sum(byte < 9 or 13 < byte < 32 for byte in text)
        if control * 20 > len(text):
            if b"/host:" in head or b"/device:" in head or b"jit_" in head:
                return Refusal("this is a binary XPlane profile (JAX or TensorFlow)")
            return Refusal("this is binary data, not a trace")
        if _is_scalar(start):
            return Refusal("this is JSON, but neither an object nor a list")
        if re.match(rb"[\w .;:<>()/\[\]-]+;[^\n]* \d+\s*\n", text):
            return Refusal("this looks like folded stacks (py-spy, flame graph)")
        if b"," in text.split(b"\n")[0]:
            return Refusal("this looks like a CSV table")
        return Refusal("this is text, but not JSON")
    return None


def _is_scalar(text: bytes) -> bool:
    """Whether a JSON string, number or constant is all there is."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return False
    return True


# members of the top-level object -> what such a file is
_DOCUMENTS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"nodes", "schema"}), "an execution trace (Chakra, ExecutionTraceObserver)"),
    (frozenset({"$schema", "profiles"}), "a speedscope profile (py-spy)"),
    (frozenset({"nodes", "samples", "timeDeltas"}), "a Chrome CPU profile (.cpuprofile)"),
    (frozenset({"segments", "device_traces"}), "a CUDA memory snapshot"),
    (frozenset({"planes"}), "an XPlane profile (JAX or TensorFlow)"),
    (frozenset({"resourceSpans"}), "an OpenTelemetry trace"),
    (frozenset({"meta", "libs", "threads"}), "a Firefox profile"),
    (frozenset({"cells", "nbformat"}), "a Jupyter notebook"),
    (frozenset({"data"}), "a table or a Jaeger trace"),
    (
        frozenset({"schema", "tool", "verdict", "devices"}),
        "a result of hostgap analyze (hostgap report makes a page of it)",
    ),
    (frozenset({"schema"}), "a result of some tool (it has a schema of its own)"),
)


def document(keys: Sequence[str], metadata: Mapping[str, object]) -> Refusal:
    """What a JSON object without a list of trace events is, by its top-level keys and values."""
    if "traceEvents" in metadata:
        found = "null" if metadata["traceEvents"] is None else "no list"
        return Refusal(f"this is JSON, but not a trace: its traceEvents is {found}")
    have = frozenset(keys)
    for needed, what in _DOCUMENTS:
        if needed <= have:
            return Refusal(f"this looks like {what}: it has no traceEvents")
    if not keys:
        return Refusal("this is an empty JSON object: it has no traceEvents")
    named = ", ".join(repr(key[:30]) for key in keys[:4])
    return Refusal(f"this is JSON, but not a trace: it has no traceEvents (keys: {named})")


@dataclass(frozen=True, slots=True)
class Sample:
    """What the reader saw of a trace that holds no torch.profiler events."""

    keys: Sequence[str]  # of the top-level object; empty for a list
    is_list: bool
    events: int
    categories: Mapping[str, int]
    phases: Mapping[str, int]
    process_names: Sequence[str]
    processes: Sequence[str]  # pids as text
    names: Sequence[str]  # of the first events
    without_phase: int
    shape: str = ""  # keys of the first element that is not a trace event


def _has(texts: Sequence[str], *parts: str) -> bool:
    return any(part in text for text in texts for part in parts)


def events(sample: Sample) -> Refusal:
    """What a list of trace events from another tool is."""
    s = sample
    if s.events == 0 and not s.without_phase:
        return Refusal("the trace is empty: it has no events", "was the profiler started?")
    if s.without_phase and not s.events:
        if "timestamps" in s.shape:
            return Refusal("this looks like a Triton Inference Server trace")
        return Refusal("this is a JSON list, but not of trace events")
    if _has(s.processes, "CPU functions", "CUDA functions"):
        return Refusal(
            "this is the legacy autograd profiler's format: it has no kernels or API calls",
            "record with torch.profiler, or a torch build with USE_KINETO=1",
        )
    if _has(s.process_names, "Ascend", "CANN") or _has(s.names, "AscendCL"):
        return Refusal("no torch.profiler GPU events; this looks like an Ascend NPU trace", None)
    if _has(s.process_names, "/device:", "/host:", "XLA") or (
        "metadata" in s.keys and _has(s.process_names, "python3", "TPU")
    ):
        return Refusal("no torch.profiler events; this looks like a TensorFlow or JAX trace")
    if _has(list(s.categories), "dynamo_timed") or _has(s.names, "fullgraph_capture", "_compile"):
        return Refusal("these are torch.compile's own events (chromium events), not a profile")
    if _has(list(s.categories), "devtools", "blink", "v8", "toplevel", "PERF", "cc,") or _has(
        s.names, "CrRendererMain", "CrBrowserMain", "Chrome_ChildIOThread"
    ):
        return Refusal("this looks like a Chrome or Catapult trace, not one of torch.profiler")
    if _has(s.names, "[root]") and _has(list(s.phases), "B"):
        return Refusal("this looks like a JavaScript sampling profile (Hermes)")
    if (
        _has(list(s.categories), "FEE", "Python")
        and s.is_list is False
        and "viztracer_metadata" in s.keys
    ):
        return Refusal("this looks like a VizTracer trace")
    if _has(s.names, "cuMem", "cuLaunch", "cudaLaunch", "cudaMalloc"):
        return Refusal(
            "this traces CUDA calls, but not with torch.profiler: no categories, no kernels"
        )
    if set(s.phases) <= {"M"}:
        return Refusal(
            "the trace holds only metadata: it has no events", "was the profiler started?"
        )
    named = ", ".join(repr(c[:30]) for c in list(s.categories)[:3] if c)
    seen = f"categories: {named}" if named else "its events have no category"
    return Refusal(f"this is a Chrome trace, but not one of torch.profiler ({seen})")
