"""Places in the user's source, from frames and from ops."""

from __future__ import annotations

import numpy as np
import pytest

from hostgap.analysis.analyze import analyze
from hostgap.analysis.causes import frame_parts, is_user_frame
from hostgap.analysis.examine import Options, examine
from hostgap.analysis.sites import call_sites, idle_sites, readable, site_of_frame
from hostgap.diagnosis.model import IdleSite
from tests.analysis.build import LAUNCH, STREAM_SYNC, Event, build, call, frame, kernel, op

WHOLE = Options(window="trace")
# a gap from 100 to 900, whose kernel is launched at 850
GAP = [
    call(LAUNCH, 0, 10, 1),
    kernel(20, 100, 1),
    call(LAUNCH, 850, 860, 2),
    kernel(900, 950, 2),
]


def places(*events: Event) -> list[IdleSite]:
    return analyze(build(GAP, list(events)), WHOLE).devices[0].idle_sites


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("decode.py(74): step", ("decode.py", 74, "step")),
        ("/home/me/my project/a(1).py(5): f", ("/home/me/my project/a(1).py", 5, "f")),
        ("C:\\code\\a.py(9): <lambda>", ("C:\\code\\a.py", 9, "<lambda>")),
        ("<string>(1): <module>", ("<string>", 1, "<module>")),
        ("<built-in method item of Tensor object at 0x7f>", None),
        ("nn.Module: Linear_0", None),
    ],
)
def test_names_of_frames(name: str, expected: tuple[str, int, str] | None) -> None:
    assert frame_parts(name) == expected
    site = site_of_frame(name)
    if expected is None:
        assert site is None
    else:
        assert site is not None
        assert (site.file, site.line, site.function) == expected
        assert (site.op, site.precision) == (None, "function")


@pytest.mark.parametrize(
    ("name", "mine"),
    [
        ("decode.py(74): step", True),
        ("/app/serve/engine.py(3): run", True),
        ("src/torch_utils.py(3): run", True),
        ("torch/nn/modules/module.py(1500): _call_impl", False),
        ("/usr/lib/python3.12/site-packages/vllm/engine.py(3): run", False),
        ("triton/runtime/jit.py(330): <lambda>", False),
        ("threading.py(324): wait", False),
        ("/usr/lib/python3.12/queue.py(150): get", False),
        ("<string>(1): <module>", False),
        ("<built-in method item of Tensor object at 0x7f>", False),
        ("profile.py(12): main", True),  # a user's own, more often than the library's
    ],
)
def test_whose_frame(name: str, mine: bool) -> None:
    assert is_user_frame(name) is mine


def test_idle_time_by_user_frame() -> None:
    outer, inner = frame("loop.py(5): main", 0, 1_000), frame("model.py(40): forward", 200, 700)
    library = frame("torch/nn/functional.py(9): softmax", 300, 600)
    found = places(outer, inner, library, op("aten::softmax", 400, 500))
    assert [(p.site.file, p.site.line, p.idle_ns) for p in found] == [
        ("model.py", 40, 500),
        ("loop.py", 5, 250 + 10),
    ]
    assert found[0].by_cause == {"dispatch": 100, "python": 400}
    assert found[0].calls == ["aten::softmax"]
    assert found[1].by_cause == {"launch_call": 10, "python": 250}
    assert found[1].calls == [LAUNCH]


def test_without_stacks_the_outermost_op_is_the_place() -> None:
    found = places(op("aten::to", 200, 600), op("aten::copy_", 300, 500))
    assert [(p.site.file, p.site.op, p.site.precision, p.idle_ns) for p in found] == [
        (None, "aten::to", "none", 400)
    ]
    assert found[0].calls == ["aten::copy_", "aten::to"]


def test_only_the_costliest_places_are_kept() -> None:
    events = [frame(f"a.py({i}): f{i}", 100 + 20 * i, 110 + 20 * i + i) for i in range(9)]
    analysis = examine(build(GAP, events), WHOLE)
    found = idle_sites(analysis.host, analysis.devices[0].pieces, 3)
    assert [p.site.function for p in found] == ["f8", "f7", "f6"]


def test_the_site_of_a_call() -> None:
    trace = build(
        GAP,
        frame("user.py(1): f", 200, 400),
        op("aten::item", 210, 390),
        call(STREAM_SYNC, 220, 380, 7),
        op("aten::item", 500, 600),
        op("aten::_local_scalar_dense", 510, 590),
        call(STREAM_SYNC, 520, 580, 8),
        call(STREAM_SYNC, 700, 710, 9),
    )
    host = examine(trace, WHOLE).host
    rows = [int(r) for r in (trace.api_calls.correlation > 6).nonzero()[0]]
    sites = call_sites(host, np.array(rows, np.int32))
    assert sites[0] == site_of_frame("user.py(1): f")
    assert sites[1] is not None
    assert sites[1].op == "aten::item > aten::_local_scalar_dense"
    assert sites[2] is None


def test_addresses_do_not_tell_places_apart() -> None:
    assert readable("<built-in method item of Tensor object at 0x7f12ab>") == (
        "<built-in method item of Tensor object>"
    )
