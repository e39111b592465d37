"""One small decode step in many variants: each with a single fault and its label, and controls.

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
import gc
import itertools
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from hostgap.decoder.generate import GreedyDecoder
    from hostgap.decoder.model import Decoder, LayerCache

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
        site: the function in variants.py in which the fault lies.
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
            "file": "variants.py" if self.site else None,
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


# --- HG1 the host waits for the GPU ----------------------------------------------------------


def read_eos(tokens: Tensor) -> bool:
    return tokens[0, 0].item() == EOS


@variant("HG101", site="read_eos", per_step=1, also=DRAINS)
def scalar_read(bench: Bench) -> Step:
    """A token is read back every step to test for the end."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        read_eos(bench.decoder.tokens)

    return step


def branch_on_finished(finished: Tensor) -> bool:
    return bool(finished.any())


@variant("HG101", site="branch_on_finished", per_step=1, also={**DRAINS, **OUTSIDE})
def bool_branch(bench: Bench) -> Step:
    """The host branches on a condition that the GPU computes."""
    replay = bench.captured_step()
    finished = bench.decoder.tokens == EOS

    def step() -> None:
        replay()
        branch_on_finished(finished)

    return step


def read_every_row(tokens: Tensor) -> list[int]:
    read = []
    for row in range(BATCH):
        read.append(int(tokens[row, 0]))  # noqa: PERF401  a comprehension is a frame of its own
    return read


@variant("HG101", site="read_every_row", per_step=BATCH, also=DRAINS)
def scalar_reads(bench: Bench) -> Step:
    """Every row's token is read back on its own."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        read_every_row(bench.decoder.tokens)

    return step


def download_tokens(tokens: Tensor) -> Tensor:
    return tokens.cpu()


@variant(
    "HG102",
    site="download_tokens",
    per_step=1,
    also={**DRAINS, "HG604": "the download could run while the next step is computed"},
)
def tensor_download(bench: Bench) -> Step:
    """The tokens are copied to the host into pageable memory."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        download_tokens(bench.decoder.tokens)

    return step


def list_tokens(tokens: Tensor) -> list[list[int]]:
    return tokens.tolist()


@variant(
    "HG102",
    site="list_tokens",
    per_step=1,
    also={**DRAINS, "HG604": "the download could run while the next step is computed"},
)
def tolist(bench: Bench) -> Step:
    """The tokens are read back as a list."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        list_tokens(bench.decoder.tokens)

    return step


def select_unfinished(logits: Tensor, unfinished: Tensor) -> Tensor:
    return logits[unfinished]


# In a plain export the size of a mask is a read of eight bytes like any other.
SIZE_READ = {"nsys:HG101": "without framework ops the read of a size is the read of a scalar"}


@variant(
    "HG103",
    site="select_unfinished",
    per_step=1,
    also={**DRAINS, **OUTSIDE, **SIZE_READ},
    missing={NSYS: NO_OPS},
)
def mask_select(bench: Bench) -> Step:
    """Rows are chosen by a mask, so the host must know how many there are."""
    replay = bench.captured_step()
    unfinished = bench.decoder.tokens[:, 0] != EOS

    def step() -> None:
        replay()
        select_unfinished(bench.logits, unfinished)

    return step


def find_unfinished(unfinished: Tensor) -> Tensor:
    return unfinished.nonzero()


@variant(
    "HG103",
    site="find_unfinished",
    per_step=1,
    also={**DRAINS, **OUTSIDE, **SIZE_READ},
    missing={NSYS: NO_OPS},
)
def nonzero(bench: Bench) -> Step:
    """The rows that go on are listed by nonzero."""
    replay = bench.captured_step()
    unfinished = bench.decoder.tokens[:, 0] != EOS

    def step() -> None:
        replay()
        find_unfinished(unfinished)

    return step


def upload_slots(slots: list[int], device: str) -> Tensor:
    import torch

    return torch.tensor(slots, device=device)


@variant("HG104", site="upload_slots", per_step=1, also={**DRAINS, **UPLOAD})
def list_upload(bench: Bench) -> Step:
    """A list that changes every step becomes a tensor on the GPU."""
    replay = bench.captured_step()
    count = itertools.count()

    def step() -> None:
        replay()
        upload_slots([next(count)] * 64, bench.device)

    return step


def upload_positions(position: int, device: str) -> Tensor:
    import torch

    return torch.arange(position, position + 64).to(device)


@variant("HG104", site="upload_positions", per_step=1, also={**DRAINS, **UPLOAD})
def positions_upload(bench: Bench) -> Step:
    """Positions are built on the CPU and uploaded."""
    replay = bench.captured_step()
    count = itertools.count()

    def step() -> None:
        replay()
        upload_positions(next(count), bench.device)

    return step


def upload_pinned(host: Tensor, device: str) -> Tensor:
    return host.to(device)


@variant("HG105", site="upload_pinned", per_step=1, also={**DRAINS, **UPLOAD}, cuda=True)
def pinned_upload(bench: Bench) -> Step:
    """An upload from pinned memory that blocks all the same."""
    replay = bench.captured_step()
    host = bench.pinned(1024)

    def step() -> None:
        replay()
        upload_pinned(host, bench.device)

    return step


def synchronize_device() -> None:
    import torch

    torch.cuda.synchronize()


@variant("HG106", site="synchronize_device", per_step=1, also=DRAINS, cuda=True)
def device_synchronize(bench: Bench) -> Step:
    """The device is synchronized after every step."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        synchronize_device()

    return step


def synchronize_stream() -> None:
    import torch

    torch.cuda.current_stream().synchronize()


@variant("HG107", site="synchronize_stream", per_step=1, also=DRAINS, cuda=True)
def stream_synchronize(bench: Bench) -> Step:
    """The stream is synchronized after every step."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        synchronize_stream()

    return step


def wait_for_event(event: torch.cuda.Event) -> None:
    event.synchronize()


@variant("HG107", site="wait_for_event", per_step=1, also=DRAINS, cuda=True)
def event_synchronize(bench: Bench) -> Step:
    """The host waits for an event recorded after the step."""
    import torch

    replay = bench.captured_step()
    event = torch.cuda.Event()

    def step() -> None:
        replay()
        event.record()
        wait_for_event(event)

    return step


def free_scratch(runtime: ctypes.CDLL, pointer: ctypes.c_void_p) -> None:
    must(runtime.cudaFree(pointer))


@variant(
    "HG108",
    site="free_scratch",
    per_step=1,
    also={**DRAINS, "HG401": "the buffer that is freed was allocated in the step, too"},
    cuda=True,
    slack=1,
)
def implicit_sync(bench: Bench) -> Step:
    """A raw device buffer is freed in the step, which drains the device."""
    replay = bench.captured_step()
    runtime = cudart()

    def step() -> None:
        pointer = ctypes.c_void_p()
        must(runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(8 * MB)))
        replay()
        free_scratch(runtime, pointer)

    return step


PAGEABLE = {
    "HG602": "pageable memory is copied at a fraction of the link's speed",
    "HG601": "the compute stream waits while it is copied",
}


def upload_pageable_async(host: Tensor, device: str) -> Tensor:
    return host.to(device, non_blocking=True)


@variant("HG109", site="upload_pageable_async", per_step=1, also={**DRAINS, **UPLOAD, **PAGEABLE})
def pageable_upload(bench: Bench) -> Step:
    """An upload asked for without blocking, from pageable memory."""
    import torch

    replay = bench.captured_step()
    host = torch.zeros(4 * MB, dtype=torch.uint8)

    def step() -> None:
        replay()
        upload_pageable_async(host, bench.device)

    return step


def download_pageable_async(host: Tensor, values: Tensor) -> Tensor:
    return host.copy_(values, non_blocking=True)


@variant(
    "HG109",
    site="download_pageable_async",
    per_step=1,
    also={**DRAINS, **PAGEABLE, "HG604": "the output could be copied during the next step"},
)
def pageable_download(bench: Bench) -> Step:
    """A download asked for without blocking, into pageable memory."""
    import torch

    replay = bench.captured_step()
    values = bench.bytes(4 * MB)
    host = torch.zeros(4 * MB, dtype=torch.uint8)

    def step() -> None:
        replay()
        download_pageable_async(host, values)

    return step


STOP_WORDS = list(range(512))


def upload_stop_words(device: str) -> Tensor:
    import torch

    return torch.tensor(STOP_WORDS, device=device)


@variant(
    "HG110",
    site="upload_stop_words",
    per_step=1,
    also={
        **DRAINS,
        "HG104": "the upload blocks, whatever it holds",
        "HG604": UPLOAD["HG604"],
    },
    missing={NSYS: NO_SITE},
)
def constant_upload(bench: Bench) -> Step:
    """A list that never changes is uploaded every step."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        upload_stop_words(bench.device)

    return step


def poll_event(event: torch.cuda.Event) -> None:
    while not event.query():
        pass


@variant("HG111", site="poll_event", also=DRAINS, cuda=True)
def poll(bench: Bench) -> Step:
    """The host asks in a loop whether an event has happened."""
    import torch

    replay = bench.captured_step()
    event = torch.cuda.Event()

    def step() -> None:
        replay()
        event.record()
        poll_event(event)

    return step


def finish_before_next(event: torch.cuda.Event) -> None:
    event.synchronize()


def detokenize(tokens: Tensor) -> int:
    return think(6_000) + int(tokens[0])


@variant(
    "HG112",
    site="finish_before_next",
    per_step=1,
    also={
        "HG107": "what the host waits for is an event",
        "HG307": "behind a drained queue the graph's launch call lies open",
        "HG502": "text is made of the tokens before the next step is launched",
        "HG505": "and that is Python",
        "HG604": "the output could be copied during the next step",
    },
    cuda=True,
    slack=1,
)
def overlap_broken(bench: Bench) -> Step:
    """The output of a step is waited for and handled before the next is launched."""
    import torch

    replay = bench.captured_step()
    event = torch.cuda.Event()
    host = bench.pinned(BATCH, 1)

    def step() -> None:
        replay()
        host.copy_(bench.decoder.tokens, non_blocking=True)
        event.record()
        finish_before_next(event)
        detokenize(host)

    return step


# --- HG2 too many launches -------------------------------------------------------------------


def decode_eagerly(parts: Decoded, layers: int) -> Tensor:
    return parts.choose(parts.layers(parts.embedded(), 0, layers))


@variant(
    "HG201",
    site="decode_eagerly",
    also={code: why for code, why in NAIVE.items() if code != "HG201"},
)
def launch_storm(bench: Bench) -> Step:
    """Every kernel of the step is launched on its own."""
    parts, layers = bench.eager, bench.config.n_layers

    def step() -> None:
        decode_eagerly(parts, layers)

    return step


def rotate_and_norm(x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor) -> Tensor:
    for _ in range(4):
        first, second = x.chunk(2, dim=-1)
        x = first.repeat(1, 2) * cos + second.repeat(1, 2) * sin
        x = x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight
    return x


@variant(
    "HG202",
    site="rotate_and_norm",
    also={
        **OUTSIDE,
        "HG201": "the chain is forty launches of short kernels",
        "HG206": "two copies of half the heads a round",
        "HG207": "four rounds launch the same kernels",
        "HG302": "the chain splits the step in two graphs",
        "HG305": "its result is copied into the second graph's input",
        "HG504": "the host is busy dispatching the chain",
        "HG505": "and in the Python between its ops",
    },
)
def pointwise_chain(bench: Bench) -> Step:
    """Between two captured halves a chain of pointwise kernels runs on its own."""
    parts, half = bench.eager, bench.config.n_layers // 2
    size = bench.config.hidden
    first, x = bench.captured(lambda: parts.layers(parts.embedded(), 0, half))
    cos, sin, weight = (bench.tensor(BATCH, size) for _ in range(3))
    out = x.clone()
    second, _ = bench.captured(lambda: parts.choose(parts.layers(out, half, bench.config.n_layers)))

    def step() -> None:
        first()
        out.copy_(rotate_and_norm(x[:, 0], cos, sin, weight)[:, None])
        second()

    return step


BLOCKS = 8  # of projections, attention or feed-forward outside the graph
BLOCK_PARTS = {
    **OUTSIDE,
    "HG201": "eight blocks are dozens of launches of short kernels",
    "HG207": "eight blocks launch the same kernels",
    "HG504": "the host is busy dispatching the blocks",
    "HG505": "and in the Python between their ops",
}


def project_qkv(x: Tensor, weights: list[Tensor]) -> tuple[Tensor, ...]:
    from torch.nn import functional

    query, key, value = weights
    return functional.linear(x, query), functional.linear(x, key), functional.linear(x, value)


def mix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    from torch.nn import functional

    heads = (BATCH, 1, 4, -1)
    q, k, v = (t.view(heads).transpose(1, 2) for t in (query, key, value))
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(BATCH, -1)


@variant(
    "HG203",
    site="project_qkv",
    per_step=BLOCKS,
    also=BLOCK_PARTS,
    missing={NSYS: "without ops or modules, projections are matrix products in a row"},
)
def split_projection(bench: Bench) -> Step:
    """Query, key and value are three matrix products of one input."""
    replay = bench.captured_step()
    size = bench.config.hidden
    weights = [bench.tensor(size, size) / size**0.5 for _ in range(3)]
    x = bench.tensor(BATCH, size)

    def step() -> None:
        replay()
        y = x
        for _ in range(BLOCKS):
            y = mix(*project_qkv(y, weights))

    return step


def attend_unfused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = query @ key.transpose(-2, -1) * 0.125
    return (scores + mask).softmax(dim=-1) @ value


@variant(
    "HG204",
    site="attend_unfused",
    per_step=BLOCKS,
    also={**BLOCK_PARTS, "HG202": "scale, mask and softmax are a chain of pointwise kernels"},
)
def unfused_attention(bench: Bench) -> Step:
    """Attention is written as matmul, mask, softmax, matmul."""
    replay = bench.captured_step()
    heads, size = bench.config.n_heads, bench.config.head_dim
    key, value = (bench.tensor(BATCH, heads, 512, size) for _ in range(2))
    query = bench.tensor(BATCH, heads, 1, size)
    mask = bench.tensor(1, 1, 1, 512)

    def step() -> None:
        replay()
        x = query
        for _ in range(BLOCKS):
            x = attend_unfused(x, key, value, mask)

    return step


def feed_forward_unfused(x: Tensor, up: Tensor, bias: Tensor, down: Tensor) -> Tensor:
    from torch.nn import functional

    return functional.gelu(x @ up + bias) @ down


@variant("HG205", site="feed_forward_unfused", per_step=BLOCKS, also=BLOCK_PARTS)
def bias_gelu(bench: Bench) -> Step:
    """Bias and GELU are kernels of their own behind a matrix product."""
    replay = bench.captured_step()
    size = bench.config.hidden
    up, down = (bench.tensor(size, size) / size**0.5 for _ in range(2))
    bias = bench.tensor(size)
    x = bench.tensor(BATCH * 16, size)

    def step() -> None:
        replay()
        y = x
        for _ in range(BLOCKS):
            y = feed_forward_unfused(y, up, bias, down)

    return step


def write_slots(cache: Tensor, rows: Tensor) -> None:
    for slot in range(len(rows)):
        cache[slot].copy_(rows[slot])


@variant(
    "HG206",
    site="write_slots",
    per_step=96,
    also={
        **OUTSIDE,
        "HG201": "the copies are a hundred launches",
        "HG207": "each is like the one before",
        "HG504": "the host is busy dispatching them",
        "HG505": "and in the Python between them",
    },
)
def tiny_copies(bench: Bench) -> Step:
    """A cache is written slot by slot."""
    replay = bench.captured_step()
    cache, rows = bench.tensor(96, 512), bench.tensor(96, 512)

    def step() -> None:
        replay()
        write_slots(cache, rows)

    return step


def upload_fields(fields: list[Tensor], targets: list[Tensor]) -> None:
    for source, target in zip(fields, targets, strict=True):
        target.copy_(source, non_blocking=True)


@variant(
    "HG206",
    site="upload_fields",
    per_step=64,
    also={
        **OUTSIDE,
        **UPLOAD,
        "HG201": "the copies are dozens of launches",
        "HG504": "the host is busy dispatching them",
        "HG505": "and in the Python between them",
        "HG601": "the compute stream waits while they are copied",
    },
    cuda=True,
)
def tiny_uploads(bench: Bench) -> Step:
    """A batch's fields are uploaded one by one."""
    import torch

    replay = bench.captured_step()
    fields = [bench.pinned(BATCH) for _ in range(64)]
    targets = [torch.zeros(BATCH, dtype=torch.int64, device=bench.device) for _ in fields]

    def step() -> None:
        upload_fields(fields, targets)
        replay()

    return step


def run_blocks(x: Tensor, weights: list[Tensor]) -> Tensor:
    for weight in weights:
        x = (x @ weight).relu()
        x = x / x.amax()
    return x


@variant(
    "HG207",
    site="run_blocks",
    also={
        **{code: why for code, why in BLOCK_PARTS.items() if code != "HG207"},
        "HG202": "what follows each product is a chain of pointwise kernels",
        "HG205": "activations are kernels of their own",
    },
)
def repeated_chain(bench: Bench) -> Step:
    """The same few kernels are launched again for each of many blocks."""
    replay = bench.captured_step()
    size = bench.config.hidden
    weights = [bench.tensor(size, size) / size**0.5 for _ in range(24)]
    x = bench.tensor(BATCH, size)

    def step() -> None:
        replay()
        run_blocks(x, weights)

    return step


# --- HG3 not captured ------------------------------------------------------------------------


def decode_rest(parts: Decoded, x: Tensor, low: int, high: int) -> Tensor:
    return parts.choose(parts.layers(x, low, high))


@variant(
    "HG301",
    site="decode_rest",
    also={code: why for code, why in NAIVE.items() if code != "HG301"},
)
def half_captured(bench: Bench) -> Step:
    """The first half of the layers is a graph, the second is launched kernel by kernel."""
    parts, layers = bench.eager, bench.config.n_layers
    half = layers // 2
    first, x = bench.captured(lambda: parts.layers(parts.embedded(), 0, half))

    def step() -> None:
        first()
        decode_rest(parts, x, half, layers)

    return step


def replay_pieces(pieces: list[Step]) -> None:
    for piece in pieces:
        think(4_000)
        piece()


@variant(
    "HG302",
    site="replay_pieces",
    also={
        "HG502": "the host works between the pieces",
        "HG505": "and that in Python",
        "HG112": "the GPU waits between the pieces although nothing depends on the host",
    },
)
def fragmented_graphs(bench: Bench) -> Step:
    """Every half layer is a graph of its own, with work of the host between them."""
    decoder = bench.decoder

    def attention(x: Tensor, layer: nn.Module, cache: LayerCache) -> Tensor:
        return x + layer.attention(layer.attention_norm(x), decoder.positions, cache)

    def mlp(x: Tensor, layer: nn.Module) -> Tensor:
        return x + layer.mlp(layer.mlp_norm(x))

    piece, x = bench.captured(bench.eager.embedded)
    pieces = [piece]
    for layer, cache in zip(bench.model.layers, decoder.caches, strict=True):
        piece, x = bench.captured(lambda x=x, layer=layer, c=cache: attention(x, layer, c))
        pieces.append(piece)
        piece, x = bench.captured(lambda x=x, layer=layer: mlp(x, layer))
        pieces.append(piece)
    piece, _ = bench.captured(lambda x=x: bench.eager.choose(x))
    pieces.append(piece)

    def step() -> None:
        replay_pieces(pieces)

    return step


def capture_again(work: Step, side: torch.cuda.Stream, pool: Any) -> torch.cuda.CUDAGraph:
    import torch

    graph = torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        work()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    graph.replay()
    return graph


@variant(
    "HG304",
    site="capture_again",
    per_step=1,
    also={
        "HG302": "what is captured anew is a second graph",
        "HG307": "the first launch of a new graph uploads it",
        "HG401": "a graph's memory is allocated with it",
        "HG504": "capturing dispatches every op",
        "HG505": "and runs the model's Python",
    },
    cuda=True,
)
def capture_in_step(bench: Bench) -> Step:
    """A layer is captured anew in every step."""
    import torch

    replay = bench.captured_step()
    parts = bench.eager
    pool = torch.cuda.graph_pool_handle()
    side = torch.cuda.Stream()
    kept: deque[Any] = deque(maxlen=2)
    x = parts.embedded()

    def step() -> None:
        replay()
        kept.append(capture_again(lambda: parts.layers(x, 0, 1), side, pool))

    return step


def copy_inputs(sources: list[Tensor], targets: list[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


@variant(
    "HG305",
    site="copy_inputs",
    per_step=12,
    also={
        **OUTSIDE,
        "HG206": "a dozen copies a step, of 5 us each",
        "HG601": "the graph waits for them",
    },
)
def graph_input_copies(bench: Bench) -> Step:
    """A dozen inputs are copied to where the graph expects them."""
    replay = bench.captured_step()
    sources = [bench.bytes(4 * MB) for _ in range(12)]
    targets = [bench.bytes(4 * MB) for _ in range(12)]

    def step() -> None:
        copy_inputs(sources, targets)
        replay()

    return step


def scale_rows(x: Tensor) -> Tensor:
    return x * 2 + 1


@variant(
    "HG306",
    site="step_of_new_shape",
    per_step=1,
    also={
        **OUTSIDE,
        "HG502": "compiling is work of the host between graphs",
        "HG505": "and runs in Python",
        "HG501": "compiling makes garbage",
    },
    missing={NSYS: "an export shows compiling only where it loads modules"},
    steps=4,
)
def recompile(bench: Bench) -> Step:
    """A compiled function gets another shape every step."""
    import torch

    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    replay = bench.captured_step()
    compiled = torch.compile(scale_rows, dynamic=False, backend="eager")
    x = bench.tensor(512, 64)
    sizes = itertools.count(2)

    def step_of_new_shape() -> None:
        replay()
        compiled(x[: next(sizes)])

    return step_of_new_shape


def broken_mlp(x: Tensor, weight: Tensor) -> Tensor:
    import torch

    # not in a loop: of a loop that breaks, Dynamo compiles nothing
    x = (x @ weight).relu()
    torch._dynamo.graph_break()
    x = (x @ weight).relu()
    torch._dynamo.graph_break()
    x = (x @ weight).relu()
    torch._dynamo.graph_break()
    return (x @ weight).relu()


@variant(
    "HG303",
    site="broken_mlp",
    also={
        **OUTSIDE,
        "HG201": "every region's kernels are launched on their own",
        "HG504": "entering a compiled region is work of the framework",
        "HG505": "and of Python",
        "HG207": "each region launches the same kernels",
    },
    missing={NSYS: "an export does not show compiled regions"},
)
def graph_breaks(bench: Bench) -> Step:
    """A compiled function falls apart into a region per layer."""
    import torch

    torch._dynamo.config.recompile_limit = 64
    size = bench.config.hidden
    weight = bench.tensor(size, size) / size**0.5
    x = bench.tensor(BATCH, size)
    backend = "inductor" if bench.cuda else "eager"
    compiled = torch.compile(broken_mlp, dynamic=False, backend=backend)

    def step() -> None:
        compiled(x, weight)

    return step


# --- HG4 allocation and loading in a step ----------------------------------------------------


def grow_buffers(kept: list[Tensor], device: str) -> None:
    import torch

    for _ in range(4):
        kept.append(torch.empty(24 * MB, dtype=torch.uint8, device=device))  # noqa: PERF401


@variant(
    "HG401",
    site="grow_buffers",
    per_step=4,
    also={"HG502": "allocating is work of the host between graphs"},
    cuda=True,
)
def allocation(bench: Bench) -> Step:
    """Every step needs more memory than the allocator holds."""
    replay = bench.captured_step()
    kept: list[Tensor] = []

    def step() -> None:
        replay()
        grow_buffers(kept, bench.device)

    return step


def release_cache(device: str) -> None:
    import torch

    scratch = torch.empty(64 * MB, dtype=torch.uint8, device=device)
    del scratch
    torch.cuda.empty_cache()


@variant(
    "HG404",
    site="release_cache",
    per_step=1,
    also={
        **DRAINS,
        "HG108": "what empty_cache frees drains the device",
        "HG401": "and is allocated again",
    },
    missing={PLAIN: NO_STACK, NSYS: NO_STACK},
    cuda=True,
)
def empty_cache(bench: Bench) -> Step:
    """The allocator's cache is emptied every step."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        release_cache(bench.device)

    return step


def pin_buffer(kept: list[Tensor]) -> None:
    import torch

    kept.append(torch.empty(8 * MB, dtype=torch.uint8, pin_memory=True))


@variant("HG402", site="pin_buffer", per_step=1, cuda=True)
def pinned_allocation(bench: Bench) -> Step:
    """A new pinned buffer is allocated every step."""
    replay = bench.captured_step()
    kept: list[Tensor] = []

    def step() -> None:
        replay()
        pin_buffer(kept)

    return step


# Pointwise ops of which each dtype is a kernel of its own, loaded when first launched.
# fmt: off
UNARY = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "erfc",
    "exp", "exp2", "expm1", "floor", "frac", "log", "log10", "log1p", "log2", "neg",
    "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
    "trunc", "signbit", "isinf", "isnan", "relu", "celu", "selu", "logit", "sgn",
)
# fmt: on


def first_use(ops: Any, x: dict[str, Tensor]) -> None:
    import torch

    for _ in range(3):
        name, dtype = next(ops)
        getattr(torch, name)(x[dtype])


@variant(
    "HG403",
    site="first_use",
    also={
        **OUTSIDE,
        "HG504": "a first launch takes long inside its op",
        "HG201": "the host is late for these launches",
    },
    missing={NSYS: "an export does not say that a launch loads its kernel"},
)
def module_load(bench: Bench) -> Step:
    """Kernels are launched that were never launched before, so they are loaded in the step."""
    import torch

    replay = bench.captured_step()
    dtypes = ("float64", "float16", "float32")
    x = {name: torch.ones(64, device=bench.device, dtype=getattr(torch, name)) for name in dtypes}
    # enough for 40 steps; the recorder makes 33
    ops = itertools.cycle([(op, dtype) for dtype in dtypes for op in UNARY])

    def step() -> None:
        replay()
        first_use(ops, x)

    return step


# --- HG5 the host is busy or stalled ---------------------------------------------------------


def collect_garbage() -> None:
    gc.collect()


@variant(
    "HG501",
    site="collect_garbage",
    per_step=1,
    missing={PLAIN: NO_GC, NSYS: NO_GC},
    also={
        "kineto:HG502": "without frames a collection is work of the host",
        "kineto:HG505": "without frames a collection is Python",
        "nsys:HG502": "without frames a collection is work of the host",
        "nsys:HG505": "without frames a collection is Python",
    },
)
def gc_collect(bench: Bench) -> Step:
    """Garbage is collected every step."""
    replay = bench.captured_step()
    gc.collect()
    gc.freeze()
    bench.freeze = False
    alive = [[i] for i in range(50_000)]  # what a server keeps, and every collection looks at

    def step() -> int:
        replay()
        collect_garbage()
        return len(alive)

    return step


def make_cycles(count: int) -> None:
    for _ in range(count):
        cycle: list[Any] = [None]
        cycle[0] = cycle


def mark_collections(bench: Bench) -> None:
    """Put a range `gc` around every collection, as a profiler of gc pauses does."""
    import torch
    from torch.profiler import record_function

    running: list[Any] = []

    def mark(phase: str, _: Any) -> None:
        if phase == "start":
            running.append(record_function("gc"))
            running[-1].__enter__()
            if bench.cuda:
                torch.cuda.nvtx.range_push("gc")
        elif running:
            if bench.cuda:
                torch.cuda.nvtx.range_pop()
            running.pop().__exit__(None, None, None)

    gc.callbacks.append(mark)
    bench.on_close(lambda: gc.callbacks.remove(mark))


@variant(
    "HG501",
    site="make_cycles",
    also={
        "HG502": "the garbage is made between two graphs",
        "HG505": "in Python",
    },
)
def gc_pressure(bench: Bench) -> Step:
    """Every step leaves cycles behind, and Python collects them when it likes."""
    replay = bench.captured_step()
    mark_collections(bench)

    def step() -> None:
        replay()
        make_cycles(20_000)

    return step


def schedule_requests() -> int:
    total = 0
    for i in range(50_000):  # here, not in a function that would be the place
        total += i & 7
    return total


@variant(
    "HG502",
    site="schedule_requests",
    also={"HG505": "the work is Python"},
)
def host_work(bench: Bench) -> Step:
    """The host schedules for two milliseconds between steps."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        schedule_requests()

    return step


def update_books(x: Tensor) -> int:
    total = 0
    for _ in range(32):
        x = x + 1
        for i in range(1_500):
            total += i & 7
    return total


@variant(
    "HG505",
    site="update_books",
    also={
        "HG201": "the GPU waits for every one of these launches",
        "HG202": "they are pointwise kernels in a row",
        "HG207": "each is like the one before",
        "HG301": "and they are not captured",
        "HG502": "the host works between launches",
        "HG504": "each launch is dispatched by itself",
    },
    missing={PLAIN: NO_STACK, NSYS: NO_STACK},
)
def python_bound(bench: Bench) -> Step:
    """Python works between the launches of a step."""
    replay = bench.captured_step()
    x = bench.tensor(BATCH, 1024)

    def step() -> None:
        replay()
        update_books(x)

    return step


def reshape_again(x: Tensor) -> None:
    for _ in range(300):
        x.transpose(0, 1).view_as(x.t())  # of x itself: no chain of views grows


@variant(
    "HG504",
    site="reshape_again",
    also={
        "HG502": "it is work of the host between graphs",
        "HG505": "part of it is Python",
    },
    missing={NSYS: NO_OPS},
)
def dispatch_bound(bench: Bench) -> Step:
    """The host passes through more than a thousand ops that launch nothing."""
    replay = bench.captured_step()
    x = bench.tensor(64, 64)

    def step() -> None:
        replay()
        reshape_again(x)

    return step


def next_request(requests: queue.Queue[int]) -> int:
    return requests.get()


@variant(
    "HG503",
    site="next_request",
    per_step=1,
    missing={PLAIN: NO_STACK, NSYS: NO_OS},
    also={
        "kineto:HG502": "without frames a wait is work of the host",
        "kineto:HG505": "without frames a wait is Python",
    },
    slack=1,
)
def queue_wait(bench: Bench) -> Step:
    """Every step waits for a request from a thread that is slow to make it."""
    replay = bench.captured_step()
    requests: queue.Queue[int] = queue.Queue(maxsize=1)
    ended = threading.Event()

    def produce() -> None:
        while not ended.wait(0.002):
            requests.put(1)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()  # a daemon: it may end the process waiting for room
    bench.on_close(ended.set)

    def step() -> None:
        next_request(requests)
        replay()

    return step


def back_off() -> None:
    time.sleep(0.002)


@variant(
    "HG503",
    site="back_off",
    per_step=1,
    missing={PLAIN: NO_STACK, NSYS: NO_OS},
    also={
        "kineto:HG502": "without frames a sleep is work of the host",
        "kineto:HG505": "without frames a sleep is Python",
    },
)
def sleep(bench: Bench) -> Step:
    """The loop sleeps between steps."""
    replay = bench.captured_step()

    def step() -> None:
        replay()
        back_off()

    return step


def build_metadata(lengths: list[int], host: Tensor) -> Tensor:
    import torch

    for row in range(32):
        length = torch.tensor(lengths[row])
        start = torch.arange(0, 8) + length
        host[row] = (start * 2).cumsum(0).max()
    return host


@variant(
    "HG507",
    site="build_metadata",
    also={
        **UPLOAD,
        "HG502": "it is work of the host between graphs",
        "HG504": "most of it is dispatching",
        "HG505": "the rest is Python",
    },
    missing={NSYS: NO_OPS},
)
def host_metadata(bench: Bench) -> Step:
    """A batch's metadata is rebuilt with tiny CPU tensors every step."""
    replay = bench.captured_step()
    host = bench.pinned(32)
    target = host.to(bench.device)
    lengths = list(range(32))

    def step() -> None:
        target.copy_(build_metadata(lengths, host), non_blocking=True)
        replay()

    return step


class Tokenizer:
    """A thread that computes in Python for 12 ms whenever it is asked to, and else sleeps."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self) -> None:
        """Have it compute."""
        self._asked.set()

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        self._asked.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            self._asked.wait()
            if self._ended:
                return
            self._asked.clear()
            for _ in range(150):  # short, or it would still compute when the profiler stops
                think(2_000)


@variant(
    "HG509",
    site="decode_beside_tokenizer",
    missing={PLAIN: NO_STACK, NSYS: NO_STACK},
    also={
        "HG307": "the lock is waited for when the launch call returns",
        "HG502": "what the host does while it has no lock cannot be told from work",
        "HG504": "three ops run on the CPU between graphs",
        "HG505": "Python waits for the lock, too",
    },
    cuda=True,
)
def gil_contention(bench: Bench) -> Step:
    """Another thread runs Python and keeps the interpreter's lock."""
    import torch

    replay = bench.captured_step()
    tokenizer = Tokenizer()
    bench.on_close(tokenizer.end)
    scores = torch.rand(1 << 18)
    sums = torch.empty_like(scores)

    def decode_beside_tokenizer() -> None:
        tokenizer.start()
        for _ in range(3):
            torch.cumsum(
                scores, 0, out=sums
            )  # an op gives the lock away, and its call needs it back
        replay()

    return decode_beside_tokenizer


SCHEDULER = """
import sys, time
from multiprocessing.connection import Client
with Client(sys.argv[1], authkey=b"suite") as link:
    try:
        while link.recv():
            time.sleep(0.002)
            link.send(1)
    except EOFError:
        pass
"""


def ask_scheduler(link: Connection) -> int:
    link.send(1)
    return link.recv()


@variant(
    "HG510",
    site="ask_scheduler",
    per_step=1,
    missing={PLAIN: NO_STACK, NSYS: "calls of the operating system do not say who answers"},
    also={
        "kineto:HG502": "without frames a wait is work of the host",
        "kineto:HG505": "without frames a wait is Python",
        "nsys:HG503": "a read that blocks, whoever answers it",
        "nsys:HG502": "without frames a wait is work of the host",
        "nsys:HG505": "without frames a wait is Python",
        "HG503": "the answer of another process is an input",
    },
)
def remote_wait(bench: Bench) -> Step:
    """Every step asks a scheduler in another process, which is slow to answer."""
    replay = bench.captured_step()
    address = str(Path(tempfile.mkdtemp()) / "link")
    with Listener(address, authkey=b"suite") as listener:
        child = subprocess.Popen([sys.executable, "-c", SCHEDULER, address])
        link = listener.accept()
    bench.on_close(link.close)
    bench.on_close(lambda: child.wait(timeout=5))

    def step() -> None:
        ask_scheduler(link)
        replay()

    return step


def fill_token_bitmask(mask: memoryview, allowed: bytes) -> None:
    for place in range(len(mask)):
        bits, first = 0, place * 8 % len(allowed)
        for bit in range(8):
            bits |= allowed[first + bit] << bit
        mask[place] = bits


@variant(
    "HG511",
    site="fill_token_bitmask",
    per_step=1,
    missing={PLAIN: NO_STACK, NSYS: NO_STACK},
    also={
        **UPLOAD,
        "HG302": "the sampler is a graph of its own",
        "HG502": "filling is work of the host",
        "HG504": "and the GPU waits while the upload is dispatched",
        "HG505": "and it is Python",
        "HG601": "the sampler waits for the copy",
    },
)
def grammar_mask(bench: Bench) -> Step:
    """A grammar's mask is filled and uploaded between the logits and the sampler."""
    import torch

    replay = bench.captured_step()
    size = bench.config.vocab_size
    host = bench.pinned(BATCH * size // 8, dtype=torch.uint8)
    mask = memoryview(host.numpy())
    target = host.to(bench.device)
    shifts = torch.arange(8, dtype=torch.uint8, device=bench.device)
    allowed = bytes(token % 7 == 0 for token in range(size))

    def sample() -> Tensor:
        bits = (target[:, None] >> shifts) & 1
        return bench.logits.masked_fill(bits.view(BATCH, size) == 0, -100.0).argmax(dim=-1)

    choose, _ = bench.captured(sample)

    def step() -> None:
        replay()
        fill_token_bitmask(mask, allowed)
        target.copy_(host, non_blocking=True)
        choose()

    return step


# --- HG6 copies ------------------------------------------------------------------------------


def load_adapter(host: Tensor, target: Tensor) -> None:
    target.copy_(host, non_blocking=True)


@variant(
    "HG601",
    site="load_adapter",
    per_step=1,
    also={**SAME_SIZE, "HG302": "the upload splits the step in two graphs"},
    cuda=True,
)
def copy_not_overlapped(bench: Bench) -> Step:
    """Between two captured halves, a large upload runs on the stream that computes."""
    import torch

    parts, layers = bench.eager, bench.config.n_layers
    half = layers // 2
    first, x = bench.captured(lambda: parts.layers(parts.embedded(), 0, half))
    second, _ = bench.captured(lambda: parts.choose(parts.layers(x, half, layers)))
    host = bench.pinned(16 * MB, dtype=torch.uint8)
    target = bench.bytes(16 * MB)

    def step() -> None:
        first()
        load_adapter(host, target)
        second()

    return step


def upload_batch(host: Tensor, device: str) -> Tensor:
    return host.to(device)


@variant(
    "HG602",
    site="upload_batch",
    per_step=1,
    also={
        **DRAINS,
        **UPLOAD,
        "HG104": "it blocks",
        "HG601": "the compute stream waits while it is copied",
    },
)
def pageable_bandwidth(bench: Bench) -> Step:
    """A large upload from pageable memory, at a fraction of the link's speed."""
    import torch

    replay = bench.captured_step()
    host = torch.zeros(16 * MB, dtype=torch.uint8)

    def step() -> None:
        upload_batch(host, bench.device)
        replay()

    return step


def replay_on_both(first: Step, second: Step, stream: torch.cuda.Stream) -> None:
    import torch

    with torch.cuda.stream(stream):
        second()
    first()


@variant(
    "HG603",
    site="replay_on_both",
    also={
        "HG108": "every launch on the legacy default stream waits for all blocking streams",
        "HG302": "two graphs a step",
    },
    cuda=True,
)
def legacy_stream(bench: Bench) -> Step:
    """Independent work on a blocking stream runs in turn with the legacy default stream."""
    import torch

    first = bench.captured_step()
    runtime = cudart()
    handle = ctypes.c_void_p()
    must(runtime.cudaStreamCreate(ctypes.byref(handle)))
    blocking = torch.cuda.ExternalStream(handle.value)
    weight = bench.tensor(1024, 1024) / 32
    x = bench.tensor(BATCH, 1024)

    def beside() -> Tensor:
        y = x
        for _ in range(60):
            y = y @ weight
        return y

    second, _ = bench.captured(beside)

    def step() -> None:
        replay_on_both(first, second, blocking)

    return step


def return_output(host: Tensor, values: Tensor) -> None:
    host.copy_(values, non_blocking=True)


@variant("HG604", site="return_output", per_step=1, cuda=True)
def output_copy(bench: Bench) -> Step:
    """A large output is copied on the stream that computes, where the next step waits for it."""
    import torch

    replay = bench.captured_step()
    values = bench.bytes(8 * MB)
    slots = itertools.cycle(
        [(bench.pinned(8 * MB, dtype=torch.uint8), torch.cuda.Event()) for _ in range(2)]
    )
    before: list[Any] = []

    def step() -> int:
        replay()
        host, event = next(slots)
        return_output(host, values)
        event.record()
        before.append((host, event))
        if len(before) < 2:
            return 0
        host, event = before.pop(0)
        event.synchronize()  # of the step before: the GPU has this one to do meanwhile
        return host.data_ptr()

    return step


# --- controls: nothing to fix ----------------------------------------------------------------


def products(bench: Bench, count: int, size: int = 8192) -> Step:
    """Large matrix products, each of the result before it."""
    size = size if bench.cuda else 16
    x = bench.tensor(size, size)
    weight = bench.tensor(size, size) / size**0.5

    def multiply() -> Tensor:
        y = x
        for _ in range(count):
            y = y @ weight
        return y

    return multiply


@variant()
def control_gpu_bound(bench: Bench) -> Step:
    """Large matrix products keep the GPU busy."""
    return products(bench, 4)


@variant()
def control_gemm_loop(bench: Bench) -> Step:
    """Many launches, each of a kernel longer than it takes to launch."""
    return products(bench, 24)


@variant(steps=4)
def control_item_gpu_bound(bench: Bench) -> Step:
    """A scalar is read while the GPU is busy for long: the read costs nothing to speak of."""
    multiply = products(bench, 8, 16384)  # about 100 ms

    def step() -> None:
        multiply()[0, 0].item()

    return step


@variant()
def control_hidden_host_work(bench: Bench) -> Step:
    """The host works for a millisecond while the GPU is busy for longer."""
    multiply = products(bench, 8)

    def step() -> None:
        multiply()
        think(25_000)

    return step


@variant()
def control_graph_replay(bench: Bench) -> Step:
    """The whole step is one graph."""
    replay = bench.captured_step()

    def step() -> None:
        replay()

    return step


@variant(cuda=True)
def control_pinned_async_upload(bench: Bench) -> Step:
    """A small upload from pinned memory that does not block."""
    replay = bench.captured_step()
    hosts = itertools.cycle([bench.pinned(64) for _ in range(4)])
    target = bench.pinned(64).to(bench.device)
    count = itertools.count()

    def step() -> None:
        host = next(hosts)
        host.fill_(next(count))
        target.copy_(host, non_blocking=True)
        replay()

    return step


@variant(cuda=True)
def control_async_output(bench: Bench) -> Step:
    """The output is copied asynchronously, and waited for a step later."""
    import torch

    replay = bench.captured_step()
    slots = itertools.cycle([(bench.pinned(BATCH, 1), torch.cuda.Event()) for _ in range(2)])
    before: list[Any] = []

    def step() -> None:
        replay()
        host, event = next(slots)
        host.copy_(bench.decoder.tokens, non_blocking=True)
        event.record()
        if before:
            before.pop().synchronize()  # the step before, which has long been computed
        before.append(event)

    return step


@variant(cuda=True)
def control_event_query(bench: Bench) -> Step:
    """An event is asked for once a step, without waiting."""
    import torch

    replay = bench.captured_step()
    event = torch.cuda.Event()

    def step() -> None:
        replay()
        event.query()
        event.record()

    return step


@variant(cuda=True)
def control_two_streams(bench: Bench) -> Step:
    """Two graphs on two streams, in order by events alone."""
    import torch

    replay = bench.captured_step()
    side = torch.cuda.Stream()
    multiply = products(bench, 2, 4096)
    second, _ = bench.captured(multiply)

    def step() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            second()
        replay()
        torch.cuda.current_stream().wait_stream(side)

    return step


@variant()
def control_compile_graphs(bench: Bench) -> Step:
    """torch.compile with CUDA graphs."""
    import torch

    size = 4096 if bench.cuda else 16

    class Mlp(torch.nn.Module):
        """Input and weights are the module's, so that no graph needs a copy of them."""

        x: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(
                torch.nn.Linear(size, size, bias=False) for _ in range(8)
            )
            self.register_buffer("x", torch.randn(size, size))

        def forward(self) -> Tensor:
            y = self.x
            for layer in self.layers:
                y = torch.nn.functional.gelu(layer(y))
            return y

    mlp = Mlp().to(bench.device, bench.dtype).requires_grad_(False)
    mode = "reduce-overhead" if bench.cuda else None
    backend = "inductor" if bench.cuda else "eager"
    compiled = torch.compile(mlp, dynamic=False, mode=mode, backend=backend)

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        compiled()

    return step


def labels() -> dict[str, dict[str, Any]]:
    """Every variant's label, as labels.json holds them."""
    return {name: found.label.to_json() for name, found in VARIANTS.items()}


# Inductor's default cache folder carries the user's name, which would then stand in frames of
# compiled code. To be set before torch is imported.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "inductor"))
# Without a pool of compilers, whose processes would outlive a variant that is stopped.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
