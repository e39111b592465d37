"""Lines of calls, read from the source of the function that a frame names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostgap.analysis.analyze import analyze
from hostgap.analysis.examine import Options
from hostgap.analysis.source import lines_of_call
from hostgap.diagnosis.judge import Judging
from tests.analysis.build import STREAM_SYNC, Event, build, call, copy, frame, kernel, op, steps

SOURCE = """\
import torch

@torch.no_grad()
def step(x):
    y = (
        x @ x
    ).sum(
    ).item()
    def inner():
        return x.cpu()
    return x.cpu(), x.cpu()

class Loop:
    def run(self):
        return self.flag.item()

double = lambda x: x.item()
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "decode.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    ("first", "function", "called", "lines"),
    [
        (3, "step", "item", (8,)),  # a frame begins at the decorator
        (3, "step", "cpu", (11,)),  # not the one of the function inside
        (3, "step", "tolist", ()),
        (4, "step", "item", ()),  # no function begins there
        (14, "run", "item", (15,)),
        (14, "Loop.run", "item", (15,)),
        (17, "<lambda>", "item", (17,)),
        (1, "<module>", "item", ()),
    ],
)
def test_lines(
    source: Path, first: int, function: str, called: str, lines: tuple[int, ...]
) -> None:
    assert lines_of_call("decode.py", first, function, called, [source]) == lines


@pytest.mark.parametrize("content", [b"def f(:", b"\0", b"\xff\xfe", b"(" * 5000])
def test_source_that_is_none_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "decode.py").write_bytes(content)
    assert lines_of_call("decode.py", 1, "f", "item", [tmp_path]) == ()


def test_a_finding_has_the_line_of_its_call(source: Path) -> None:
    def read(t: int, i: int, name: str) -> list[Event]:
        return [
            frame("decode.py(3): step", t, t + 9_000),
            frame(f"<built-in method {name} of Tensor object at 0x7f{i:02x}>", t + 10, t + 8_000),
            op("aten::item", t + 20, t + 7_990),
            op("aten::_local_scalar_dense", t + 30, t + 7_980),
            call("cudaLaunchKernel", t + 40, t + 100, i),
            kernel(t + 200, t + 3_000, i),
            call("cudaMemcpyAsync", t + 120, t + 140, i + 1),
            call(STREAM_SYNC, t + 150, t + 4_000, i + 2),
        ]

    starts = [1_000 * 10 * k for k in range(1, 6)]
    pinned = "Memcpy DtoH (Device -> Pinned)"
    trace = build(
        steps(*starts),
        *(
            [*read(t, 1 + 10 * k, "item"), copy(t + 3_100, t + 3_200, 2 + 10 * k, pinned)]
            for k, t in enumerate(starts)
        ),
    )
    (found,) = analyze(trace, Options(source_roots=(source,)), Judging(select=("HG101",))).findings
    assert found.site is not None
    assert (found.site.line, found.site.precision) == (8, "call")
    (unknown,) = analyze(trace, judging=Judging(select=("HG101",))).findings
    assert unknown.site is not None
    assert (unknown.site.line, unknown.site.precision) == (3, "function")
