"""HG701: a collective waits for a rank that comes late."""

from __future__ import annotations

from collections.abc import Iterator

from tests.analysis.build import LAUNCH, Event, call, kernel
from tests.rules.check import findings, not_applicable, repeated, sample

REDUCE = "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def of_one_rank(t: int, i: int, late: int = 80_000) -> Iterator[Event]:
    """Two all-reduces between kernels, launched ahead; another rank is late in every other step."""
    wait = late if (i // 1_000) % 2 else 0
    yield call(LAUNCH, t + 1_000, t + 3_000, i)
    yield kernel(t + 5_000, t + 50_000, i)
    for k in range(2):
        yield call(LAUNCH, t + 4_000 + 5_000 * k, t + 6_000 + 5_000 * k, i + 1 + k)
        begin = t + 50_000 + k * 100_000
        yield kernel(begin, begin + 10_000 + wait, i + 1 + k, REDUCE)
    yield call(LAUNCH, t + 20_000, t + 22_000, i + 3)
    yield kernel(t + 250_000, t + 290_000, i + 3)


def test_fires_on_what_exceeds_the_fastest_step() -> None:
    (found,) = findings("HG701", repeated(of_one_rank, 300_000))
    assert found.count_per_step == 2.0
    said = "ncclDevKernel_AllReduce_Sum_f16_RING_LL, 80 us a step beyond its own cost, at most"
    assert found.title.endswith(said)


def test_fires_on_the_rank_that_waits_in_a_trace_of_two() -> None:
    def step(t: int, i: int) -> Iterator[Event]:
        for k, begin in enumerate((10_000, 70_000)):
            yield call(LAUNCH, t + begin - 8_000, t + begin - 2_000, i + k, thread=(1, 1 + k))
            yield kernel(t + begin, t + 80_000, i + k, REDUCE, device=k)

    (found,) = findings("HG701", repeated(step, 100_000))
    assert found.title.endswith("GPU 0 waits 60 us a step for it")
    assert found.count_per_step == 1.0


def test_silent_where_collectives_take_what_they_take() -> None:
    assert findings("HG701", repeated(lambda t, i: of_one_rank(t, i, 0), 300_000)) == []


def test_silent_without_collectives() -> None:
    assert "distributed" in not_applicable("HG701", sample("eager.json.gz"))
