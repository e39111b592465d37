# Triton kernels are no Python that mypy could check, and Triton is not installed everywhere.
# mypy: ignore-errors
"""Triton kernels of one decode step at batch 1 to 8, each bound by the weights it streams.

Letters in shapes: B batch, E hidden size, H query heads, G key/value heads, D head size, S slots of
the cache, V vocabulary, N and K rows and columns of a weight [N, K], P programs of a launch.

Five kernels a layer, and between them only vectors:

1. `gemv`: queries, keys and values.
2. `attend`: per-head norms, rotary embedding, cache write, attention over the valid slots alone,
   split over programs; the last program of a head to finish combines the parts.
3. `gemv`: output projection, residual, and what the next norm needs.
4. `gemv`: gate and up projections, SiLU and product.
5. `gemv`: down projection, residual, and what the next norm needs.

Before them `embed`, after them `gemv` for the logits and, if the caller wants it, `pick`.

**A norm costs no kernel.** RMSNorm(h) = g * h / rms(h), and a GEMV is linear: whoever writes the
residual h (float32) also writes g * h in the weights' type and, one number a program, the sum of
its squares. The next GEMV reads the one as its input and scales its result by the other.

**Bytes in flight.** A program holds one tile of weights in registers while the next is loading; 16
bytes a load. Products are folded over the 8 columns a thread owns, so that accumulators take an
eighth of a tile and threads meet once, at the end. Weights are marked evict-first: activations,
norm weights and keys stay in cache. Every reduction has a fixed order: a step is deterministic.

**Programmatic dependent launch** (`pdl`). Each kernel first allows the next to start, then loads
its first tile, and only then waits for the one before (`gdc_wait`: it has ended, its writes can be
seen). So launch and first loads overlap the tail of the kernel before. Before the wait, read only
what no kernel of the step writes: weights, positions, earlier slots of the cache. For this the
first kernel of a step must be an ordinary launch, and every other must wait: then the end of one
implies the end of all before it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

# What `gemv` does with its result; constexpr, as Triton demands of a kernel's globals.
STORE = tl.constexpr(0)
RESIDUAL = tl.constexpr(1)
SWIGLU = tl.constexpr(2)
LOGITS = tl.constexpr(3)

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def embed(
    token_ptr,  # [B] int64
    table_ptr,  # [V, E]
    gain_ptr,  # [E], of the norm that follows
    residual_ptr,  # [B, E] float32, written
    x_ptr,  # [B, E], written: gain * residual
    squares_ptr,  # [B, parts] float32, written
    size: tl.constexpr,  # E
    parts: tl.constexpr,
    block: tl.constexpr,
    block_parts: tl.constexpr,
    pdl: tl.constexpr,
):
    """Start the residual with a token's embedding; one program a row."""
    if pdl:
        cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    token = tl.load(token_ptr + row)
    columns = tl.arange(0, block)
    inside = columns < size
    gain = tl.load(gain_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    h = tl.load(table_ptr + token * size + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual_ptr + row * size + columns, h, mask=inside)
    x = (h * gain).to(x_ptr.dtype.element_ty)
    tl.store(x_ptr + row * size + columns, x, mask=inside)
    # Readers add up `parts` numbers, as after any other kernel; here one program knows it all.
    part = tl.arange(0, block_parts)
    squares = tl.where(part == 0, tl.sum(h * h, axis=0), 0.0)
    tl.store(squares_ptr + row * parts + part, squares, mask=part < parts)


@triton.jit
def _weights(pointers, column, columns: tl.constexpr, block_k: tl.constexpr, inside):
    """Tile [rows, block_k] of a weight whose first column is `column`; past the end zeros."""
    if columns % block_k == 0:
        return tl.load(pointers + column, mask=inside, other=0.0, eviction_policy="evict_first")
    within = (column + tl.arange(0, block_k) < columns)[None, :]
    return tl.load(
        pointers + column, mask=inside & within, other=0.0, eviction_policy="evict_first"
    )


@triton.jit
def _fold(tile, x_ptr, column, columns: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr):
    """Tile [block_n, block_k] times x, summed over the 8 columns of a thread alone."""
    offsets = column + tl.arange(0, block_k)
    if columns % block_k == 0:
        x = tl.load(x_ptr + offsets)
    else:
        x = tl.load(x_ptr + offsets, mask=offsets < columns, other=0.0)
    product = tile.to(tl.float32) * x.to(tl.float32)[None, :]
    return tl.sum(tl.reshape(product, (block_n, block_k // 8, 8)), axis=2)


@triton.jit
def gemv(
    weight_ptr,  # [N, K]
    x_ptr,  # [B, K]
    out_ptr,  # STORE, LOGITS: [B, N]; SWIGLU: [B, N / 2]; RESIDUAL: [B, N], the next x
    squares_ptr,  # [B, parts] float32: sums of squares of the residual, or anything if parts is 0
    residual_ptr,  # RESIDUAL: [B, N] float32, updated in place
    gain_ptr,  # RESIDUAL: [N], of the norm that follows
    part_ptr,  # RESIDUAL: squares [B, P] float32; LOGITS: largest logit [B, P] float32; written
    index_ptr,  # LOGITS: [B, P] int32, its place; written
    eps,
    n_rows: tl.constexpr,  # N
    columns: tl.constexpr,  # K
    batch: tl.constexpr,
    parts: tl.constexpr,
    block_parts: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    epilogue: tl.constexpr,
    pdl: tl.constexpr,
):
    """Weight times x for all rows of the batch; program p does `block_n` rows of the weight.

    SWIGLU: the weight is [gate; up]; a program takes the same rows of both, in turn.
    """
    if pdl:
        cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    slot = tl.arange(0, block_n)
    rows = program * block_n + slot
    if epilogue == SWIGLU:
        rows = (slot % 2) * (n_rows // 2) + program * (block_n // 2) + slot // 2
        valid = program * (block_n // 2) + slot // 2 < n_rows // 2
    else:
        valid = rows < n_rows
    pointers = weight_ptr + rows[:, None] * columns + tl.arange(0, block_k)[None, :]
    inside = valid[:, None]
    tile = _weights(pointers, 0, columns, block_k, inside)
    if epilogue == RESIDUAL:
        gain = tl.load(gain_ptr + rows, mask=valid, other=0.0).to(tl.float32)
    if pdl:
        cuda.gdc_wait()

    # A tuple of one accumulator a row of the batch; Triton cannot compile `(*sums, more)`.
    # What the epilogue needs is asked for here, so that its latency hides under the first tile's.
    part = tl.arange(0, block_parts)
    sums = ()
    squares = ()
    residuals = ()
    for b in tl.static_range(batch):
        sums = sums + (tl.zeros((block_n, block_k // 8), tl.float32),)  # noqa: RUF005
        if parts > 0:
            loaded = tl.load(squares_ptr + b * parts + part, mask=part < parts, other=0.0)
            squares = squares + (loaded,)  # noqa: RUF005
        if epilogue == RESIDUAL:
            loaded = tl.load(residual_ptr + b * n_rows + rows, mask=valid, other=0.0)
            residuals = residuals + (loaded,)  # noqa: RUF005
    for column in range(block_k, columns, block_k):
        following = _weights(pointers, column, columns, block_k, inside)
        added = ()
        for b in tl.static_range(batch):
            x_row = x_ptr + b * columns
            folded = _fold(tile, x_row, column - block_k, columns, block_n, block_k)
            added = added + (sums[b] + folded,)  # noqa: RUF005
        sums = added
        tile = following
    last: tl.constexpr = (columns - 1) // block_k * block_k
    n_programs = tl.num_programs(0)
    for b in tl.static_range(batch):
        folded = sums[b] + _fold(tile, x_ptr + b * columns, last, columns, block_n, block_k)
        y = tl.sum(folded, axis=1)
        if parts > 0:
            y = y * tl.rsqrt(tl.sum(squares[b], axis=0) / columns + eps)
        if epilogue == STORE:
            tl.store(out_ptr + b * n_rows + rows, y.to(out_ptr.dtype.element_ty), mask=valid)
        elif epilogue == RESIDUAL:
            h = residuals[b] + y
            tl.store(residual_ptr + b * n_rows + rows, h, mask=valid)
            x = (h * gain).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + b * n_rows + rows, x, mask=valid)
            tl.store(part_ptr + b * n_programs + program, tl.sum(h * h, axis=0))
        elif epilogue == SWIGLU:
            gate, up = tl.split(tl.reshape(y, (block_n // 2, 2)))
            units = program * (block_n // 2) + tl.arange(0, block_n // 2)
            product = (gate * tl.sigmoid(gate) * up).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + b * (n_rows // 2) + units, product, mask=units < n_rows // 2)
        else:
            logits = y.to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + b * n_rows + rows, logits, mask=valid)
            # The rounded ones are compared: whoever takes the argmax of the logits must agree.
            compared = tl.where(valid, logits.to(tl.float32), -float("inf"))
            best, place = tl.max(compared, axis=0, return_indices=True)
            tl.store(part_ptr + b * n_programs + program, best)
            tl.store(index_ptr + b * n_programs + program, program * block_n + place)


@triton.jit
def pick(
    part_ptr,  # [B, parts] float32
    index_ptr,  # [B, parts] int32
    token_ptr,  # [B] int64, written
    parts: tl.constexpr,
    block_parts: tl.constexpr,
    pdl: tl.constexpr,
):
    """Finish the argmax that `gemv` began: the first of the largest logits; one program a row."""
    if pdl:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    row = tl.program_id(0)
    part = tl.arange(0, block_parts)
    best = tl.load(part_ptr + row * parts + part, mask=part < parts, other=-float("inf"))
    _, winner = tl.max(best, axis=0, return_indices=True)
    tl.store(token_ptr + row, tl.load(index_ptr + row * parts + winner).to(tl.int64))


@triton.jit
def _normed_and_turned(
    pointers, gain_ptr, cos, sin, valid, eps, head_dim: tl.constexpr, rows: tl.constexpr
):
    """Norm each head, then turn it by its angle: pointers to rows of heads [rows] -> [rows, D].

    Half-split rotary embedding needs each element's partner D / 2 away: read it again, it is near.
    """
    column = tl.arange(0, head_dim)
    partner = (column + head_dim // 2) % head_dim
    x = tl.load(pointers[:, None] + column[None, :], mask=valid[:, None], other=0.0)
    other = tl.load(pointers[:, None] + partner[None, :], mask=valid[:, None], other=0.0)
    x, other = x.to(tl.float32), other.to(tl.float32)
    gain = tl.load(gain_ptr + column).to(tl.float32)
    other_gain = tl.load(gain_ptr + partner).to(tl.float32)
    other_gain = tl.where(column < head_dim // 2, -other_gain, other_gain)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / head_dim + eps)
    turned = x * (gain * cos)[None, :] + other * (other_gain * sin)[None, :]
    return turned * scale[:, None]


@triton.jit
def _product(left, right, start, interpreted: tl.constexpr):
    """`start` plus a matrix product, added up in float32."""
    if interpreted:  # Triton's interpreter multiplies the bits of bfloat16 as if they were integers
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, acc=start, input_precision="ieee")


@triton.jit
def attend(
    qkv_ptr,  # [B, (H + 2 G) * D]
    key_ptr,  # [B, G, S, D], one slot a row written
    value_ptr,  # [B, G, S, D], one slot a row written
    out_ptr,  # [B, H * D], written
    position_ptr,  # [B] int64
    cos_ptr,  # [S, D / 2] float32
    sin_ptr,  # [S, D / 2] float32
    q_gain_ptr,  # [D]
    k_gain_ptr,  # [D]
    part_ptr,  # [B * G, splits, H / G, D] float32, scratch
    part_max_ptr,  # [B * G, splits, H / G] float32, scratch
    part_sum_ptr,  # [B * G, splits, H / G] float32, scratch
    arrived_ptr,  # [B * G] int32, zero before and after
    eps,
    scale,  # 1 / sqrt(D)
    n_heads: tl.constexpr,
    n_groups: tl.constexpr,  # G
    head_dim: tl.constexpr,
    slots: tl.constexpr,  # S
    splits: tl.constexpr,
    block: tl.constexpr,  # slots a tile
    interpreted: tl.constexpr,
    pdl: tl.constexpr,
):
    """Attention of one token over its row's valid slots; grid (B * G, splits).

    The grid is the same for every position; how many of the splits have work follows from the
    position, on the device. Idle programs end at once.
    """
    if pdl:
        cuda.gdc_launch_dependents()
    shared_head = tl.program_id(0)
    split = tl.program_id(1)
    row, group = shared_head // n_groups, shared_head % n_groups
    members: tl.constexpr = n_heads // n_groups
    # A position past the cache is the caller's mistake; it must not become a stray write.
    position = tl.minimum(tl.load(position_ptr + row), slots - 1).to(tl.int32)
    n_blocks = position // block + 1
    blocks_a_split = tl.cdiv(n_blocks, splits)
    active = tl.cdiv(n_blocks, blocks_a_split)
    if split >= active:
        return
    first = split * blocks_a_split
    last = tl.minimum(first + blocks_a_split, n_blocks)

    column = tl.arange(0, head_dim)
    within = tl.arange(0, block)
    # Slot `position` is this step's: it is taken from the registers, whoever writes it.
    end = tl.minimum(last * block, position)
    cache = shared_head.to(tl.int64) * slots * head_dim
    keys_ptr = key_ptr + cache + within[:, None] * head_dim + column[None, :]
    values_ptr = value_ptr + cache + within[:, None] * head_dim + column[None, :]
    stored = (first * block + within < end)[:, None]
    keys = tl.load(keys_ptr + first * block * head_dim, mask=stored, other=0.0)
    values = tl.load(values_ptr + first * block * head_dim, mask=stored, other=0.0)
    angle = position * (head_dim // 2) + column % (head_dim // 2)
    cos, sin = tl.load(cos_ptr + angle), tl.load(sin_ptr + angle)
    if pdl:
        cuda.gdc_wait()

    qkv = qkv_ptr + row * (n_heads + 2 * n_groups) * head_dim
    member = tl.arange(0, 16)  # the least a matrix instruction takes; rows past `members` are zero
    used = member < members
    query_ptr = qkv + (group * members + member) * head_dim
    query = _normed_and_turned(query_ptr, q_gain_ptr, cos, sin, used, eps, head_dim, 16)
    query = (query * (scale * LOG2_E)).to(keys.dtype)
    one = tl.arange(0, 1)
    new_key_ptr = qkv + (n_heads + group + one) * head_dim
    new_key = _normed_and_turned(new_key_ptr, k_gain_ptr, cos, sin, one == 0, eps, head_dim, 1)
    new_key = new_key.to(keys.dtype)
    new_value_ptr = qkv + (n_heads + n_groups + group + one) * head_dim
    new_value = tl.load(new_value_ptr[:, None] + column[None, :])
    writes = (one[:, None] + split) == active - 1
    written = cache + position * head_dim + one[:, None] + column[None, :]
    tl.store(key_ptr + written, new_key, mask=writes)
    tl.store(value_ptr + written, new_value, mask=writes)

    largest = tl.full((16,), -float("inf"), tl.float32)
    total = tl.zeros((16,), tl.float32)
    mixed = tl.zeros((16, head_dim), tl.float32)
    index = first
    while index < last:
        slot = index * block + within
        newest = (slot == position)[:, None]
        keys = tl.where(newest, new_key, keys)
        values = tl.where(newest, new_value, values)
        scores = tl.zeros((16, block), tl.float32)
        scores = _product(query, tl.trans(keys), scores, interpreted)
        # The next tile is asked for as soon as this one's registers are free.
        following = (index + 1) * block
        stored = (following + within < end)[:, None]
        keys = tl.load(keys_ptr + following * head_dim, mask=stored, other=0.0)
        scores = tl.where((slot <= position)[None, :], scores, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_largest[:, None])
        shrink = tl.exp2(largest - new_largest)
        total = total * shrink + tl.sum(weights, axis=1)
        rounded = weights.to(values.dtype)
        mixed = _product(rounded, values, mixed * shrink[:, None], interpreted)
        values = tl.load(values_ptr + following * head_dim, mask=stored, other=0.0)
        largest = new_largest
        index += 1

    heads = row * n_heads + group * members
    if active == 1:
        out = out_ptr + (heads + member[:, None]) * head_dim + column[None, :]
        result = (mixed / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out, result, mask=used[:, None])
    else:
        place = (shared_head * splits + split) * members + member
        tl.store(part_max_ptr + place, largest, mask=used)
        tl.store(part_sum_ptr + place, total, mask=used)
        parts = part_ptr + place[:, None] * head_dim + column[None, :]
        tl.store(parts, mixed, mask=used[:, None])
        # All threads' stores come before the count that announces them.
        tl.debug_barrier()
        count = tl.atomic_add(arrived_ptr + shared_head, 1, sem="acq_rel")
        if count == active - 1:
            tl.store(arrived_ptr + shared_head, 0)
            part = tl.arange(0, splits)
            there = part < active
            for m in tl.static_range(members):
                place_of = (shared_head * splits + part) * members + m
                # From the L2 (".cg"): other multiprocessors wrote these while this kernel ran.
                maxima = tl.load(
                    part_max_ptr + place_of, mask=there, other=-float("inf"), cache_modifier=".cg"
                )
                sums = tl.load(part_sum_ptr + place_of, mask=there, other=0.0, cache_modifier=".cg")
                vectors = tl.load(
                    part_ptr + place_of[:, None] * head_dim + column[None, :],
                    mask=there[:, None],
                    other=0.0,
                    cache_modifier=".cg",
                )
                share = tl.exp2(maxima - tl.max(maxima, axis=0))
                combined = tl.sum(vectors * share[:, None], axis=0) / tl.sum(share * sums, axis=0)
                out = out_ptr + (heads + m) * head_dim + column
                tl.store(out, combined.to(out_ptr.dtype.element_ty))


# With TRITON_INTERPRET=1 the kernels run on the CPU, one program after the other.
INTERPRETED = not isinstance(gemv, triton.JITFunction)
