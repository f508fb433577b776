# mypy: ignore-errors
"""Loads weights of every stored format inside Triton kernels, and widens them (bytes: docs/contributing/format.md).

Two ways in, both with the format as a constant. `row_dots` is for decode: each lane takes four bytes of codes (or eight
plain weights) of a row at a time. That keeps a warp's loads within one or two cache lines, and has one load of a scale
serve four or eight weights. As compiled for sm_89 it takes 10.5 instructions a weight of q4_k and 8 of mxfp4: at 4 bits
an SM then gets through some 7 bytes a clock. That is what cards of the 40 series and most of the 30 series bring;
data-centre cards bring twice that, and wait for instructions. `weights_at` widens a tile for tensor cores, with a load
for each code: its many rows pay for it.

Quantised blocks are 34, 18 or 17 bytes long, so codes are read in words of 16 or 8 bits; only q4_k has 32.
"""

from __future__ import annotations

import triton
import triton.language as tl

# IQ4_NL's values + 128 as bytes, codes 0-7 and 8-15: a shift by a register is cheaper than a load from a table.
IQ4_NL_LOW = tl.constexpr(0x766A5D4F3F2D1801)
IQ4_NL_HIGH = tl.constexpr(0xF1D9C5B5A6998D81)


@triton.jit
def rounded(x, FORMAT: tl.constexpr):
    """Activations with the bits that their products with weights of FORMAT have, in f32."""
    if FORMAT == "f32":
        return x
    elif FORMAT == "f16":
        return x.to(tl.float16).to(tl.float32)
    else:
        return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def plain(base, FORMAT: tl.constexpr):
    """A pointer to bytes as one to numbers."""
    if FORMAT == "f32":
        return base.to(tl.pointer_type(tl.float32), bitcast=True)
    elif FORMAT == "f16":
        return base.to(tl.pointer_type(tl.float16), bitcast=True)
    else:
        return base.to(tl.pointer_type(tl.bfloat16), bitcast=True)


@triton.jit
def _small(code, ZERO: tl.constexpr):
    """code - ZERO as f32, code below 2^23. In the low bits of 2^23 a whole number is a float: conversion instructions
    run at a quarter of the rate or less, a 4-bit kernel would wait for them."""
    return (code | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + ZERO)


@triton.jit
def _value(code, FORMAT: tl.constexpr):
    """What a code (uint32) stands for before scales, f32."""
    if FORMAT == "q8_0":
        return _small(code ^ 128, 128)
    elif FORMAT == "q4_0":
        return _small(code, 8)
    elif FORMAT == "q4_k":
        return _small(code, 0)
    elif FORMAT == "iq4_nl":
        low = tl.full(code.shape, IQ4_NL_LOW, tl.uint64)
        high = tl.full(code.shape, IQ4_NL_HIGH, tl.uint64)
        byte = tl.where(code < 8, low, high) >> ((code & 7) * 8).to(tl.uint64)
        return _small((byte & 255).to(tl.uint32), 128)
    else:  # E2M1: its bits are the lowest of an exponent and the highest of a mantissa, 126 powers of two too low
        bits = ((code & 8) << 28) | ((code & 7) << 22)
        return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def _half(word):
    """f16 bits in a uint32, as f32."""
    return word.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _scale(at, inside, FORMAT: tl.constexpr):
    """The scale in front of blocks of 32 at `at`, f32."""
    if FORMAT == "mxfp4":
        exponent = tl.load(at, mask=inside, other=0).to(tl.uint32)
        return tl.where(exponent == 0, 0x00400000, exponent << 23).to(tl.float32, bitcast=True)
    else:
        return tl.load(at.to(tl.pointer_type(tl.float16), bitcast=True), mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _four_bytes(at, inside, ALIGNMENT: tl.constexpr):
    """uint32 at `at`, read in words of ALIGNMENT bytes."""
    if ALIGNMENT == 4:
        return tl.load(at.to(tl.pointer_type(tl.uint32), bitcast=True), mask=inside, other=0)
    elif ALIGNMENT == 2:
        words = at.to(tl.pointer_type(tl.uint16), bitcast=True)
        low = tl.load(words, mask=inside, other=0).to(tl.uint32)
        return low | (tl.load(words + 1, mask=inside, other=0).to(tl.uint32) << 16)
    else:
        quad = tl.load(at, mask=inside, other=0).to(tl.uint32)
        for i in tl.static_range(1, 4):
            quad |= tl.load(at + i, mask=inside, other=0).to(tl.uint32) << (8 * i)
        return quad


@triton.jit
def _six_bits(a, b, c, upper):
    """Scales and minima of q4_k's sub-blocks from words of its bytes 0-3 (a), 4-7 (b) and 8-11 (c), each byte for
    itself: of one or two sub-blocks s in one word, all of them below 4, or (upper) all from 4 on."""
    scale = tl.where(upper, (c & 0x0F0F) | ((a & 0xC0C0) >> 2), a & 0x3F3F)
    low = tl.where(upper, ((c >> 4) & 0x0F0F) | ((b & 0xC0C0) >> 2), b & 0x3F3F)
    return scale, low


@triton.jit
def row_dots(x, base, row, FORMAT: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """f32 [ROWS]: products of x (f32 [COLS], rounded here) with rows `row` (int32 [ROWS], all there) of the matrix at
    `base` (pointer to bytes), LANES lanes at a time. Sums lie in registers and meet only at the end."""
    if FORMAT == "f32" or FORMAT == "f16" or FORMAT == "bf16":
        return _dots_plain(x, base, row, FORMAT, COLS, ROWS, LANES)
    elif FORMAT == "q4_k":
        return _dots_q4_k(x, base, row, COLS, ROWS, LANES)
    else:
        return _dots_blocks(x, base, row, FORMAT, COLS, ROWS, LANES)


@triton.jit
def _dots_plain(x, base, row, FORMAT: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    STEP: tl.constexpr = LANES * 8
    rows = (plain(base, FORMAT) + row.to(tl.int64) * COLS)[:, None]
    sums = tl.zeros([ROWS, STEP], tl.float32)
    for start in range(0, COLS, STEP):
        k = start + tl.arange(0, STEP)
        inside = k < COLS
        weights = tl.load(rows + k[None, :], mask=inside[None, :], other=0.0).to(tl.float32)
        sums += weights * rounded(tl.load(x + k, mask=inside, other=0.0), FORMAT)[None, :]
    return tl.sum(sums, axis=1)


@triton.jit
def _x(x, k, inside):
    return rounded(tl.load(x + k, mask=inside, other=0.0), "bf16")


@triton.jit
def _dots_blocks(x, base, row, FORMAT: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Blocks of 32: 8 lanes a block of q8_0, 4 a block of nibbles."""
    SCALE_BYTES: tl.constexpr = 1 if FORMAT == "mxfp4" else 2
    PARTS: tl.constexpr = 8 if FORMAT == "q8_0" else 4
    BLOCK_BYTES: tl.constexpr = SCALE_BYTES + 4 * PARTS
    NUM_LANES: tl.constexpr = COLS // 32 * PARTS
    rows = (base + row.to(tl.int64) * (COLS // 32 * BLOCK_BYTES))[:, None]
    sums = tl.zeros([ROWS, LANES], tl.float32)
    for start in range(0, NUM_LANES, LANES):
        lane = start + tl.arange(0, LANES)
        inside = lane < NUM_LANES
        all_inside = inside[None, :]
        block, part = lane // PARTS, lane % PARTS
        at = rows + (block * BLOCK_BYTES)[None, :]
        scale = _scale(at, all_inside, FORMAT)
        quad = _four_bytes(at + SCALE_BYTES + (part * 4)[None, :], all_inside, SCALE_BYTES)
        k = block * 32 + part * 4
        dots = tl.zeros([ROWS, LANES], tl.float32)
        for i in tl.static_range(4):
            if FORMAT == "q8_0":
                dots += _value((quad >> (8 * i)) & 255, FORMAT) * _x(x, k + i, inside)[None, :]
            else:
                dots += _value((quad >> (8 * i)) & 15, FORMAT) * _x(x, k + i, inside)[None, :]
                dots += _value((quad >> (8 * i + 4)) & 15, FORMAT) * _x(x, k + i + 16, inside)[None, :]
        sums += scale * dots
    return tl.sum(sums, axis=1)


@triton.jit
def _dots_q4_k(x, base, row, COLS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """32 lanes a super-block; a lane's low nibbles are of one sub-block (s), its high ones of the next."""
    NUM_LANES: tl.constexpr = COLS // 8
    rows = (base + row.to(tl.int64) * (COLS // 256 * 144))[:, None]
    sums = tl.zeros([ROWS, LANES], tl.float32)
    for start in range(0, NUM_LANES, LANES):
        lane = start + tl.arange(0, LANES)
        inside = lane < NUM_LANES
        all_inside = inside[None, :]
        pair, part = lane % 32 // 8, lane % 8
        at = rows + (lane // 32 * 144)[None, :]
        quad = _four_bytes(at + (16 + lane % 32 * 4)[None, :], all_inside, 4)
        d_and_dmin = _four_bytes(at, all_inside, 4)
        packed = (at + (4 + pair % 2 * 2)[None, :]).to(tl.pointer_type(tl.uint16), bitcast=True)  # two sub-blocks
        a = tl.load(packed, mask=all_inside, other=0).to(tl.uint32)
        b = tl.load(packed + 2, mask=all_inside, other=0).to(tl.uint32)
        c = tl.load(packed + 4, mask=all_inside, other=0).to(tl.uint32)
        scales, mins = _six_bits(a, b, c, (pair >= 2)[None, :])
        k = lane // 32 * 256 + pair * 64 + part * 4
        low_dots = tl.zeros([ROWS, LANES], tl.float32)
        high_dots = tl.zeros([ROWS, LANES], tl.float32)
        low_x = tl.zeros([LANES], tl.float32)  # sums of activations, which the minima are times
        high_x = tl.zeros([LANES], tl.float32)
        for i in tl.static_range(4):
            x_low, x_high = _x(x, k + i, inside), _x(x, k + i + 32, inside)
            low_dots += _value((quad >> (8 * i)) & 15, "q4_k") * x_low[None, :]
            high_dots += _value((quad >> (8 * i + 4)) & 15, "q4_k") * x_high[None, :]
            low_x += x_low
            high_x += x_high
        products = _small(scales & 255, 0) * low_dots + _small(scales >> 8, 0) * high_dots
        offsets = _small(mins & 255, 0) * low_x[None, :] + _small(mins >> 8, 0) * high_x[None, :]
        sums += _half(d_and_dmin & 0xFFFF) * products - _half(d_and_dmin >> 16) * offsets
    return tl.sum(sums, axis=1)


@triton.jit
def weights_at(base, row, start, FORMAT: tl.constexpr, COLS: tl.constexpr, STEP: tl.constexpr):
    """f32 [rows, STEP]: columns `start` (a multiple of 32, as STEP is) and on of rows `row` (all there) of the matrix
    at `base`; 0 behind the last column. Scales are loaded once a block, codes one by one."""
    rows = row.to(tl.int64)
    if FORMAT == "f32" or FORMAT == "f16" or FORMAT == "bf16":
        k = start + tl.arange(0, STEP)
        at = plain(base, FORMAT) + (rows * COLS)[:, None] + k[None, :]
        return tl.load(at, mask=(k < COLS)[None, :], other=0.0).to(tl.float32)
    else:
        block = start // 32 + tl.arange(0, STEP // 32)
        inside = (block < COLS // 32)[None, :, None]
        part = tl.arange(0, 32)[None, None, :]
        if FORMAT == "q4_k":
            at = base + (rows * (COLS // 256 * 144))[:, None, None] + (block // 8 * 144)[None, :, None]
            scale, low = _q4_k_lines(at, (block % 8)[None, :, None], inside)
            codes = at + (16 + block % 8 // 2 * 32)[None, :, None] + part
            nibbles = (block % 2 * 4).to(tl.uint32)[None, :, None]
            code = (tl.load(codes, mask=inside, other=0).to(tl.uint32) >> nibbles) & 15
            return tl.reshape(scale * _value(code, FORMAT) - low, [row.shape[0], STEP])
        else:
            SCALE_BYTES: tl.constexpr = 1 if FORMAT == "mxfp4" else 2
            BLOCK_BYTES: tl.constexpr = 34 if FORMAT == "q8_0" else SCALE_BYTES + 16
            at = base + (rows * (COLS // 32 * BLOCK_BYTES))[:, None, None] + (block * BLOCK_BYTES)[None, :, None]
            if FORMAT == "q8_0":
                code = tl.load(at + 2 + part, mask=inside, other=0).to(tl.uint32)
            else:
                byte = tl.load(at + SCALE_BYTES + part % 16, mask=inside, other=0).to(tl.uint32)
                code = (byte >> (part // 16 * 4).to(tl.uint32)) & 15
            return tl.reshape(_scale(at, inside, FORMAT) * _value(code, FORMAT), [row.shape[0], STEP])


@triton.jit
def _q4_k_lines(at, sub_block, inside):
    """Scale and offset, f32, of sub-blocks of the super-blocks at `at`."""
    packed = at + 4 + sub_block % 4
    a = tl.load(packed, mask=inside, other=0).to(tl.uint32)
    b = tl.load(packed + 4, mask=inside, other=0).to(tl.uint32)
    c = tl.load(packed + 8, mask=inside, other=0).to(tl.uint32)
    scale, low = _six_bits(a, b, c, sub_block >= 4)
    d_and_dmin = _four_bytes(at, inside, 4)
    return _half(d_and_dmin & 0xFFFF) * _small(scale, 0), _half(d_and_dmin >> 16) * _small(low, 0)
