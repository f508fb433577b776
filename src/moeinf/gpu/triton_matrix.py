# mypy: ignore-errors
"""Triton kernels for what matrix_ops.MatrixOps says. Names in capitals are constants of a compiled kernel.

An expert is given by the 64-bit address of its block, and its parts lie at constant, 64-byte-aligned offsets behind.
Rows behind the end of a matrix are read as its last row again, and not stored: loads need no mask for them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from moeinf.gpu.triton_formats import plain, rounded, row_dots, weights_at


@triton.jit
def _tile(COUNT: tl.constexpr, TILE: tl.constexpr):
    """Rows (or columns) of this program's tile that are there, and which of them are its own."""
    own = tl.program_id(0) * TILE + tl.arange(0, TILE)
    return tl.minimum(own, COUNT - 1), own < COUNT


@triton.jit
def _part(address, OFFSET: tl.constexpr):
    """Pointer to bytes of one matrix of the expert at `address`. The compiler forgets what it is told of an integer, or
    of a sum: so the block's pointer says which alignment it has, else loads would be 2 bytes wide."""
    return tl.multiple_of(address.to(tl.pointer_type(tl.uint8)), 64) + OFFSET


@triton.jit
def _with_bias(sums, address, row, FORMAT: tl.constexpr, OFFSET: tl.constexpr):
    """sums [..., rows] plus a bias of the expert at `address`; FORMAT None: it has none."""
    if FORMAT is not None:
        sums += tl.load(plain(_part(address, OFFSET), FORMAT) + row).to(tl.float32)
    return sums


@triton.jit
def softcap(x, MOST: tl.constexpr):
    """MOST * tanh(x / MOST); near 0 by a polynomial, as in Cephes."""
    x = x / MOST
    z = x * x
    near = (((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1) * z
    near = x + x * z * (near - 3.33332819422e-1)
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return MOST * tl.where(tl.abs(x) < 0.625, near, tl.where(x < 0, -far, far))


@triton.jit
def _activated(gate, up, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, GATE_LIMIT: tl.constexpr, GATED: tl.constexpr):
    """types.ExpertForm; `gate` counts only where GATED."""
    if ACTIVATION == "swiglu_clamped":
        gate = tl.minimum(gate, LIMIT)
        return (tl.minimum(tl.maximum(up, -LIMIT), LIMIT) + 1.0) * gate / (1.0 + tl.exp(-1.702 * gate))
    elif ACTIVATION == "silu_clamped":
        return _function(tl.minimum(gate, LIMIT), "silu") * tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
    elif ACTIVATION == "clamped_silu":
        return tl.minimum(_function(gate, "silu"), LIMIT) * tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
    elif ACTIVATION == "softcapped":
        gate = softcap(gate, GATE_LIMIT) / (1.0 + tl.exp(-gate))
        if LIMIT > 0:
            up = softcap(up, LIMIT)
        return gate * up
    elif GATED:
        return _function(gate, ACTIVATION) * up
    else:
        return _function(up, ACTIVATION)


@triton.jit
def _function(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        return x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(0.7071067811865476 * x))
    elif ACTIVATION == "relu2":
        return tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    elif ACTIVATION == "gelu_tanh":  # (1 + tanh(u)) / 2 is the sigmoid of 2 u
        return x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "quick_gelu":
        return x / (1.0 + tl.exp(-1.702 * x))
    else:
        tl.static_assert(ACTIVATION == "relu")
        return tl.maximum(x, 0.0)


# Not specialised for the number of tokens, so that one token is computed by the very instructions that eight are.
@triton.jit(do_not_specialize=["num_tokens"])
def linear(
    x, data, bias, out, num_tokens,
    FORMAT: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr, TILE: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Decode. A program has TILE rows of the matrix, and comes back to them for the next token while they are in L1."""
    row, own = _tile(ROWS, TILE)
    for token in range(num_tokens):
        dots = row_dots(x + token * COLS, data, row, FORMAT, COLS, TILE, LANES)
        if bias is not None:
            dots += tl.load(bias + row)
        cell = out + token * ROWS + row
        if ADD:
            dots += tl.load(cell)
        tl.store(cell, dots, mask=own)


@triton.jit(do_not_specialize=["top_k"])
def gate_up(
    x, addresses, out, top_k,
    ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, GATE_LIMIT: tl.constexpr, GATED: tl.constexpr,
    GATE_BIAS: tl.constexpr, GATE_BIAS_OFFSET: tl.constexpr, UP_BIAS: tl.constexpr, UP_BIAS_OFFSET: tl.constexpr,
    GATE: tl.constexpr, GATE_OFFSET: tl.constexpr, UP: tl.constexpr, UP_OFFSET: tl.constexpr,
    COLS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, GATE_LANES: tl.constexpr, UP_LANES: tl.constexpr,
):  # fmt: skip
    """Decode: TILE rows of gate, then of up, of a pair's expert. One after the other, as both at once would take the
    registers of twice as many programs; these hide each other's waits."""
    pair = tl.program_id(1)
    address = tl.load(addresses + pair)
    if address != 0:
        row, own = _tile(ROWS, TILE)
        token = x + pair // top_k * COLS
        gate = 0.0
        if GATED:
            gate = row_dots(token, _part(address, GATE_OFFSET), row, GATE, COLS, TILE, GATE_LANES)
            gate = _with_bias(gate, address, row, GATE_BIAS, GATE_BIAS_OFFSET)
        up = row_dots(token, _part(address, UP_OFFSET), row, UP, COLS, TILE, UP_LANES)
        up = _with_bias(up, address, row, UP_BIAS, UP_BIAS_OFFSET)
        tl.store(out + pair * ROWS + row, _activated(gate, up, ACTIVATION, LIMIT, GATE_LIMIT, GATED), mask=own)


@triton.jit
def down(
    act, addresses, out, BIAS: tl.constexpr, BIAS_OFFSET: tl.constexpr,
    FORMAT: tl.constexpr, OFFSET: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Decode: TILE rows of a pair's expert."""
    pair = tl.program_id(1)
    address = tl.load(addresses + pair)
    if address != 0:
        row, own = _tile(ROWS, TILE)
        dots = row_dots(act + pair * COLS, _part(address, OFFSET), row, FORMAT, COLS, TILE, LANES)
        tl.store(out + pair * ROWS + row, _with_bias(dots, address, row, BIAS, BIAS_OFFSET), mask=own)


@triton.jit
def _as_operand(values, FORMAT: tl.constexpr, NARROW: tl.constexpr):
    """For a tensor core: f16 as it is, widened weights and bf16 as bf16. Not NARROW: the same numbers in f32, since
    Triton's interpreter multiplies the bits of bf16 as if they were whole numbers."""
    if FORMAT == "f32" or not NARROW:
        return rounded(values, FORMAT)
    elif FORMAT == "f16":
        return values.to(tl.float16)
    else:
        return values.to(tl.bfloat16)


@triton.jit
def _operand(base, row, start, FORMAT: tl.constexpr, COLS: tl.constexpr, STEP: tl.constexpr, NARROW: tl.constexpr):
    """Weights [N rows, STEP from start] of the matrix at `base`."""
    return _as_operand(weights_at(base, row, start, FORMAT, COLS, STEP), FORMAT, NARROW)


@triton.jit
def _add_product(sums, x, weights, FORMAT: tl.constexpr, NARROW: tl.constexpr):
    """sums [M, N] += x [M, STEP] @ weights [N, STEP].T. IEEE for f32 weights: no TF32."""
    return tl.dot(_as_operand(x, FORMAT, NARROW), tl.trans(weights), sums, input_precision="ieee")


@triton.jit
def gate_up_grouped(
    x, pairs, starts, counts, addresses, out, top_k,
    ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, GATE_LIMIT: tl.constexpr, GATED: tl.constexpr,
    GATE_BIAS: tl.constexpr, GATE_BIAS_OFFSET: tl.constexpr, UP_BIAS: tl.constexpr, UP_BIAS_OFFSET: tl.constexpr,
    GATE: tl.constexpr, GATE_OFFSET: tl.constexpr, UP: tl.constexpr, UP_OFFSET: tl.constexpr,
    COLS: tl.constexpr, ROWS: tl.constexpr, PAIR_TILE: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    NARROW: tl.constexpr,
):  # fmt: skip
    """Prefill: a tile of pairs of one expert times TILE rows of its gate and up, which share the loads of x. Tiles
    of one expert are neighbours in the grid, and so find its weights in L2.

    Rows of gate and up lie in turn in one product. Two that share x are a chain to the compiler, which then gives every
    warp all of the columns: on most cards half of the warps would multiply what the others do.
    """
    PAIRED: tl.constexpr = GATED and GATE == UP
    row, own = _tile(ROWS, TILE)
    pair, there, address = _pairs(pairs, starts, counts, addresses, PAIR_TILE)
    token = x + (pair // top_k).to(tl.int64)[:, None] * COLS
    gate_at, up_at = _part(address, GATE_OFFSET), _part(address, UP_OFFSET)
    gate = tl.zeros([PAIR_TILE, TILE], tl.float32)
    sums = tl.zeros([PAIR_TILE, 2 * TILE if PAIRED else TILE], tl.float32)
    for start in range(0, COLS, STEP):
        k = start + tl.arange(0, STEP)
        part = tl.load(token + k[None, :], mask=there[:, None] & (k < COLS)[None, :], other=0.0)
        weights = _operand(up_at, row, start, UP, COLS, STEP, NARROW)
        if GATED:
            gate_weights = _operand(gate_at, row, start, GATE, COLS, STEP, NARROW)
            if PAIRED:
                in_turn = tl.permute(tl.join(gate_weights, weights), (0, 2, 1))
                weights = tl.reshape(in_turn, [2 * TILE, STEP])
            else:
                gate = _add_product(gate, part, gate_weights, GATE, NARROW)
        sums = _add_product(sums, part, weights, UP, NARROW)
    if PAIRED:
        gate, up = tl.split(tl.reshape(sums, [PAIR_TILE, TILE, 2]))
    else:
        up = sums
    gate = _with_bias(gate, address, row[None, :], GATE_BIAS, GATE_BIAS_OFFSET)
    up = _with_bias(up, address, row[None, :], UP_BIAS, UP_BIAS_OFFSET)
    at = out + pair.to(tl.int64)[:, None] * ROWS + row[None, :]
    tl.store(at, _activated(gate, up, ACTIVATION, LIMIT, GATE_LIMIT, GATED), mask=there[:, None] & own[None, :])


@triton.jit
def down_grouped(
    act, pairs, starts, counts, addresses, out, BIAS: tl.constexpr, BIAS_OFFSET: tl.constexpr,
    FORMAT: tl.constexpr, OFFSET: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, PAIR_TILE: tl.constexpr,
    TILE: tl.constexpr, STEP: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """Prefill: a tile of pairs of one expert times TILE rows of its down."""
    row, own = _tile(ROWS, TILE)
    pair, there, address = _pairs(pairs, starts, counts, addresses, PAIR_TILE)
    rows = act + pair.to(tl.int64)[:, None] * COLS
    sums = tl.zeros([PAIR_TILE, TILE], tl.float32)
    for start in range(0, COLS, STEP):
        k = start + tl.arange(0, STEP)
        part = tl.load(rows + k[None, :], mask=there[:, None] & (k < COLS)[None, :], other=0.0)
        weights = _operand(_part(address, OFFSET), row, start, FORMAT, COLS, STEP, NARROW)
        sums = _add_product(sums, part, weights, FORMAT, NARROW)
    sums = _with_bias(sums, address, row[None, :], BIAS, BIAS_OFFSET)
    at = out + pair.to(tl.int64)[:, None] * ROWS + row[None, :]
    tl.store(at, sums, mask=there[:, None] & own[None, :])


@triton.jit
def _pairs(pairs, starts, counts, addresses, PAIR_TILE: tl.constexpr):
    """Pairs of this program's tile, which of them are there, and the address of their expert."""
    tile = tl.program_id(1)
    turn = tl.arange(0, PAIR_TILE)
    there = turn < tl.load(counts + tile)
    return tl.load(pairs + tl.load(starts + tile) + turn, mask=there, other=0), there, tl.load(addresses + tile)


@triton.jit
def widen(data, out, num_rows, FORMAT: tl.constexpr, COLS: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr):
    """out bf16 [num_rows, COLS]: the weights of a matrix, for a large product that torch computes."""
    own = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row = tl.minimum(own, num_rows - 1)
    start = tl.program_id(1) * STEP
    k = start + tl.arange(0, STEP)
    weights = weights_at(data, row, start, FORMAT, COLS, STEP).to(tl.bfloat16)
    at = out + (row.to(tl.int64) * COLS)[:, None] + k[None, :]
    tl.store(at, weights, mask=(own < num_rows)[:, None] & (k < COLS)[None, :])
