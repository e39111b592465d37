"""The sync probe: 71 PyTorch calls, each behind a GPU that is busy for two milliseconds.

Whether a call blocks the host was measured on an H200 with torch 2.11, behind 20 ms of queued work;
`blocks` says it, and `code` names the rule of HG101 to HG109 that must find it. A call of HG109 may
do without blocking: small copies from pageable memory are staged.

A row is a function of the fixtures, registered under its own name (less the leading underscore):

    @row("HG101", blocks=True)
    def item(f): ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

SLEEP_CYCLES = 4_000_000  # about 2 ms
WARM_ROWS = 2  # steps before the first row: the first is the pipeline's fill


@dataclass(frozen=True)
class Row:
    """One call.

    Attributes:
        run: makes it.
        code: of the rule that must find it, None for none.
        blocks: whether it was measured to hold the host until the GPU is done.
    """

    run: Callable[[Any], object]
    code: str | None
    blocks: bool


ROWS: dict[str, Row] = {}


def row(code: str | None = None, *, blocks: bool = False) -> Callable[[Any], Any]:
    """Register a row under the name of its function."""

    def register(run: Callable[[Any], object]) -> Callable[[Any], object]:
        ROWS[run.__name__] = Row(run, code, blocks)
        return run

    return register


def fixtures(device: str = "cuda") -> SimpleNamespace:
    """The tensors that rows use."""
    import torch

    pin = device == "cuda"
    torch.manual_seed(0)
    x = torch.rand(64, device=device)
    matrix = torch.rand(32, 32, device=device)
    return SimpleNamespace(
        device=device,
        x=x,
        y=torch.rand(64, device=device),
        ints=torch.randint(0, 8, (64,), device=device),
        mask=(torch.arange(64, device=device) % 2 == 0),
        mask_cpu=(torch.arange(64) % 2 == 0),
        vector=torch.rand(32, device=device),
        flag=torch.tensor(True, device=device),
        zero=torch.tensor(0.5, device=device),
        index0=torch.tensor(3, device=device),
        index=torch.tensor([0, 2, 5], device=device),
        index_cpu=torch.tensor([0, 2, 5]),
        sizes=torch.tensor([24, 40], device=device),
        counts=torch.ones(64, dtype=torch.int64, device=device),
        matrix=matrix,
        spd=matrix @ matrix.T + 32 * torch.eye(32, device=device),
        pageable=torch.rand(64),
        pinned=torch.zeros(64, pin_memory=pin),
        pinned2=torch.zeros(32, 32, pin_memory=pin),
        event=torch.cuda.Event() if pin else None,
    )


# empty_cache first: the recorder empties the cache before, so that there is nothing to free, as
# when it was measured.
@row()
def empty_cache(f):
    import torch

    torch.cuda.empty_cache()


@row("HG101", blocks=True)
def item(f):
    return f.zero.item()


@row("HG101", blocks=True)
def bool_if(f):
    if f.flag:
        return 1


@row("HG101", blocks=True)
def any_if(f):
    if f.mask.any():
        return 1


@row("HG102", blocks=True)
def tolist(f):
    return f.x.tolist()


@row("HG102", blocks=True)
def cpu(f):
    return f.x.cpu()


@row()
def to_cpu_nb(f):
    return f.x.to("cpu", non_blocking=True)


@row("HG101", blocks=True)
def fstring(f):
    return f"{f.zero}"


@row("HG101", blocks=True)
def repr(f):
    return f.ints.__repr__()


@row("HG104", blocks=True)
def tensor_scalar_dev(f):
    import torch

    return torch.tensor(1.0, device=f.device)


@row("HG104", blocks=True)
def tensor_list_dev(f):
    import torch

    return torch.tensor([1, 2, 3], device=f.device)


@row()
def full_dev(f):
    import torch

    return torch.full((64,), 1.0, device=f.device)


@row()
def arange_dev(f):
    import torch

    return torch.arange(64, device=f.device)


@row("HG109")
def tensor_then_to_nb(f):
    import torch

    return torch.tensor([1, 2, 3]).to(f.device, non_blocking=True)


@row("HG104", blocks=True)
def pageable_to(f):
    return f.pageable.to(f.device)


@row("HG109")
def pageable_to_nb(f):
    return f.pageable.to(f.device, non_blocking=True)


@row("HG105", blocks=True)
def pinned_to(f):
    return f.pinned.to(f.device)


@row()
def pinned_to_nb(f):
    return f.pinned.to(f.device, non_blocking=True)


@row("HG109")
def pinned_noncontig_nb(f):
    return f.pinned2[:, ::2].to(f.device, non_blocking=True)


@row()
def pinned_cast_nb(f):
    import torch

    return f.pinned.to(f.device, torch.float16, non_blocking=True)


@row()
def pin_memory_new(f):
    return f.pageable.pin_memory()


@row("HG103", blocks=True)
def nonzero(f):
    return f.mask.nonzero()


@row()
def nonzero_static(f):
    import torch

    return torch.nonzero_static(f.mask, size=32)


@row("HG103", blocks=True)
def mask_get(f):
    return f.x[f.mask]


@row("HG103", blocks=True)
def masked_select(f):
    return f.x.masked_select(f.mask)


@row("HG103", blocks=True)
def where1(f):
    import torch

    return torch.where(f.mask)


@row()
def where3(f):
    import torch

    return torch.where(f.mask, f.x, 0.0)


@row()
def mask_set_scalar(f):
    f.y[f.mask] = 0.0


@row("HG103", blocks=True)
def mask_set_dev0d(f):
    f.y[f.mask] = f.zero


@row("HG103", blocks=True)
def mask_set_vec(f):
    f.y[f.mask] = f.vector


@row()
def mask_cpu_get(f):
    return f.x[f.mask_cpu]


@row("HG104", blocks=True)
def idx_list(f):
    return f.x[[0, 2, 5]]


@row("HG104", blocks=True)
def idx_cpu_t(f):
    return f.x[f.index_cpu]


@row()
def idx_dev(f):
    return f.x[f.index]


@row("HG101", blocks=True)
def idx_0d_dev(f):
    return f.x[f.index0]


@row("HG101", blocks=True)
def slice_dev_bound(f):
    return f.x[: f.index0]


@row("HG104", blocks=True)
def set_elem_scalar(f):
    f.y[0] = 5


@row()
def set_slice_scalar(f):
    f.y[0:2] = 5.0


@row("HG104", blocks=True)
def set_idx_scalar(f):
    f.y[f.index] = 5.0


@row()
def fill_dev0d(f):
    f.y.fill_(f.zero)


@row()
def masked_fill_scalar(f):
    return f.x.masked_fill(f.mask, 0.0)


@row("HG101", blocks=True)
def masked_fill_dev0d(f):
    return f.x.masked_fill(f.mask, f.zero)


@row()
def clamp_dev0d(f):
    return f.x.clamp(max=f.zero)


@row()
def add_cpu0d(f):
    import torch

    return f.x + torch.tensor(1.0)


@row("HG103", blocks=True)
def repeat_interleave(f):
    return f.x.repeat_interleave(f.counts)


@row()
def repeat_interleave_os(f):
    return f.x.repeat_interleave(f.counts, output_size=64)


@row("HG103", blocks=True)
def unique(f):
    return f.ints.unique()


@row("HG103", blocks=True)
def unique_consec(f):
    return f.ints.unique_consecutive()


@row("HG103", blocks=True)
def bincount(f):
    return f.ints.bincount()


@row()
def multinomial1(f):
    return f.x.multinomial(1)


@row()
def multinomial5r(f):
    return f.x.multinomial(5, replacement=True)


@row()
def gumbel(f):
    import torch

    return (f.x / torch.empty_like(f.x).exponential_(1)).argmax(-1)


@row()
def equal(f):
    return f.x.equal(f.x)


@row("HG101", blocks=True)
def allclose(f):
    return f.x.allclose(f.y)


@row()
def nanmedian(f):
    return f.x.nanmedian()


@row()
def quantile(f):
    return f.x.quantile(0.5)


@row()
def randperm(f):
    import torch

    return torch.randperm(64, device=f.device)


@row("HG103", blocks=True)
def one_hot(f):
    from torch.nn import functional

    return functional.one_hot(f.ints)


@row("HG101", blocks=True)
def inv(f):
    import torch

    return torch.linalg.inv(f.spd)


@row()
def inv_ex(f):
    import torch

    return torch.linalg.inv_ex(f.spd)


@row("HG101", blocks=True)
def cholesky(f):
    import torch

    return torch.linalg.cholesky(f.spd)


@row("HG102", blocks=True)
def split_dev_sizes(f):
    return f.x.split(f.sizes.tolist())


@row()
def topk(f):
    return f.x.topk(4)


@row()
def sort(f):
    return f.x.sort()


@row()
def cumsum(f):
    return f.x.cumsum(0)


@row()
def big_alloc(f):
    import torch

    return torch.empty(64 << 20, dtype=torch.uint8, device=f.device)


@row("HG106", blocks=True)
def dev_sync(f):
    import torch

    torch.cuda.synchronize()


@row("HG107", blocks=True)
def stream_sync(f):
    import torch

    torch.cuda.current_stream().synchronize()


@row("HG107", blocks=True)
def event_sync(f):
    f.event.record()
    f.event.synchronize()


@row()
def event_query(f):
    f.event.record()
    return f.event.query()


@row()
def mem_get_info(f):
    import torch

    return torch.cuda.mem_get_info()
