"""What is measured and fixed: a step, and what of it happens on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(slots=True)
class Workload:
    """A step that is done again and again, in parts that can be treated apart.

    `step` runs `before`, uploads what `feed` gives, runs `body` on it, runs `after`, and hands the
    output to `deliver` on the host. Only `body` is needed. As it stands each part is done the
    plain, blocking way; fixes (`hostgap.fixes`) replace them one by one.

    Attributes:
        body: orders the GPU's work: device tensors in (what `feed` gave, uploaded), an output
            (a tensor, a tuple of tensors, or None) out. What is compiled and captured. What of its
            output stays on the device is wrapped in `hostgap.Aside`.
        feed: the host's inputs of the next step: a tuple of CPU tensors, of the same shapes and
            dtypes each time.
        deliver: takes the step's output (without what is put aside) as CPU tensors, in the order
            of the steps.
        before, after: host work around the body that is neither captured nor compiled; `after`
            gets the body's output, on the device.
        reset: begins case `i` anew, so that the same steps give the same outputs. Without it a
            fresh workload is built where one must start over.
        cases: how many different beginnings (prompts) `reset` knows.
        room: steps that fit between two calls of `reset`; None for any number.
        modules: what the body runs, for fixes that treat a step module by module.
        device: where the body runs.
        tokens: that a step makes, over all requests of its batch.
        flush: waits for what is still on its way to `deliver`, and delivers it; set by fixes.
        costs: name -> figure of what fixes did at start-up, such as `capture_ms`, `graph_mib`.
    """

    body: Callable[..., Any]
    feed: Callable[[], tuple[Tensor, ...]] | None = None
    deliver: Callable[..., None] | None = None
    before: Callable[[], None] | None = None
    after: Callable[[Any], None] | None = None
    reset: Callable[[int], None] | None = None
    cases: int = 1
    room: int | None = None
    modules: Sequence[torch.nn.Module] = ()
    device: str = "cuda"
    tokens: int | None = None
    upload: Callable[[], tuple[Tensor, ...]] | None = None
    download: Callable[[Any], None] | None = None
    flush: Callable[[], None] | None = None
    costs: dict[str, float] = field(default_factory=dict)

    def step(self) -> Any:
        """One step; returns the body's output, on the device. It may be overwritten by the next."""
        if self.before is not None:
            self.before()
        output = self.body(*self.uploaded())
        if self.after is not None:
            self.after(output)
        self.hand_over(output)
        return output

    def uploaded(self) -> tuple[Tensor, ...]:
        """The inputs of the next step, on the device."""
        if self.upload is not None:
            return self.upload()
        if self.feed is None:
            return ()
        return tuple(tensor.to(self.device) for tensor in self.feed())

    def hand_over(self, output: Any) -> None:
        """What a step ends with: its output goes to the host, where it is delivered."""
        if self.download is not None:
            self.download(output)
        elif self.deliver is not None:
            self.deliver(*(tensor.cpu() for tensor in tensors(output)))


def tensors(output: Any) -> tuple[Tensor, ...]:
    """The tensors of a step's output: of a tensor itself, of tuples, lists and dicts all inside."""
    import torch

    if isinstance(output, torch.Tensor):
        return (output,)
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return tuple(tensor for item in output for tensor in tensors(item))
    return ()
