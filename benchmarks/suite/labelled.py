"""What variants of the suite are made of: labels, the bench with one small decode step, companions.

Most variants replay the decoder's whole step as one CUDA graph, so that the GPU is busy and nothing
else waits, and add one fault. Each fault stands in a small function of its own, whose name is the
site that a trace must give. A variant is a function that takes a `Bench` and returns a step:

    @variant("HG101", site="read_eos", per_step=1)
    def scalar_read(bench: Bench) -> Step: ...

What a label says stands at `Label`. Controls have no code: nothing above `info` may be found.

Needs torch only inside functions that make steps; labels can be read without it.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from hostgap.decoder.generate import GreedyDecoder
    from hostgap.decoder.model import Decoder

Step = Callable[[], object]

STACK, PLAIN, NSYS = FORMATS = ("kineto_stack", "kineto", "nsys")
EOS = 2
BATCH = 8
MB = 1 << 20

# Why a format holds no evidence of a fault.
NO_OPS = "without framework ops it looks like something else"
NO_STACK = "without Python frames nothing says what the host did"
NO_GC = "nothing marks a collection that Python frames do not show"
NO_OS = "recorded without calls of the operating system, a wait looks like work of the host"
NO_SITE = "without a place, uploads of one size cannot be told apart"


@dataclass(frozen=True)
class Label:
    """What is true of a variant.

    Attributes:
        name: of the variant.
        what: its one-line description.
        code: of the rule that must find the fault, None for a control.
        file: the module of the suite that it stands in.
        site: the function there in which the fault lies.
        per_step: how often a step commits it; None where a count means little.
        also: code -> why a finding of that rule is true here as well. "nsys:HG101" holds for one
            format only.
        missing: format -> why the fault leaves no evidence in it.
        cuda: whether the variant can be made on a GPU only.
        steps: how many steps to record.
        slack: how many occurrences the whole window may have fewer, or more, than `per_step` says:
            the last step's fault may need a next step, the first step's may find nothing to do.
    """

    name: str
    what: str
    file: str
    code: str | None
    site: str | None
    per_step: float | None
    also: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    cuda: bool = False
    steps: int = 6
    slack: int = 0

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats in which there is evidence."""
        return tuple(name for name in FORMATS if name not in self.missing)

    def to_json(self) -> dict[str, Any]:
        """As it stands in labels.json."""
        return {
            "what": self.what,
            "code": self.code,
            "file": self.file if self.site else None,
            "site": self.site,
            "per_step": self.per_step,
            "slack": self.slack,
            "formats": list(self.formats),
            "also": dict(self.also),
            "missing": dict(self.missing),
        }


@dataclass(frozen=True)
class Variant:
    """A label and the function that makes the step."""

    label: Label
    make: Callable[[Bench], Step]


VARIANTS: dict[str, Variant] = {}


def variant(
    code: str | None = None,
    *,
    site: str | None = None,
    per_step: float | None = None,
    also: Mapping[str, str] | None = None,
    missing: Mapping[str, str] | None = None,
    cuda: bool = False,
    steps: int = 6,
    slack: int = 0,
) -> Callable[[Callable[[Bench], Step]], Callable[[Bench], Step]]:
    """Register a variant under the name of its function."""

    def register(make: Callable[[Bench], Step]) -> Callable[[Bench], Step]:
        what = (make.__doc__ or "").strip().splitlines()[0]
        label = Label(
            make.__name__,
            what,
            f"{make.__module__}.py",
            code,
            site,
            per_step,
            also or {},
            missing or {},
            cuda,
            steps,
            slack,
        )
        VARIANTS[label.name] = Variant(label, make)
        return make

    return register


# Codes of the catalogue that no variant commits, and why.
UNLABELLED: dict[str, str] = {
    "HG307": "a launch call hides behind its own replay unless a sync has drained the queue",
    "HG308": "needs measurements of the step with and without its graph (hostgap profile)",
    "HG309": "needs the reason why a graph was skipped (hostgap profile)",
    "HG310": "needs the annotations of a serving engine with several batch sizes",
    "HG311": "needs a drafter",
    "HG506": "needs scheduling events, and a machine whose cores are taken",
    "HG508": "needs a container with a CPU quota",
    "HG512": "needs a serving engine without requests",
    "HG701": "needs several ranks",
    "HG702": "needs several ranks",
    "HG901": "about the trace, not the step",
    "HG902": "about the trace, not the step",
    "HG903": "about the trace, not the step",
    "HG904": "about the trace, not the step",
    "HG905": "about the trace, not the step",
    "HG906": "about the trace, not the step",
}

# --- companions: findings that are as true as the one expected -------------------------------

# A host that waits launches the next step only afterwards, and its launch call, which hid behind
# the GPU's work before, lies open.
DRAINS = {
    "HG112": "the next step is launched only after the wait, although it needs nothing of it",
    "HG307": "behind a drained queue the graph's launch call lies open",
}
# What a step launches outside its graph is uncaptured, however little it is.
OUTSIDE = {"HG301": "the fault's own kernels are launched outside the graph"}
# The bytes of an upload cannot be seen in a trace; same place and size is all there is.
SAME_SIZE = {"HG110": "the same size from the same place every step: likely constant"}
UPLOAD = {
    **SAME_SIZE,
    "HG604": "the upload could run while the step before is still computed",
}
# The decoder as it is written: every pattern of a first version is really there.
NAIVE = {
    "HG201": "a layer is 75 launches of short kernels",
    "HG202": "norms and rotary embedding are chains of pointwise kernels",
    "HG203": "query, key and value, and gate and up, are separate projections",
    "HG204": "attention is matmul, mask, softmax, matmul",
    "HG206": "the mask, repeated heads and cache writes are copies",
    "HG207": "every layer launches the same kernels",
    "HG301": "nothing of it is captured",
    "HG504": "the host is busy dispatching ops",
    "HG505": "the host is busy in Python between ops",
}


# --- the bench -------------------------------------------------------------------------------


class Bench:
    """A small decoder, warmed up, and what variants make of it.

    On a CPU `captured` runs eagerly, so that steps can be tried without a GPU.

    Attributes:
        device: "cuda" or "cpu".
        decoder: with its caches and the tokens and positions it updates.
        logits: [B, V] of the captured step, valid after a replay.
        freeze: whether the recorder may take what lives so far out of Python's garbage collection,
            whose pauses would be faults of their own.
    """

    freeze = True

    def __init__(self, device: str | None = None) -> None:
        import torch

        from hostgap.decoder.generate import GreedyDecoder
        from hostgap.decoder.model import Decoder, DecoderConfig

        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.cuda = self.device == "cuda"
        config = DecoderConfig(
            vocab_size=8192 if self.cuda else 64,
            n_layers=4 if self.cuda else 2,
            hidden=1024 if self.cuda else 32,
            n_heads=16 if self.cuda else 4,
            n_kv_heads=8 if self.cuda else 2,
            head_dim=64 if self.cuda else 8,
            intermediate=2816 if self.cuda else 64,
            max_seq_len=512,
        )
        torch.manual_seed(0)
        with torch.device(self.device):
            model = Decoder(config)
        dtype = torch.bfloat16 if self.cuda else torch.float32
        for weight in model.parameters():
            weight.data = weight.data.to(dtype)  # and not the rotary frequencies
        self.model: Decoder = model.requires_grad_(False).eval()
        self.config = config
        self.dtype = dtype
        self.decoder: GreedyDecoder = GreedyDecoder(self.model, BATCH)
        self.decoder.prefill(torch.arange(1, 17).expand(BATCH, 16))
        self.logits: Tensor = torch.zeros(BATCH, config.vocab_size, device=self.device, dtype=dtype)
        self._closers: list[Callable[[], object]] = []

    def on_close(self, closer: Callable[[], object]) -> None:
        """Have `closer` called when the variant is done: to end threads and processes."""
        self._closers.append(closer)

    def close(self) -> None:
        """End what variants have started."""
        for closer in self._closers:
            closer()

    def captured(self, work: Callable[[], Any], stream: Any = None) -> tuple[Step, Any]:
        """Capture `work` in a CUDA graph: its replay, and what `work` returned.

        Args:
            work: to be captured; run three times before.
            stream: to capture on; one of its own by default.
        """
        import torch

        if not self.cuda:
            return work, work()
        side = stream or torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # lazy initialisation must happen before the capture
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            output = work()
        return graph.replay, output

    def captured_step(self) -> Step:
        """The whole decode step as one graph."""
        replay, self.logits = self.captured(self.decoder.step)
        return replay

    def tensor(self, *shape: int, dtype: Any = None) -> Tensor:
        """A random tensor on the device."""
        import torch

        return torch.randn(*shape, device=self.device, dtype=dtype or self.dtype)

    def bytes(self, size: int) -> Tensor:
        """A uint8 tensor of `size` bytes on the device."""
        import torch

        return torch.zeros(size, dtype=torch.uint8, device=self.device)

    def pinned(self, *shape: int, dtype: Any = None) -> Tensor:
        """Zeros in pinned host memory."""
        import torch

        return torch.zeros(*shape, dtype=dtype or torch.int64, pin_memory=self.cuda)

    @property
    def eager(self) -> Decoded:
        """The decoder's parts, to be run one by one without a graph."""
        return Decoded(self.decoder)


@dataclass(frozen=True)
class Decoded:
    """The decoder's step in parts."""

    decoder: GreedyDecoder

    def layers(self, x: Tensor, low: int, high: int) -> Tensor:
        """Layers `low` to `high` of the model."""
        pairs = list(zip(self.decoder.model.layers, self.decoder.caches, strict=True))
        for layer, cache in pairs[low:high]:
            x = layer(x, self.decoder.positions, cache)
        return x

    def embedded(self) -> Tensor:
        """The tokens' embeddings."""
        return self.decoder.model.embed(self.decoder.tokens)

    def choose(self, x: Tensor) -> Tensor:
        """Logits and the next token."""
        logits = self.decoder.model.lm_head(self.decoder.model.norm(x))
        self.decoder.tokens.copy_(logits.argmax(dim=-1))
        self.decoder.positions.add_(1)
        return logits[:, -1]


def think(rounds: int) -> int:
    """Work in Python that calls nothing: about 40 ns a round."""
    total = 0
    for i in range(rounds):
        total += i & 7
    return total


def cudart() -> ctypes.CDLL:
    """The CUDA runtime that torch has loaded."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    found = re.search(r"\S*libcudart[^\s]*\.so[^\s]*", maps)
    return ctypes.CDLL(found[0] if found else "libcudart.so")


def must(status: int) -> None:
    """Raise for an error of the CUDA runtime."""
    if status:
        raise RuntimeError(f"CUDA error {status}")


# Inductor's default cache folder carries the user's name, which would then stand in frames of
# compiled code. To be set before torch is imported.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "inductor"))
# Without a pool of compilers, whose processes would outlive a variant that is stopped.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
