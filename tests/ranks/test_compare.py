"""Waits of ranks for one another, on jobs of which they are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hostgap.ranks.diagnose import diagnose_set
from hostgap.ranks.engines import Local
from hostgap.ranks.model import DiagnosisSet, RankFigures
from tests.ranks.build import COLLECTIVE_US, Job, write

SAMPLES = Path(__file__).parents[2] / "sample_traces"
CASES = Path(__file__).parents[3] / "shared" / "cases" / "kineto"


def diagnosed(job: Job, folder: Path, **how: Any) -> DiagnosisSet:
    write(job, folder, **how)
    return diagnose_set([str(folder)], engine=Local(1))


def figures(found: DiagnosisSet) -> list[RankFigures]:
    shown = [one.figures for one in found.ranks]
    assert None not in shown
    return shown  # type: ignore[return-value]


@pytest.mark.parametrize("drift", [0.0, 40e-6])
def test_waits_and_the_straggler(tmp_path: Path, drift: float) -> None:
    job = Job(
        4,
        steps=30,
        host_us={2: 320},
        offset_us={1: -3.5e6, 2: 12_345.678, 3: 1.7e12},
        drift={1: drift, 3: -drift},
    )
    found = diagnosed(job, tmp_path)
    summary = found.summary
    assert (summary.ranks, summary.compared, summary.not_compared) == (4, 4, None)
    for rank, mine in enumerate(figures(found)):
        # the first step fills the pipeline and does not count
        expected = job.waits_us(rank) * 29 / 30 * 1000
        assert mine.rank_wait_ns == pytest.approx(expected, rel=1e-3, abs=3_000)
        assert mine.exposed_wait_ns == pytest.approx(mine.rank_wait_ns, rel=1e-3)
        assert mine.window_ns == pytest.approx(29 * (430 + COLLECTIVE_US) * 1000, rel=1e-2)
    late = summary.straggler
    assert late is not None
    assert (late.rank, late.clear, late.last) == (2, True, 29)
    assert late.share > 0.99
    assert late.caused_wait_ns == pytest.approx(29 * 300_000, rel=1e-3)
    assert late.idle_excess_ns == pytest.approx(29 * 300_000, rel=2e-2)
    assert late.cause == "dispatch"
    assert late.site is not None
    assert late.site.op == "aten::load"
    host = [mine.host_late_ns for mine in figures(found)]
    assert host[2] > 10 * max(host[:2] + host[3:])
    codes = [(f.code, f.severity, f.labels) for f in summary.findings]
    assert ("HG702", "error", ["rank 2"]) in codes
    assert ("HG701", "error", ["rank 0", "rank 1", "rank 3"]) in codes


@pytest.mark.parametrize(
    ("fault", "cause", "costs_ns"),
    [("host_work", "python", 1e6), ("table_upload", "copy_call", 8e5)],
)
def test_bundled_ranks_name_the_fault_that_was_put_into_one(
    fault: str, cause: str, costs_ns: float
) -> None:
    found = diagnose_set([str(SAMPLES / f"tp_{fault}_rank*.json.gz")], engine=Local(1))
    late = found.summary.straggler
    assert late is not None
    assert late.site is not None
    assert (late.rank, late.clear, late.cause) == (1, True, cause)
    assert late.site.function == fault
    assert late.cause_excess_ns == pytest.approx(costs_ns, rel=0.2)
    first, second = figures(found)
    assert first.rank_wait_ns > 50 * second.rank_wait_ns


def test_a_slow_gpu_is_no_late_host(tmp_path: Path) -> None:
    found = diagnosed(Job(4, kernel_us={1: 300}), tmp_path)
    late = found.summary.straggler
    assert late is not None
    assert (late.rank, late.cause, late.clear) == (1, "gpu-work", True)
    assert late.work_excess_ns == pytest.approx(11 * 200_000, rel=1e-2)


@pytest.mark.parametrize("named", [False, True])
def test_groups_are_told_apart(tmp_path: Path, named: bool) -> None:
    job = Job(4, steps=20, host_us={1: 220, 3: 70}, groups=[[0, 1], [2, 3]], name_groups=named)
    found = diagnosed(job, tmp_path)
    teams = [sorted(line.labels) for line in found.summary.collectives]
    assert sorted(teams) == [["rank 0", "rank 1"], ["rank 2", "rank 3"]]
    waits = [mine.rank_wait_ns or 0 for mine in figures(found)]
    assert waits[0] == pytest.approx(19 * 200_000, rel=1e-2)
    assert waits[2] == pytest.approx(19 * 50_000, rel=1e-2)
    assert waits[1] == waits[3] == 0


def test_groups_nearly_in_step_are_told_apart_by_their_ends(tmp_path: Path) -> None:
    # by name and number alone the four would be one group; two of them end 150 us later each time
    job = Job(4, steps=24, host_us={1: 220, 2: 400, 3: 20}, groups=[[0, 1], [2, 3]])
    found = diagnosed(job, tmp_path)
    waits = [mine.rank_wait_ns or 0 for mine in figures(found)]
    assert waits[0] == pytest.approx(23 * 200_000, rel=1e-2)
    assert waits[3] == pytest.approx(23 * 380_000, rel=1e-2)
    assert waits[1] == waits[2] == 0


def test_waits_beside_other_work_are_not_exposed(tmp_path: Path) -> None:
    found = diagnosed(Job(2, host_us={1: 220}, beside={0: 120}), tmp_path)
    mine = figures(found)[0]
    assert mine.rank_wait_ns == pytest.approx(11 * 200_000, rel=1e-2)
    assert mine.exposed_wait_ns == pytest.approx(11 * 80_000, rel=2e-2)


def test_recordings_that_begin_apart(tmp_path: Path) -> None:
    job = Job(3, steps=20, host_us={1: 220}, skip={1: 2, 2: 1}, offset_us={1: 9e5})
    found = diagnosed(job, tmp_path)
    assert found.summary.compared == 3
    waits = [mine.rank_wait_ns or 0 for mine in figures(found)]
    assert waits[0] == pytest.approx(18 * 200_000, rel=1e-2)
    assert waits[1] == 0


def test_even_ranks_have_no_straggler(tmp_path: Path) -> None:
    found = diagnosed(Job(4), tmp_path)
    assert found.summary.straggler is None
    assert found.summary.rank_wait_share == 0
    assert not [f for f in found.summary.findings if f.code in ("HG701", "HG702")]


def test_ranks_of_separate_jobs_are_not_compared(tmp_path: Path) -> None:
    found = diagnosed(Job(2), tmp_path, name="run{}.json", recorded=False)
    assert found.summary.not_compared == "neither the traces nor their names tell the ranks"
    assert found.summary.straggler is None
    assert [one.label for one in found.ranks] == ["run0.json", "run1.json"]
    write(Job(1), tmp_path, name="again_rank{}.json", recorded=False)
    write(Job(1), tmp_path, name="more_rank{}.json", recorded=False)
    again = diagnose_set([str(tmp_path / "*rank0.json")], engine=Local(1))
    assert again.summary.not_compared == "several traces are of rank 0: separate runs?"
    assert len({one.label for one in again.ranks}) == 2


def test_outliers(tmp_path: Path) -> None:
    found = diagnosed(Job(6, host_us={4: 420}), tmp_path)
    spread = {one.figure: one for one in found.summary.spread}
    assert spread["host_late_share"].outliers == ["rank 4"]
    assert spread["host_late_share"].high_label == "rank 4"
    assert spread["kernels"].outliers == []
    assert spread["step_ns"].outliers == []


def test_findings_of_one_place_are_one(tmp_path: Path) -> None:
    found = diagnosed(Job(3, usual_us=400), tmp_path)
    findings = [f for f in found.summary.findings if f.severity != "info"]
    assert findings
    assert all(len(f.labels) == 3 for f in findings)
    one = findings[0]
    each = [
        f for rank in found.ranks if rank.diagnosis for f in rank.diagnosis.findings
        if f.code == one.code and f.site == one.site
    ]  # fmt: skip
    assert one.count == sum(f.count for f in each)
    assert one.predicted_saving_ns == max(f.predicted_saving_ns or 0 for f in each)


@pytest.mark.skipif(not CASES.is_dir(), reason="needs the shared cases")
def test_a_public_pair_of_megatron_ranks() -> None:
    found = diagnose_set([str(CASES / "nv_a100_megatron_tp8_rank*.json")], engine=Local(1))
    late = found.summary.straggler
    assert late is not None
    # rank 0 launches late and shows long gaps; rank 1 reads 98 % busy and waits in its all-reduces
    assert (late.rank, late.clear, late.cause) == (0, True, "dispatch")
    # their hosts are nearly as slow as each other: one lags behind, which costs the job little
    assert found.summary.wait_cost_share == pytest.approx(0.024, abs=0.01)
    first, second = figures(found)
    assert first.host_late_ns > 0.3 * first.window_ns
    assert second.rank_wait_ns is not None
    assert 0.35 * second.window_ns < second.rank_wait_ns < 0.45 * second.window_ns
    assert all(line.spread_ns < 25_000 for line in found.summary.collectives)
