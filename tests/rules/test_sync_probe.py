"""Which rule claims which wait, row by row of a probe of torch on an H200.

The probe ran 71 small operations behind 20 ms of GPU work and noted whether the call blocked, and
which ops, API calls and GPU copies a trace shows of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hostgap.analysis.clock import Clock
from hostgap.analysis.host import Host
from hostgap.diagnosis.registry import load_rules
from hostgap.diagnosis.rule import WaitRule
from hostgap.diagnosis.waits import Wait, find_waits
from hostgap.trace.model import CopyKind, Memory, Role
from hostgap.trace.vocabulary import api_role
from tests.analysis.build import LAUNCH, Event, build, call, copy, kernel, op

ROWS = Path(__file__).parents[3] / "shared" / "cases" / "sync_probe_h200_torch2.11.jsonl"
NO_ROWS = pytest.mark.skipif(not ROWS.exists(), reason="no ../shared/cases beside this checkout")

SCALAR, SHAPE, DOWN, UP = "HG101", "HG103", "HG102", "HG104"
CODES = {
    "item": SCALAR,
    "bool_if": SCALAR,
    "any_if": SCALAR,
    "fstring": SCALAR,
    "idx_0d_dev": SCALAR,
    "slice_dev_bound": SCALAR,
    "masked_fill_dev0d": SCALAR,
    "allclose": SCALAR,
    "inv": SCALAR,  # torch.linalg checks its result: read by item
    "cholesky": SCALAR,
    "tolist": DOWN,
    "cpu": DOWN,
    "split_dev_sizes": DOWN,
    "nonzero": SHAPE,
    "mask_get": SHAPE,
    "masked_select": SHAPE,
    "where1": SHAPE,
    "mask_set_dev0d": SHAPE,
    "mask_set_vec": SHAPE,
    "repeat_interleave": SHAPE,
    "unique": SHAPE,
    "unique_consec": SHAPE,
    "bincount": SHAPE,
    "one_hot": SHAPE,
    "tensor_scalar_dev": UP,
    "tensor_list_dev": UP,
    "pageable_to": UP,
    "idx_list": UP,
    "idx_cpu_t": UP,
    "set_elem_scalar": UP,
    "set_idx_scalar": UP,
    "pinned_to": "HG105",
    "dev_sync": "HG106",
    "stream_sync": "HG107",
    "event_sync": "HG107",
}
# They do not block, and still copy from pageable memory: nothing to see but HG109.
ASYNC = {"tensor_then_to_nb", "pageable_to_nb", "pinned_noncontig_nb"}
# One row, several calls: 64 numbers of a tensor, then the whole of it.
SEVERAL = {"repr": {SCALAR, DOWN}}


@cache
def rows() -> dict[str, dict[str, Any]]:
    lines = ROWS.read_text(encoding="utf-8").splitlines() if ROWS.exists() else []
    entries = [json.loads(line) for line in lines]
    return {entry["row"]: entry for entry in entries if "row" in entry}


def events(row: dict[str, Any], crossing: str | None, ops: list[str]) -> Iterator[Event]:
    """The row as a timeline: its API calls in order inside its ops, kernels and copies right away.

    A row names each kind of copy once: `crossing` is the one that its synchronize waits for, or
    that stands alone; further copies stay on the device.
    """
    calls = row["api"]
    for depth, name in enumerate(ops):
        yield op(name, depth, 100_000 - depth)
    for i, name in enumerate(calls):
        at = 1_000 + 100 * i
        yield call(name, at, at + 50, i + 1)
        behind = [api_role(n) for n in calls[i + 1 :] if api_role(n) in (Role.SYNC, Role.LAUNCH)]
        waited = behind[:1] == [Role.SYNC]
        alone = Role.SYNC not in map(api_role, calls)
        if api_role(name) is Role.LAUNCH:
            yield kernel(at + 60, at + 70, i + 1)
        elif name == "cudaMemcpyAsync" and crossing is not None and (waited or alone):
            yield copy(at + 60, at + 70, i + 1, crossing)
    yield call(LAUNCH, 200_000, 200_100, 1_000)  # so that no synchronize ends the recording
    yield kernel(200_200, 200_300, 1_000)


def waits(row: dict[str, Any], *, with_ops: bool = True) -> list[Wait]:
    """The kinds of waits that a trace of the row has."""
    crosses = [name for name in row["gpu"] if "Pageable" in name or "Pinned" in name]
    # the innermost ops of a wait are not known, so that all of the row's are around it: those of
    # a number where it was read into pinned memory, as numbers are, those of a copy elsewhere
    found: dict[Wait, None] = {}
    for crossing in crosses or [None]:
        names = list(dict.fromkeys(row["ops"])) if with_ops else []
        if crossing is not None and "Pageable" in crossing:
            names = [n for n in names if n not in ("aten::item", "aten::_local_scalar_dense")]
        trace = build(*events(row, crossing, names))
        host = Host(trace, Clock())
        found |= dict.fromkeys(find_waits(host, trace.api_calls.start >= 0).kinds)
    return list(found)


@cache
def wait_rules() -> list[WaitRule]:
    """The rules that share out the waits, as a context asks them."""
    return sorted(load_rules().wait_rules(), key=lambda rule: (rule.order, rule.code))


def claimed(wait: Wait) -> str:
    """The rule that a wait is of, "" for none."""
    return next((rule.code for rule in wait_rules() if rule.claims(wait)), "")


@NO_ROWS
def test_every_row_that_blocks_has_its_rule() -> None:
    blocking = {name for name, row in rows().items() if row["blocks"]}
    assert blocking == {*CODES, *SEVERAL}
    assert len(rows()) == 71


@NO_ROWS
@pytest.mark.parametrize("name", rows())
def test_row(name: str) -> None:
    expected = SEVERAL.get(name) or {CODES[name]} if name in {*CODES, *SEVERAL} else set()
    expected = {"HG109"} if name in ASYNC else expected
    assert {claimed(wait) for wait in waits(rows()[name])} == expected


WITHOUT_OPS = {
    # what a size read back looks like; the probe has no bytes, torch reads 4 or 8
    SCALAR: SCALAR,
    SHAPE: SCALAR,
}


@NO_ROWS
@pytest.mark.parametrize("name", [*CODES, *sorted(ASYNC)])
def test_row_without_ops(name: str) -> None:
    expected = "HG109" if name in ASYNC else CODES[name]
    pinned = [n for n in rows()[name]["gpu"] if "Pinned" in n]
    for wait in waits(rows()[name], with_ops=False):
        assert wait.ops == ()
        if wait.copy is CopyKind.D2H and wait.host_memory is Memory.PINNED:
            assert pinned
            wait = Wait(wait.call, (), wait.copy, wait.host_memory, 8)
            assert claimed(wait) == WITHOUT_OPS[expected]
        elif name == "bincount":
            assert claimed(wait) == DOWN  # its minimum, which it reads as a tensor
        else:
            assert claimed(wait) == expected


ITEM = ("aten::item", "aten::_local_scalar_dense")
TO = ("aten::to", "aten::_to_copy", "aten::copy_")
PAGE, PIN, ANY = Memory.PAGEABLE, Memory.PINNED, Memory.UNKNOWN
NO_COPY, TO_HOST, TO_DEVICE = CopyKind.NONE, CopyKind.D2H, CopyKind.H2D
STREAM, EVENT, COPY = "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpyAsync"


@pytest.mark.parametrize(
    ("wait", "code"),
    [
        (Wait(STREAM, ITEM, TO_HOST, PIN, 8), "HG101"),
        (Wait(STREAM, ("aten::one_hot", *ITEM), TO_HOST, PIN, 8), "HG103"),
        (Wait(STREAM, ("aten::nonzero",), TO_HOST, PIN, 8), "HG103"),
        (Wait(STREAM, ("aten::_unique2",), NO_COPY, ANY, -1), "HG103"),  # as older versions do
        (Wait(STREAM, TO, TO_HOST, PAGE, 4), "HG102"),
        (Wait(STREAM, ("mine::op",), TO_HOST, PIN, 4096), "HG102"),
        (Wait(STREAM, ("aten::copy_",), TO_HOST, PIN, 4096), "HG105"),
        (Wait(STREAM, TO, TO_DEVICE, PAGE, 4), "HG104"),
        (Wait(STREAM, TO, TO_DEVICE, ANY, 4), "HG104"),
        (Wait(STREAM, TO, TO_DEVICE, PIN, 4), "HG105"),
        (Wait(COPY, TO, TO_DEVICE, PAGE, 4), "HG109"),
        (Wait(COPY, ("aten::copy_",), TO_HOST, PAGE, 1 << 20), "HG109"),
        (Wait("cudaMemcpy", (), TO_HOST, PAGE, 1 << 20), "HG102"),
        (Wait("cudaMemcpy", (), TO_HOST, PAGE, 8), "HG101"),
        (Wait("cudaMemcpy", (), TO_DEVICE, PAGE, 8), "HG104"),
        (Wait("cuMemcpyHtoD_v2", (), TO_DEVICE, PIN, 8), "HG105"),
        (Wait("cudaMemcpy", (), CopyKind.D2D, ANY, 8), "HG108"),
        (Wait("cudaMemcpy", (), NO_COPY, ANY, -1), "HG108"),
        (Wait(STREAM, (), TO_HOST, PIN, 4096), "HG105"),
        (Wait(STREAM, (), TO_HOST, PIN, -1), "HG105"),
        (Wait(STREAM, (), TO_HOST, PAGE, 4096), "HG102"),
        (Wait(STREAM, (), TO_HOST, ANY, 4096), "HG102"),
        (Wait("cudaDeviceSynchronize", (), NO_COPY, ANY, -1), "HG106"),
        (Wait("hipDeviceSynchronize", ("c10d::barrier",), NO_COPY, ANY, -1), "HG106"),
        (Wait("cuCtxSynchronize", (), NO_COPY, ANY, -1), "HG106"),
        (Wait("cudaDeviceSynchronize", ("aten::mm",), NO_COPY, ANY, -1), "HG108"),
        (Wait(STREAM, ("aten::linalg_eigh",), NO_COPY, ANY, -1), "HG108"),
        (Wait(STREAM, (), NO_COPY, ANY, -1), "HG107"),
        (Wait(EVENT, ("MyFunctionBackward",), NO_COPY, ANY, -1), "HG107"),
        (Wait("urQueueFinish", (), NO_COPY, ANY, -1), "HG107"),
    ],
    ids=str,
)
def test_wait(wait: Wait, code: str) -> None:
    assert claimed(wait) == code


@pytest.mark.parametrize("name", [STREAM, EVENT, "cudaDeviceSynchronize", "cudaMemcpy"])
@pytest.mark.parametrize("kind", CopyKind)
@pytest.mark.parametrize("ops", [(), ITEM, TO, ("aten::nonzero",), ("mine::op",)], ids=str)
def test_every_wait_has_a_rule(name: str, kind: CopyKind, ops: tuple[str, ...]) -> None:
    for memory in Memory:
        for size in (-1, 8, 1 << 20):
            assert claimed(Wait(name, ops, kind, memory, size)), (memory, size)
