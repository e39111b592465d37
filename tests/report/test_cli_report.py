"""`hostgap report`, and .html files of `analyze` and `fix`."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from pathlib import Path

import msgspec
import pytest
import traces

from hostgap.cli import run
from hostgap.profiling.measurement import Estimate, Pass
from tests.rules.check import measurement

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TRACE = str(SAMPLES / "cuda_graph.json.gz")
LADDER = Path(__file__).parents[2] / "reports" / "h200" / "fix-small.json"


def test_report_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "r.html"
    assert run(["report", TRACE, "-o", str(page)]) == 0
    assert capsys.readouterr().err == f"Wrote {page}\n"
    text = page.read_text(encoding="utf-8")
    assert "<!doctype html>" in text
    for part in ("where", "timeline", "findings", "kernels", "trust", "glossary"):
        assert f'id="{part}"' in text
    assert str(SAMPLES) not in text  # it is mailed: folders stay at home


def test_analyze_writes_the_same_page(tmp_path: Path) -> None:
    one, two = tmp_path / "one.html", tmp_path / "two.html"
    assert run(["report", TRACE, "-o", str(one)]) == 0
    assert run(["analyze", TRACE, "-o", str(two)]) == 0
    assert one.read_bytes() == two.read_bytes()


def test_the_policy_names_the_only_script(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    assert run(["report", TRACE, "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    # in an attribute, the quotes of 'none' are escaped
    assert f"script-src &#39;sha256-{digest}&#39;" in policy[1]
    assert policy[1].startswith("default-src &#39;none&#39;")
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text)
    assert "innerHTML" not in script
    assert "eval(" not in script


def test_an_existing_file_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "r.html"
    page.write_text("mine")
    assert run(["report", TRACE, "-o", str(page)]) == 2
    assert "use --force" in capsys.readouterr().err
    assert page.read_text() == "mine"
    assert run(["report", TRACE, "-o", str(page), "--force"]) == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file"),
        ('{"schema": "hostgap.diagnosis/99"}', "schema 'hostgap.diagnosis/99'"),
        ('{"schema": "hostgap.diagnosis/1"}', "missing required field"),
        ("{}", "error"),
        ("\x00\x01", "error"),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, says: str
) -> None:
    given = tmp_path / "given.json"
    if content is not None:
        given.write_text(content)
    assert run(["report", str(given), "-o", str(tmp_path / "r.html")]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) <= 2
    assert [path.name for path in tmp_path.iterdir()] in ([], ["given.json"])


def test_a_page_is_html(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", TRACE, "-o", str(tmp_path / "r.pdf")]) == 2
    assert "a report is .html" in capsys.readouterr().err


def test_a_folder_of_ranks(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    for rank in range(3):
        traces.steps(kernels=10 + rank).write(ranks / f"rank{rank}.json")
    page = tmp_path / "r.html"
    assert run(["report", str(ranks), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.count('class="run"') == 3
    assert 'id="all-runs"' in text
    assert text.count("<canvas") == 6


def test_a_folder_of_run_directories(tmp_path: Path) -> None:
    """What `hostgap profile --ranks` writes: no file lies in the folder itself."""
    for rank in range(2):
        run_dir = tmp_path / "job" / f"rank{rank}"
        run_dir.mkdir(parents=True)
        traces.steps(kernels=10 + rank).write(run_dir / "cpu_cuda.json")
        step = Estimate(median_ns=1e6, low_ns=1e6, high_ns=1e6)
        passes = [Pass(mode="cpu+cuda", file="cpu_cuda.json", step=step)]
        written = measurement(step_ns=1e6, span_ns=1e5, passes=passes)
        (run_dir / "measurement.json").write_bytes(msgspec.json.encode(written))
    page = tmp_path / "r.html"
    assert run(["report", str(tmp_path / "job"), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.count('class="run"') == 2
    assert text.count("<canvas") == 4


def test_a_comparison(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    base = str(SAMPLES / "eager_item.json.gz")
    assert run(["report", TRACE, "--against", base, "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "eager_item.json.gz against cuda_graph.json.gz" in text
    assert "Gone:" in text


def test_a_comparison_needs_a_run_on_each_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = str(tmp_path / "r.html")
    assert run(["report", TRACE, "--against", str(LADDER), "-o", page]) == 2
    assert "a comparison needs one run on each side" in capsys.readouterr().err


def test_a_ladder_of_fixes(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    assert run(["report", str(LADDER), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    report = json.loads(LADDER.read_text(encoding="utf-8"))
    for rung in report["rungs"]:
        if rung["step"] is not None:
            assert f'data-step="{rung["step"]["median_ns"]}"' in text
    predicted = [r["predicted_saving_ns"] for r in report["rungs"] if r["predicted_saving_ns"]]
    assert re.findall(r'data-predicted="([^"]*)"', text) == [str(ns) for ns in predicted]
    assert run(["report", TRACE, str(LADDER), "-o", str(tmp_path / "both.html")]) == 0
    assert run(["fix", "--published", "-o", str(tmp_path / "fix.html")]) == 0


def test_two_ladders_are_one_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = str(tmp_path / "r.html")
    assert run(["report", str(LADDER), str(LADDER), "-o", page]) == 2
    assert "one ladder" in capsys.readouterr().err


def test_unmeasurable_is_said_and_written(tmp_path: Path) -> None:
    trace = traces.Trace()
    trace.event("cpu_op", "aten::mm", 0, 10)
    page = tmp_path / "r.html"
    given = trace.write(tmp_path / "host.json")
    assert run(["analyze", str(given), "-o", str(page)]) == 3
    assert "Nothing can be measured" in page.read_text(encoding="utf-8")


def test_hostile_names_stay_in_their_place(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    given = traces.hostile().write(tmp_path / "</title><script>x.json".replace("/", "_"))
    assert run(["report", str(given), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.count("<script>") == 1
    assert "<img" not in text
    for block in re.findall(
        r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL
    ):
        assert "<" not in block
        json.loads(block)
