"""A decode step as few hand-written kernels: `FusedStep`, the fastest this project knows.

What `torch.compile` leaves on the table at batch 1 is not arithmetic: matrix-vector products that
stream their weights at less than the memory's speed, and the gap between each kernel and the next.
`hostgap.decoder.kernels` says how its five kernels a layer deal with both. This module owns what
they share: scratch of fixed addresses, shapes of launches, the order of a step.

`FusedStep` reads the weights of a `Decoder` in place and writes the same caches, so a prefill by
the model and steps by `FusedStep` may follow each other in any order. Importing this needs torch
only; building a `FusedStep` needs Triton and a GPU of compute capability 9.0.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from hostgap.decoder.model import Attention, Decoder, Layer, LayerCache, SwiGLU
from hostgap.errors import ConfigError

MAX_BATCH = 8  # each row costs a multiply-add a weight, and registers; beyond, tensor cores win
NEEDED_CAPABILITY = (9, 0)  # the first with programmatic dependent launch
WAVE = 132  # multiprocessors of an H200: what launches are shaped for


@dataclass(frozen=True, slots=True)
class Gemv:
    """How a matrix-vector product is cut: rows of the weight a program, and its warps.

    A thread owns 8 columns (16 bytes) of every row, so warps set the columns of a tile, 256 each,
    and x goes straight into the registers that need it.
    """

    rows: int
    warps: int

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return 256 * self.warps


@dataclass(frozen=True, slots=True)
class Plan:
    """The launch shapes of one step.

    Attributes:
        qkv: queries, keys and values.
        out: output projection of attention.
        gate_up: both projections; a program's rows are half of each.
        down: back to the hidden size.
        head: logits.
        attend_block: slots of the cache a tile of attention.
        attend_warps: warps of an attention program.
        attend_splits: most programs that share one key/value head of one row; a power of two.
    """

    qkv: Gemv
    out: Gemv
    gate_up: Gemv
    down: Gemv
    head: Gemv
    attend_block: int = 32
    attend_warps: int = 4
    attend_splits: int = 16


GEMVS = tuple(field.name for field in fields(Plan) if not field.name.startswith("attend"))


def default_plan(model: Decoder, batch: int) -> Plan:
    """Launch shapes by rule, found by `benchmarks/bench_fused.py` on an H200.

    Long rows get 8 warps (2048 columns a tile), short ones 4; in the feed-forward block, whose
    weights are most of a layer, one tile takes a whole row where 16 warps can hold it. Rows a
    program: 16, but 8 where 16 would leave multiprocessors idle, where two tiles have to be in
    flight because a row is longer than a tile, and where a batch needs the registers; 4 for the
    gate and up projections.
    """
    config = model.config
    heads = config.n_heads + 2 * config.n_kv_heads
    shapes = {
        "qkv": (heads * config.head_dim, config.hidden),
        "out": (config.hidden, config.n_heads * config.head_dim),
        "gate_up": (2 * config.intermediate, config.hidden),
        "down": (config.hidden, config.intermediate),
        "head": (config.vocab_size, config.hidden),
    }
    gemvs = {}
    for name, (rows, columns) in shapes.items():
        warps = 8 if columns >= 4096 else 4
        if name in ("gate_up", "down") and columns <= 256 * 16:
            warps = max(4, _power(columns) // 256)
        wide = rows >= 16 * (WAVE - 4) and columns <= 256 * warps and batch <= 2
        gemvs[name] = Gemv(16 if wide else 8, warps)
    gemvs["gate_up"] = replace(gemvs["gate_up"], rows=4)
    blocks = math.ceil(config.max_seq_len / 32)
    splits = min(blocks, max(1, WAVE // (batch * config.n_kv_heads)))
    return Plan(
        qkv=gemvs["qkv"],
        out=gemvs["out"],
        gate_up=gemvs["gate_up"],
        down=gemvs["down"],
        head=gemvs["head"],
        attend_splits=1 << (splits.bit_length() - 1),
    )


@functools.cache
def _kernels() -> ModuleType | None:
    """The kernels' module, or None where Triton is missing; importing Triton takes a second."""
    if importlib.util.find_spec("triton") is None:
        return None
    from hostgap.decoder import kernels

    return kernels


def supported(model: Decoder, batch: int) -> str | None:
    """Why `FusedStep` cannot run this model at this batch size, in one line; None if it can."""
    config, weight = model.config, model.embed.weight
    largest = max(weight.numel() for weight in model.parameters())
    shape_reasons = (
        (not 1 <= batch <= MAX_BATCH, f"a batch of {batch}: it must be 1 to {MAX_BATCH}"),
        (not isinstance(model.layers[0].attention, Attention), "a model that several ranks share"),
        (config.gelu, "the gelu feed-forward block and its biases have no fused kernels"),
        (
            config.head_dim < 16 or config.head_dim & (config.head_dim - 1) != 0,
            f"heads of {config.head_dim}: a power of two of at least 16 is needed",
        ),
        (config.n_heads > 16 * config.n_kv_heads, "more than 16 query heads a key/value head"),
        (
            config.hidden % 8 != 0 or config.intermediate % 8 != 0,
            "rows of weights that are no multiple of 16 bytes",
        ),
        (largest >= 1 << 31, "a weight of 2^31 elements or more"),
    )
    for applies, reason in shape_reasons:
        if applies:
            return reason
    kernels = _kernels()
    if kernels is None:
        return "Triton is not installed"
    if kernels.INTERPRETED:
        return None
    if not weight.is_cuda:
        return f"the model is on device {weight.device.type}"
    if torch.cuda.get_device_capability(weight.device) < NEEDED_CAPABILITY:
        return f"{torch.cuda.get_device_name(weight.device)} has a lower compute capability"
    if weight.dtype != torch.bfloat16:
        return f"weights of {weight.dtype}: they must be torch.bfloat16"
    return None


class FusedStep(nn.Module):
    """One decode step of `model` over `caches`, as 5 kernels a layer and 2 more.

    The same contract as `Decoder.forward` for one token a row. Nothing is read by the host and
    nothing allocated: a step can be captured as one CUDA graph (call it once before, which
    compiles). Logits agree with the model's to the rounding of its type; the residual is kept in
    float32 here, so they are the closer ones to the exact ones.

    Args:
        model: whose weights are used where they are.
        caches: of `model.new_caches`; one row a row of the batch.
        pdl: programmatic dependent launch: each kernel starts under the tail of the one before.
        plan: launch shapes; by default `default_plan`.

    Raises:
        ConfigError: `supported` knows a reason why not.
    """

    residual: Tensor
    x: Tensor
    qkv: Tensor
    mixed: Tensor
    inner: Tensor
    squares: Tensor
    logits: Tensor
    best: Tensor
    best_index: Tensor
    part: Tensor
    part_max: Tensor
    part_sum: Tensor
    arrived: Tensor
    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        model: Decoder,
        caches: nn.ModuleList,
        *,
        pdl: bool = True,
        plan: Plan | None = None,
    ) -> None:
        super().__init__()
        config, weight = model.config, model.embed.weight
        self.batch = batch = cast(LayerCache, caches[0]).keys.shape[0]
        reason = supported(model, batch)
        kernels = _kernels()
        if reason is not None or kernels is None:
            raise ConfigError(
                f"the fused step cannot run this: {reason}",
                "It needs Triton and a GPU of compute capability 9.0+, and weights in bfloat16.",
            )
        self.model, self.caches = model, caches
        self.kernels = kernels
        self.pdl = pdl and not kernels.INTERPRETED
        self.plan = plan = plan or default_plan(model, batch)

        hidden, head_dim, groups = config.hidden, config.head_dim, config.n_kv_heads
        members = config.n_heads // groups
        splits = plan.attend_splits
        widths = {
            "x": hidden,
            "qkv": (config.n_heads + 2 * groups) * head_dim,
            "mixed": config.n_heads * head_dim,
            "inner": config.intermediate,
            "logits": config.vocab_size,
        }
        for name, width in widths.items():
            self._scratch(name, weight.new_zeros(batch, width))
        numbers = functools.partial(weight.new_zeros, dtype=torch.float32)
        self._scratch("residual", numbers(batch, hidden))
        # One number a program of the kernel that wrote the residual last.
        fewest = min(plan.out.rows, plan.down.rows)
        self._scratch("squares", numbers(batch, math.ceil(hidden / fewest)))
        self._scratch("best", numbers(batch, math.ceil(config.vocab_size / plan.head.rows)))
        self._scratch("best_index", torch.zeros_like(self.best, dtype=torch.int32))
        self._scratch("part", numbers(batch * groups, splits, members, head_dim))
        self._scratch("part_max", numbers(batch * groups, splits, members))
        self._scratch("part_sum", torch.zeros_like(self.part_max))
        self._scratch("arrived", numbers(batch * groups).to(torch.int32))
        # Tables, because a GPU's fast sine is wrong for angles of thousands of radians.
        inv_freq = cast(Layer, model.layers[0]).attention.inv_freq
        slots = torch.arange(config.max_seq_len, device=weight.device, dtype=torch.float32)
        angles = slots[:, None] * inv_freq
        self._scratch("cos", angles.cos())
        self._scratch("sin", angles.sin())

    def _scratch(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor, persistent=False)

    @torch.no_grad()
    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Tokens [B, 1] at positions [B, 1], both int64 -> logits [B, V]; writes the caches.

        The logits are a buffer of this module: the next step overwrites them. Each row may stand
        at its own position, which must be less than `max_seq_len`.
        """
        expected = (self.batch, 1)
        if tuple(tokens.shape) != expected or tuple(positions.shape) != expected:
            raise ConfigError(
                f"tokens {tuple(tokens.shape)} at positions {tuple(positions.shape)}; a fused step "
                f"of this batch takes {expected}"
            )
        with self._device():
            self._run(tokens, positions)
        return self.logits

    @torch.no_grad()
    def choose(self, tokens: Tensor) -> Tensor:
        """Write the argmax of the last step's logits to tokens [B, 1] int64, and return them.

        The last kernel of a step has compared the logits of each of its programs already; what is
        left takes two microseconds, where `torch.argmax` would read all logits again.
        """
        parts = self.best.shape[1]
        with self._device():
            self.kernels.pick[(self.batch,)](
                self.best, self.best_index, tokens, parts, _power(parts), self.pdl,
                num_warps=16, launch_pdl=self.pdl,
            )  # fmt: skip
        return tokens

    def _device(self) -> AbstractContextManager[object]:
        """Triton launches on the current device, whatever the tensors'."""
        return torch.cuda.device(self.x.device) if self.x.is_cuda else nullcontext()

    def _run(self, tokens: Tensor, positions: Tensor) -> None:
        """Launch the kernels of one step."""
        plan, kernels = self.plan, self.kernels
        hidden = self.x.shape[1]
        layers = [cast(Layer, layer) for layer in self.model.layers]
        parts_of_out = math.ceil(hidden / plan.out.rows)
        parts_of_down = math.ceil(hidden / plan.down.rows)
        # No `launch_pdl`: the first kernel of a step starts when all before it has ended, so that
        # the others may read tokens, positions and caches before they wait.
        kernels.embed[(self.batch,)](
            tokens, self.model.embed.weight, layers[0].attention_norm.weight,
            self.residual, self.x, self.squares,
            hidden, parts_of_down, _power(hidden), _power(parts_of_down), self.pdl,
            num_warps=8,
        )  # fmt: skip
        following = [layer.attention_norm.weight for layer in layers[1:]]
        following.append(self.model.norm.weight)
        for layer, cache, next_gain in zip(layers, self.caches, following, strict=True):
            attention, mlp = layer.attention, cast(SwiGLU, layer.mlp)
            self._gemv(
                plan.qkv, attention.qkv_proj.weight, self.x, self.qkv, kernels.STORE,
                parts=parts_of_down,
            )  # fmt: skip
            self._attend(layer, cast(LayerCache, cache), positions)
            self._gemv(
                plan.out, attention.o_proj.weight, self.mixed, self.x, kernels.RESIDUAL,
                gain=layer.mlp_norm.weight,
            )  # fmt: skip
            self._gemv(
                plan.gate_up, mlp.gate_up_proj.weight, self.x, self.inner, kernels.SWIGLU,
                parts=parts_of_out,
            )  # fmt: skip
            self._gemv(
                plan.down, mlp.down_proj.weight, self.inner, self.x, kernels.RESIDUAL,
                gain=next_gain,
            )  # fmt: skip
        self._gemv(
            plan.head, self.model.lm_head.weight, self.x, self.logits, kernels.LOGITS,
            parts=parts_of_down,
        )  # fmt: skip

    def _gemv(
        self,
        shape: Gemv,
        weight: Tensor,
        x: Tensor,
        out: Tensor,
        epilogue: Any,
        *,
        parts: int = 0,
        gain: Tensor | None = None,
    ) -> None:
        """Launch one matrix-vector product; `parts` of squares if x is still to be normed."""
        rows, columns = weight.shape
        logits = epilogue is self.kernels.LOGITS
        self.kernels.gemv[(math.ceil(rows / shape.rows),)](
            weight, x, out, self.squares, self.residual, weight if gain is None else gain,
            self.best if logits else self.squares, self.best_index,
            self.model.config.norm_eps,
            rows, columns, self.batch, parts, _power(max(parts, 1)),
            shape.rows, shape.columns, epilogue.value, self.pdl,
            num_warps=shape.warps, launch_pdl=self.pdl,
        )  # fmt: skip

    def _attend(self, layer: Layer, cache: LayerCache, positions: Tensor) -> None:
        """Launch attention of one layer."""
        config, plan, attention = self.model.config, self.plan, layer.attention
        self.kernels.attend[(self.batch * config.n_kv_heads, plan.attend_splits)](
            self.qkv, cache.keys, cache.values, self.mixed, positions, self.cos, self.sin,
            attention.q_norm.weight, attention.k_norm.weight,
            self.part, self.part_max, self.part_sum, self.arrived,
            config.norm_eps, 1 / math.sqrt(config.head_dim),
            config.n_heads, config.n_kv_heads, config.head_dim, config.max_seq_len,
            plan.attend_splits, plan.attend_block, self.kernels.INTERPRETED, self.pdl,
            num_warps=plan.attend_warps, launch_pdl=self.pdl,
        )  # fmt: skip


def _power(number: int) -> int:
    """The least power of two that is not less: the sizes that Triton's tiles may have."""
    return 1 << (number - 1).bit_length()
