"""Fixes that work without a GPU as well: asynchronous input and output, gc, compile, buckets."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import Tensor

from hostgap.decoder.defects import DEFECTS
from hostgap.errors import ConfigError, FixFailed
from hostgap.fixes import streams
from hostgap.fixes.async_input import AsyncInput
from hostgap.fixes.async_output import AsyncOutput
from hostgap.fixes.buckets import Buckets
from hostgap.fixes.compile import Compile, compile_body
from hostgap.fixes.cuda_graph_regions import longest_list
from hostgap.fixes.equality import prove, reference_of, tapped
from hostgap.fixes.fix import HEADINGS, Fix
from hostgap.fixes.gc_freeze import GcFreeze
from hostgap.fixes.registry import apply_fixes, chosen, load_fixes
from hostgap.fixes.undo_defect import SHOWS_AS, UndoDefect
from hostgap.profiling.bench import Proof, Variant
from hostgap.profiling.workload import Workload
from tests.fixes.loops import Host, Loop, workload


def proven(*fixes: Fix, **kwargs: Any) -> tuple[Proof, Workload, Host]:
    """The fixes on a loop, and whether it still does the same."""
    made, host = workload(**kwargs)
    made = tapped(made)
    for fix in fixes:
        made = fix.apply(made)
    reference, _ = workload(**kwargs)
    return prove(reference_of(tapped(reference), 20), made, steps=20), made, host


@pytest.mark.parametrize("resets", [True, False])
@pytest.mark.parametrize(
    "fixes",
    [
        (AsyncOutput(),),
        (AsyncInput(),),
        (AsyncInput(), AsyncOutput()),
        (GcFreeze(),),
        (AsyncInput(), AsyncOutput(), GcFreeze()),
    ],
    ids=lambda fixes: "+".join(fix.name for fix in fixes),
)
def test_the_step_gives_and_delivers_the_same(fixes: tuple[Fix, ...], resets: bool) -> None:
    proof, _, _ = proven(*fixes, resets=resets)
    assert proof.why is None
    assert proof.largest_difference == 0.0
    assert proof.steps == (60 if resets else 20)


def test_output_comes_one_step_late_in_order_and_flush_brings_the_rest() -> None:
    made, host = workload()
    plain, expected = workload()
    for _ in range(7):
        plain.step()
    made = AsyncOutput().apply(made)
    host.delivered.clear()  # one step was run to see the output's shape
    counts = []
    for _ in range(7):
        made.step()
        counts.append(len(host.delivered))
    assert counts == [0, 1, 2, 3, 4, 5, 6]
    assert made.flush is not None
    made.flush()
    made.flush()  # has nothing left to do
    assert host.delivered == expected.delivered
    assert made.reset is not None
    made.step()
    made.reset(0)  # delivers what was on its way, and begins anew
    assert len(host.delivered) == 8
    made.step()
    made.flush()
    assert host.delivered[8] == host.delivered[0]


def test_input_is_fed_one_step_ahead_and_no_further() -> None:
    made, host = workload(resets=False)
    made = AsyncInput().apply(made)
    assert host.fed == 1
    for step in range(5):
        made.step()
        assert host.fed == step + 2


def test_a_feed_that_ends_ends_the_steps_at_the_same_place() -> None:
    def make() -> tuple[Workload, list[int]]:
        rows = iter([torch.tensor([k]) for k in range(4)])
        seen: list[int] = []
        return (
            Workload(
                body=lambda fed: fed * 2,
                feed=lambda: (next(rows),),
                deliver=lambda out: seen.append(int(out)),
                device="cpu",
            ),
            seen,
        )

    made, seen = make()
    made = AsyncInput().apply(made)
    for _ in range(4):
        made.step()
    with pytest.raises(StopIteration):
        made.step()
    assert seen == [0, 2, 4, 6]


def test_a_feed_that_needs_the_last_delivery_is_caught() -> None:
    def make() -> Workload:
        last = [1]
        return Workload(
            body=lambda fed: fed * 3 % 1009,
            feed=lambda: (torch.tensor([last[0]]),),
            deliver=lambda out: last.__setitem__(0, int(out)),
            device="cpu",
        )

    proof = prove(reference_of(tapped(make()), 6), AsyncInput().apply(tapped(make())), steps=6)
    assert proof.why == "case 0, step 1: 3 instead of 9"


@pytest.mark.parametrize("fix", [AsyncInput(), AsyncOutput()])
def test_pinned_memory_has_a_budget(fix: Fix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PINNED_BUDGET_MIB", 0.00001)
    with pytest.raises(FixFailed, match="MiB of pinned memory"):
        fix.apply(workload()[0])


def test_fixes_that_have_nothing_to_do_say_so() -> None:
    bare = Workload(body=lambda: None, device="cpu")
    with pytest.raises(FixFailed, match="takes no inputs"):
        AsyncInput().apply(bare)
    with pytest.raises(FixFailed, match="delivers nothing"):
        AsyncOutput().apply(bare)
    with pytest.raises(FixFailed, match="no output"):
        AsyncOutput().apply(replace(bare, deliver=lambda: None))
    own = replace(bare, feed=lambda: (torch.ones(1),), upload=lambda: (torch.ones(1),))
    with pytest.raises(FixFailed, match="upload of its own"):
        AsyncInput().apply(own)


def test_inputs_of_another_shape_are_refused() -> None:
    rows = iter([torch.ones(2), torch.ones(2), torch.ones(3)])
    made = AsyncInput().apply(
        Workload(body=lambda fed: fed, feed=lambda: (next(rows),), device="cpu")
    )
    made.step()
    with pytest.raises(FixFailed, match=r"shape \(3,\) now, of \(2,\) before"):
        made.step()


@pytest.mark.parametrize("name", ["cuda-graph", "cuda-graph-regions", "compile+cuda-graph"])
def test_graphs_need_a_gpu(name: str) -> None:
    with pytest.raises(FixFailed, match="does not run on a CUDA device"):
        load_fixes()[name].apply(workload()[0])


def test_whatever_a_step_raises_while_a_fix_is_applied_is_a_fix_that_failed() -> None:
    def body(fed: Tensor) -> None:
        raise KeyError("expert")

    made = Workload(body=body, feed=lambda: (torch.ones(1),), deliver=lambda: None, device="cpu")
    with pytest.raises(FixFailed, match="async-output: the step raised: KeyError"):
        apply_fixes(made, ["async-output"])


def test_gc_stays_out_of_the_step_and_is_as_it_was_between_steps() -> None:
    collected: list[str] = []
    inside = False

    def saw(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and inside:
            collected.append(f"generation {info['generation']}")

    def body() -> Tensor:
        nonlocal inside
        inside = True
        assert not gc.isenabled()
        for _ in range(5000):
            cycle: list[Any] = []
            cycle.append(cycle)
        inside = False
        return torch.ones(1)

    made = GcFreeze().apply(Workload(body=body, device="cpu"))
    gc.callbacks.append(saw)
    try:
        for _ in range(3):
            made.step()
            assert gc.isenabled()
    finally:
        gc.callbacks.remove(saw)
    assert collected == []


@pytest.mark.parametrize("part", ["before", "feed", "body", "after", "deliver"])
def test_gc_comes_back_whatever_part_of_a_step_raises(part: str) -> None:
    def raises(*_: Any) -> Any:
        raise ValueError("no")

    parts: dict[str, Any] = {"body": lambda *_: torch.ones(1), "deliver": lambda *_: None}
    made = GcFreeze().apply(Workload(**(parts | {part: raises}), device="cpu"))
    with pytest.raises(ValueError, match="no"):
        made.step()
    assert gc.isenabled()


class Eager(Compile):
    backend = "eager"  # traces and guards as Inductor's does, and generates nothing


@pytest.mark.parametrize("before", [(), (AsyncInput(), AsyncOutput())], ids=["plain", "async"])
def test_compile_traces_the_whole_body(before: tuple[Fix, ...]) -> None:
    proof, made, _ = proven(*before, Eager())
    assert proof.why is None
    assert made.costs["graph_breaks"] == 0
    assert made.costs["compile_ms"] > 0


def test_compile_takes_closures_and_dicts() -> None:
    def make() -> Workload:
        state = torch.zeros(3)

        def step() -> dict[str, Any]:
            state.add_(1)
            return {"logits": state * 2}

        return Workload(body=step, device="cpu")

    proof = prove(reference_of(make(), 5), Eager().apply(make()), steps=5)
    assert proof.why is None
    assert proof.steps == 5


def test_a_compiler_that_fails_is_a_fix_that_failed() -> None:
    class Broken(Compile):
        backend = "no-such-backend"

    with pytest.raises(FixFailed, match="cannot be compiled"):
        Broken().apply(workload()[0])


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_compile_with_inductor_rounds_otherwise_and_is_equal() -> None:
    proof, _, _ = proven(AsyncOutput(), Compile())
    assert proof.why is None
    assert proof.largest_difference < 1e-4


def test_variants_compile_apart() -> None:
    """More variants of one step than Dynamo compiles of one code object."""
    reference, _ = workload()
    for _ in range(10):
        made, _ = workload()
        assert prove(reference_of(reference, 3), Eager().apply(made), steps=3).equal
    from torch._dynamo.utils import counters

    assert not [reason for reason in counters["unimplemented"] if "limit" in reason]


def rows(batch: int) -> Workload:
    return Workload(
        body=lambda x: {"twice": x * 2, "sum": x.sum()},
        feed=lambda: (torch.zeros(batch, 3),),
        device="cpu",
    )


def test_buckets_route_pad_and_cut() -> None:
    buckets = Buckets(rows, [4, 1, 8, 2])
    assert [buckets.route(n).size for n in (1, 2, 3, 4, 5, 8)] == [1, 2, 4, 4, 8, 8]
    given = torch.arange(9.0).view(3, 3)
    output = buckets(given)
    assert torch.equal(output["twice"], given * 2)
    assert float(output["sum"]) == float(given.sum())  # padded with zeros
    buckets(torch.ones(4, 3))
    assert float(buckets(given)["sum"]) == float(given.sum())  # not with what was there before
    assert set(buckets.costs) == {1, 2, 4, 8}
    for size in (0, 9):
        with pytest.raises(ConfigError, match="no bucket for a batch of"):
            buckets.route(size)
    with pytest.raises(ConfigError, match="at least 1"):
        Buckets(rows, [])


def test_layers_are_those_of_the_longest_list_that_runs() -> None:
    loop = Loop()
    assert longest_list([loop]) == list(loop.layers)
    assert longest_list([torch.nn.Linear(1, 1)]) == []


def test_a_decider_that_cannot_be_compiled_leaves_the_rest_to_the_compiler() -> None:
    from hostgap.decoder.model import build_decoder
    from hostgap.decoder.workload import decoder_workload
    from hostgap.fixes.decode_kernels import decode_loop

    def made() -> Workload:
        return apply_fixes(decoder_workload(build_decoder("tiny")), ("async-input", "async-output"))

    plain, variant = made(), made()
    loop = decode_loop(variant.body)
    assert loop is not None
    opaque: Any = torch.compiler.disable
    loop.decide = opaque(loop.decide)  # type: ignore[method-assign]
    compiled = compile_body(variant, "test", backend="eager")
    proof = prove(reference_of(plain, 12), compiled, steps=12)
    assert proof.equal, proof.why
    assert proof.exact == proof.compared
    assert decode_loop(lambda: None) is None


def test_every_fix_is_documented_under_the_headings() -> None:
    import importlib

    fixes = load_fixes()
    assert len(fixes) == 11 + len(SHOWS_AS)
    for fix in fixes.values():
        doc = importlib.import_module(type(fix).__module__).__doc__ or ""
        found = [line[3:] for line in doc.splitlines() if line.startswith("## ")]
        assert tuple(found) == HEADINGS, fix.name
        assert fix.title
        assert fix.codes


def test_every_defect_has_a_fix_and_every_code_a_rule() -> None:
    from hostgap.diagnosis.registry import load_rules

    fixes, rules = load_fixes(), load_rules().rules
    assert {defect.fix for defect in DEFECTS.values()} <= set(fixes)
    assert {code for fix in fixes.values() for code in fix.codes} <= set(rules)
    for rule in rules.values():
        assert rule.fix is None or rule.code in fixes[rule.fix].codes
    generic = [fix for fix in fixes.values() if not isinstance(fix, UndoDefect)]
    answered = {code for fix in generic for code in fix.codes}
    either = {"HG109", "HG601"}  # a copy at the step's beginning, or one at its end
    assert {code for code in answered if rules[code].fix is None} == either


def test_undoing_a_defect_takes_it_out_of_the_variant() -> None:
    fixes = load_fixes()
    variant = Variant(defects=("eos_read", "gc_pressure"), fixes=("cuda-graph",))
    undone = fixes["eos_read"].on(variant, fixes)
    assert undone == Variant(defects=("gc_pressure",), fixes=("cuda-graph",))
    assert fixes["eos_read"].on(Variant(), fixes) is None


def names(start: tuple[str, ...], *more: str) -> tuple[str, ...] | None:
    fixes = load_fixes()
    variant: Variant | None = Variant(fixes=start)
    for name in more:
        assert variant is not None
        variant = fixes[name].on(variant, fixes)
    return None if variant is None else variant.fixes


@pytest.mark.parametrize(
    ("start", "more", "gives"),
    [
        ((), ("cuda-graph", "async-output"), ("async-output", "cuda-graph")),
        (("gc-freeze",), ("compile",), ("compile", "gc-freeze")),
        (("cuda-graph",), ("compile+cuda-graph",), ("compile+cuda-graph",)),
        (("compile-reduce-overhead",), ("cuda-graph",), None),
        (("cuda-graph",), ("cuda-graph",), None),
        (
            ("cuda-graph",),
            ("async-output", "async-input"),
            ("async-input", "async-output", "cuda-graph"),
        ),
    ],
)
def test_order_and_conflicts(
    start: tuple[str, ...], more: tuple[str, ...], gives: tuple[str, ...] | None
) -> None:
    assert names(start, *more) == gives


def test_names_are_checked() -> None:
    fixes = load_fixes()
    assert list(chosen(fixes, ["compile", "cuda-graph"])) == ["compile", "cuda-graph"]
    assert "compile" not in chosen(fixes, skip=["compile"])
    for call in (lambda: chosen(fixes, ["cuda-grahp"]), lambda: apply_fixes(rows(1), ["x-graph"])):
        with pytest.raises(ConfigError, match="no fix"):
            call()


def test_the_decoder_with_asynchronous_input_and_output() -> None:
    from hostgap.decoder.model import build_decoder
    from hostgap.decoder.workload import decoder_workload

    model = build_decoder("tiny", device="cpu")
    make: Callable[[], Workload] = lambda: decoder_workload(model, 2)  # noqa: E731
    fixed = apply_fixes(make(), ["async-input", "async-output", "gc-freeze"])
    proof = prove(reference_of(apply_fixes(make(), ()), 16), fixed, steps=16)
    assert proof.why is None
    assert proof.steps == 4 * 16


def test_the_documentation_names_every_fix() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "fixes.md").read_text(encoding="utf-8")
    assert not [name for name in load_fixes() if f"`{name}`" not in page]
