"""HG702: one rank comes late to most collectives, and the others wait for it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.analysis.build import LAUNCH, Event, call, frame, kernel
from tests.rules.check import findings, not_applicable, repeated, sample

REDUCE = "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def two_ranks(t: int, i: int, even: bool = False) -> Iterator[Event]:
    """Two all-reduces to which GPU 1 comes 60 us late as its host writes a log."""
    for rank in range(2):
        thread = (1 + rank, 1)
        yield frame("train.py(2): loop", t, t + 195_000, thread=thread)
        for k in range(2):
            at, id = t + k * 100_000, i + 10 * rank + k
            late = 60_000 if (k if even else 1) == rank else 0
            if late:
                yield frame("log.py(5): write", at + 2_000, at + 62_000, thread=thread)
            yield call(LAUNCH, at + 3_000 + late, at + 8_000 + late, id, thread=thread)
            yield kernel(at + 10_000 + late, at + 80_000, id, REDUCE, device=rank)


def test_fires_on_the_rank_that_is_late_and_names_its_cause() -> None:
    (found,) = findings("HG702", repeated(two_ranks, 200_000))
    assert found.title.startswith("The others wait for GPU 1: last at 8 of 8 collectives")
    assert found.title.endswith("its own GPU idles most for python")
    assert found.site is not None
    assert (found.site.file, found.site.function) == ("log.py", "write")
    assert found.severity == "error"


def test_silent_where_ranks_are_late_in_turn() -> None:
    assert findings("HG702", repeated(lambda t, i: two_ranks(t, i, True), 200_000)) == []


def test_silent_with_one_rank() -> None:
    def alone(t: int, i: int) -> Iterator[Event]:
        return (e for e in two_ranks(t, i) if e.device == 0 and e.thread[0] == 1)

    assert findings("HG702", repeated(alone, 200_000)) == []
    assert "distributed" in not_applicable("HG702", sample("eager.json.gz"))
