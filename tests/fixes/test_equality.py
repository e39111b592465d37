"""The proof of equality: what is equal passes, and each way to be subtly wrong is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import Tensor

from hostgap.errors import TargetError
from hostgap.fixes import equality
from hostgap.fixes.equality import Case, compare, prove, reference_of
from hostgap.fixes.kernels import kernel_difference
from hostgap.fixes.registry import apply_fixes
from hostgap.fixes.warm import warm_up
from hostgap.profiling.aside import Aside
from hostgap.profiling.workload import Workload
from tests.fixes.loops import Loop, workload


def proof_of(change: Callable[[Workload, Loop], Workload], **kwargs: Any) -> Any:
    """The proof of a loop whose workload was changed, against an unchanged one."""
    reference, _ = workload(**kwargs)
    made, host = workload(**kwargs)
    variant = change(apply_fixes(made, ()), host.loop)
    return prove(reference_of(apply_fixes(reference, ()), 20), variant, steps=20, tolerance=0.02)


def test_the_same_step_is_equal() -> None:
    proof = proof_of(lambda made, _: made)
    assert proof.equal
    assert proof.why is None
    assert (proof.steps, proof.cases) == (60, 3)
    assert proof.exact == proof.compared == 120
    assert proof.largest_difference == 0.0


def stale_input(made: Workload, _: Loop) -> Workload:
    """A graph whose static input nobody fills."""
    kept: list[Tensor] = []

    def body(fed: Tensor) -> Any:
        kept.append(fed)
        return made.body(kept[0])

    return replace(made, body=body)


def stale_output(made: Workload, _: Loop) -> Workload:
    """Each step gives the output of the step before."""
    kept: list[Any] = [(torch.zeros(2, dtype=torch.int64), Aside(torch.zeros(2, 61)))]

    def body(fed: Tensor) -> Any:
        kept.append(made.body(fed))
        return kept[-2]

    return replace(made, body=body)


def off_by_one(made: Workload, loop: Loop) -> Workload:
    def reset(case: int) -> None:
        assert made.reset is not None
        made.reset(case)
        loop.position.add_(1)

    return replace(made, reset=reset)


def wrong_mask(made: Workload, loop: Loop) -> Workload:
    """State that should be hidden is seen: what the last case left."""
    return replace(made, reset=lambda case: (loop.position.zero_(), loop.tokens.fill_(case * 7)))


def frozen_position(made: Workload, loop: Loop) -> Workload:
    """A Python number baked into a capture."""

    def body(fed: Tensor) -> Any:
        loop.position.fill_(0)
        return made.body(fed)

    return replace(made, body=body)


def reordered_delivery(made: Workload, _: Loop) -> Workload:
    held: list[Any] = []

    def download(output: Any) -> None:
        held.append(output[0].clone())
        if len(held) == 2:
            assert made.deliver is not None
            made.deliver(held[1])
            made.deliver(held[0])
            held.clear()

    return replace(made, download=download)


def lost_delivery(made: Workload, _: Loop) -> Workload:
    return replace(made, download=lambda _: None)


def not_a_number(made: Workload, _: Loop) -> Workload:
    def body(fed: Tensor) -> Any:
        tokens, logits = made.body(fed)
        return tokens, Aside(logits.tensor.masked_fill(logits.tensor > 0.5, float("nan")))

    return replace(made, body=body)


def other_dtype(made: Workload, _: Loop) -> Workload:
    def body(fed: Tensor) -> Any:
        tokens, logits = made.body(fed)
        return tokens.int(), logits

    return replace(made, body=body)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (stale_input, "case 0, step 1"),
        (stale_output, "case 0, step 0"),
        (off_by_one, "case 0, step 0"),
        (wrong_mask, "case 0, step 0"),
        (frozen_position, "case 0, step 1"),
        (reordered_delivery, "case 0, delivery of step 0"),
        (lost_delivery, "delivered 0 of 20 steps"),
        (not_a_number, "not a number"),
        (other_dtype, "torch.int32 instead of (2,), torch.int64"),
    ],
)
def test_wrong_fixes_are_caught(change: Callable[..., Workload], says: str) -> None:
    def dirty(made: Workload, loop: Loop) -> Workload:
        for layer in loop.layers:  # so that state that should be forgotten is there
            layer.state.fill_(1.0)  # type: ignore[operator, union-attr]
        return change(made, loop)

    proof = proof_of(dirty)
    assert not proof.equal
    assert says in (proof.why or "")


def test_without_reset_what_was_run_to_warm_up_is_left_out() -> None:
    def warmed(made: Workload, _: Loop) -> Workload:
        warm_up(made, 3)
        return made

    proof = proof_of(warmed, resets=False)
    assert proof.equal
    assert (proof.steps, proof.cases) == (20, 1)

    def hidden(made: Workload, _: Loop) -> Workload:
        made.step()  # a fix that does not say so
        return made

    assert not proof_of(hidden, resets=False).equal


def of(*outputs: tuple[Tensor, ...]) -> list[Case]:
    return [Case(0, list(outputs))]


def logits(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


def test_a_near_tie_is_accepted_where_the_logits_show_it_and_ends_the_case() -> None:
    near, far = logits([0.0, 9.99, 10.0]), logits([0.0, 5.0, 10.0])
    turned = logits([0.0, 10.0, 9.99])
    best, second = torch.tensor([2]), torch.tensor([1])
    follows = (torch.tensor([0]), far)
    other = (torch.tensor([1]), far)  # another text from here on
    old = of((best, far), (best, far), (best, near), follows)
    new = of((best, far), (best, far), (second, turned), other)
    proof = compare(old, new, 0.02)
    assert proof.equal
    assert (proof.steps, proof.exact, proof.compared) == (3, 2, 3)
    # not where the variant's own logits say otherwise
    assert not compare(old, of((best, far), (best, far), (second, near), other), 0.02).equal
    # nor where the second is clearly worse
    worse = compare(of((best, far)), of((second, far)), 0.02)
    assert worse.why == "case 0, step 0, output 0: 1 instead of 2"
    # nor where nothing shows that they are near
    assert not compare(of((best,)), of((second,)), 0.02).equal
    # nor where the logits say that neither was chosen from them
    assert not compare(of((torch.tensor([0]), near)), of((second, turned)), 0.02).equal
    # nor where the logits are too far apart
    apart = compare(of((best, near)), of((second, logits([0.0, 12.0, 9.0]))), 0.02)
    assert apart.why is not None
    assert "of its norm" in apart.why


def test_a_case_that_ends_at_once_proves_nothing() -> None:
    near, turned = logits([0.0, 10.0, 10.0]), logits([0.0, 9.99, 10.0])
    rest = [(torch.tensor([1]), near)] * 9
    proof = compare(
        of((torch.tensor([1]), near), *rest), of((torch.tensor([2]), turned), *rest), 0.02
    )
    assert proof.why == "only 1 of 10 steps could be compared"


@pytest.mark.parametrize("part", [1, 999, equality.PART])
def test_tolerance_is_relative_and_infinities_count(
    monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(equality, "PART", part)
    assert compare(of((logits([100.0, 1.0]),)), of((logits([100.0, 2.0]),)), 0.02).equal
    differs = compare(of((logits([100.0, 1.0]),)), of((logits([97.0, 1.0]),)), 0.02)
    assert differs.why == "case 0, step 0: differs by 0.03 of its norm, 0.02 allowed"
    many = torch.full((10_000,), 1.0)
    one_wrong = many.clone()
    one_wrong[17] = 1.5
    lone = compare(of((many,)), of((one_wrong,)), 0.02)
    assert lone.why == "case 0, step 0: one value differs by 0.5 of the largest, 0.04 allowed"
    masked = logits([1.0, float("-inf")])
    assert compare(of((masked,)), of((masked,)), 0.02).equal
    assert not compare(of((masked,)), of((logits([1.0, 0.0]),)), 0.02).equal
    assert not compare(of((masked,)), of((logits([1.0, float("inf")]),)), 0.02).equal
    assert compare(of((logits([0.0]),)), of((logits([0.0]),)), 0.02).equal


def test_a_tolerance_that_is_no_number_allows_nothing() -> None:
    assert not compare(of((logits([1.0]),)), of((logits([100.0]),)), float("nan")).equal


def test_no_output_is_no_proof() -> None:
    assert compare(of((), ()), of((), ()), 0.02).why == (
        "the step has no output that could be compared"
    )


def test_a_variant_that_raises_is_not_equal_and_a_reference_that_does_is_an_error() -> None:
    def raises(made: Workload, _: Loop) -> Workload:
        def body(fed: Tensor) -> Any:
            raise IndexError("no such expert")

        return replace(made, body=body)

    proof = proof_of(raises)
    assert (proof.why or "").startswith("it raised: IndexError: no such expert in body at ")
    broken = raises(workload()[0], Loop())
    with pytest.raises(TargetError, match="the step raised: IndexError"):
        reference_of(broken)


def test_outputs_as_dicts_and_closures() -> None:
    def make() -> Workload:
        state = torch.zeros(3)

        def step() -> dict[str, Any]:
            state.add_(1)
            return {"logits": state * 2, "past": object(), "hidden": [state, (state,)]}

        return Workload(body=step, device="cpu")

    proof = prove(reference_of(make(), 4), make(), steps=4)
    assert proof.equal
    assert proof.steps == 4


def test_kernel_difference() -> None:
    before = {"gemm": 4.0, "add": 10.0}
    assert kernel_difference(before, {"gemm": 4.0, "add": 10.1}) is None
    assert kernel_difference(before, {"gemm": 4.0, "fused": 2.0}) == (
        "add 10 -> 0, fused 0 -> 2 a step"
    )


def test_a_variant_that_changes_what_it_shares_with_the_reference_is_caught() -> None:
    shared = torch.ones(3)

    def make() -> Workload:
        return Workload(body=lambda: shared * 2, device="cpu")

    before = reference_of(make(), 4)
    shared.neg_()
    assert not prove(before, make(), steps=4).equal


def test_deliveries_of_nothing_prove_nothing() -> None:
    def of_nothing() -> list[Case]:
        return [Case(0, [() for _ in range(4)], [() for _ in range(4)])]

    assert compare(of_nothing(), of_nothing(), 0.02).why == (
        "the step has no output that could be compared"
    )


def test_a_near_tie_at_the_last_step_is_one_too() -> None:
    near, turned = logits([0.0, 9.99, 10.0]), logits([0.0, 10.0, 9.99])
    best, second = torch.tensor([2]), torch.tensor([1])
    steps = [(best, near)] * 3
    old = [Case(0, [*steps, (best, near)], [(best,)] * 4)]
    new = [Case(0, [*steps, (second, turned)], [(best,)] * 3 + [(second,)])]
    assert compare(old, new, 0.02).equal
    late = [Case(0, [*steps, (best, near)], [(best,)] * 3 + [(second,)])]
    assert not compare(old, late, 0.02).equal
