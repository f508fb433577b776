# mypy: ignore-errors
"""Loads weights of every stored format inside Triton kernels, and widens them (bytes: docs/contributing/format.md).

Two ways in, both with the format as a constant. `row_dots` is for decode: a lane takes eight bytes of codes (or eight
plain weights) of a row at a time, and the same of several rows, which share what is done to activations. As compiled
for sm_90 with 8 rows it takes 4.6 instructions a weight of q8_0 and q4_0, 6.6 of q4_k, 7.5 of mxfp4 and 10.9 of iq4_nl.
`weights_at` widens a tile for tensor cores, with a load for each code: its many rows pay for it.

The threads of a warp must run along the lanes of a tile: along its rows, a load would touch a line for each of them,
and activations would change threads through shared memory. Where neighbours along neither dimension are neighbours in
memory, as in quantised rows, Triton before 3.7 has threads run along the first dimension, and from 3.7 on along the
last: so lanes are the one or the other.

Quantised blocks are 34, 18 or 17 bytes long, so codes are read in words of 16 or 8 bits; only q4_k has 32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from moeinf.gpu.matrix import LANE_BYTES

# IQ4_NL's values + 128 as bytes, codes 0-7 and 8-15: a shift by a register is cheaper than a load from a table.
IQ4_NL_LOW = tl.constexpr(0x766A5D4F3F2D1801)
IQ4_NL_HIGH = tl.constexpr(0xF1D9C5B5A6998D81)
CODE_BYTES = tl.constexpr(LANE_BYTES)
LANES_FIRST = tl.constexpr(tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 7))
# Activations are multiplied by this, and so may be up to 2^47, before they meet weights that are subnormal floats.
RAISED = tl.constexpr(2.0**80)
FROM_PLACE = tl.constexpr(2.0 ** (149 - 80))
FROM_E2M1 = tl.constexpr(2.0 ** (126 - 80))


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
def _iq4_nl(word):
    """What the lowest four bits of `word` stand for in iq4_nl, plus 128: in the lowest eight bits, others above."""
    low = tl.full(word.shape, IQ4_NL_LOW, tl.uint64)
    high = tl.full(word.shape, IQ4_NL_HIGH, tl.uint64)
    return (tl.where((word & 8) == 0, low, high) >> ((word & 7) * 8).to(tl.uint64)).to(tl.uint32)


@triton.jit
def _e2m1(word):
    """What they stand for as E2M1, times 2^-126: they are the lowest of a float's exponent and the highest of its
    mantissa."""
    return (((word & 8) << 28) | ((word & 7) << 22)).to(tl.float32, bitcast=True)


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
        return _small(_iq4_nl(code) & 255, 128)
    else:
        return _e2m1(code) * 8.507059173023462e37  # 2^126


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
    if (FORMAT == "f32" or FORMAT == "f16") or FORMAT == "bf16":  # Triton 3.3 wants the parentheses
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
def _in_place(word, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """COUNT bits of `word` from bit FIRST on, as the whole number c that they are, times 2^(FIRST - 149): a subnormal
    float, for which one instruction suffices. FIRST + COUNT is at most 23."""
    return (word & (((1 << COUNT) - 1) << FIRST)).to(tl.float32, bitcast=True)


@triton.jit
def _bits(word, FORMAT: tl.constexpr):
    """What the lowest four bits of `word` stand for: of iq4_nl as _in_place from bit 0 on, plus 128."""
    if FORMAT == "iq4_nl":
        return _in_place(_iq4_nl(word), 0, 8)
    else:
        tl.static_assert(FORMAT == "mxfp4")
        return _e2m1(word)


@triton.jit
def _two_x(x, k, STEP: tl.constexpr, inside):
    """Activations at k and at k + STEP, rounded together: the instruction for one takes eight times as long."""
    both = tl.join(tl.load(x + k, mask=inside, other=0.0), tl.load(x + k + STEP, mask=inside, other=0.0))
    return tl.split(rounded(both, "bf16"))


@triton.jit
def _of_lanes(values):
    """Values of lanes, for every row."""
    if LANES_FIRST:
        return values[:, None]
    else:
        return values[None, :]


@triton.jit
def _of_rows(values):
    """Values of rows, for every lane."""
    if LANES_FIRST:
        return values[None, :]
    else:
        return values[:, None]


@triton.jit
def _zeros(LANES: tl.constexpr, ROWS: tl.constexpr):
    if LANES_FIRST:
        return tl.zeros([LANES, ROWS], tl.float32)
    else:
        return tl.zeros([ROWS, LANES], tl.float32)


@triton.jit
def _sum_of_lanes(sums):
    if LANES_FIRST:
        return tl.sum(sums, axis=0)
    else:
        return tl.sum(sums, axis=1)


@triton.jit
def _for_place(x, FIRST: tl.constexpr):
    """Activations for numbers that _in_place takes from bit FIRST on: FROM_PLACE times the products is c * x."""
    return _of_lanes(x * (RAISED * 2.0**-FIRST))


@triton.jit
def _dots_blocks(x, base, row, FORMAT: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Blocks of 32 weights: 4 lanes a block of q8_0, 2 a block of nibbles."""
    SCALE_BYTES: tl.constexpr = 1 if FORMAT == "mxfp4" else 2
    PARTS: tl.constexpr = (32 if FORMAT == "q8_0" else 16) // CODE_BYTES
    BLOCK_BYTES: tl.constexpr = SCALE_BYTES + PARTS * CODE_BYTES
    NUM_LANES: tl.constexpr = COLS // 32 * PARTS
    rows = _of_rows(base + row.to(tl.int64) * (COLS // 32 * BLOCK_BYTES))
    sums = _zeros(LANES, ROWS)
    for start in range(0, NUM_LANES, LANES):
        lane = start + tl.arange(0, LANES)
        inside = lane < NUM_LANES
        all_inside = _of_lanes(inside)
        block, part = lane // PARTS, lane % PARTS
        at = rows + _of_lanes(block * BLOCK_BYTES)
        scale = _scale(at, all_inside, FORMAT)
        codes = at + SCALE_BYTES + _of_lanes(part * CODE_BYTES)
        k = block * 32 + part * CODE_BYTES
        dots = _zeros(LANES, ROWS)
        total = tl.zeros([LANES], tl.float32)
        for two in tl.static_range(0, CODE_BYTES, 2):
            if SCALE_BYTES == 2:
                word = tl.load((codes + two).to(tl.pointer_type(tl.uint16), bitcast=True), mask=all_inside, other=0)
                word = word.to(tl.uint32)
            else:
                word = tl.load(codes + two, mask=all_inside, other=0).to(tl.uint32)
                word |= tl.load(codes + two + 1, mask=all_inside, other=0).to(tl.uint32) << 8
            if FORMAT == "q8_0":
                word = word ^ 0x8080
                first, second = _two_x(x, k + two, 1, inside)
                total += first + second
                dots += _in_place(word, 0, 8) * _for_place(first, 0)
                dots += _in_place(word, 8, 8) * _for_place(second, 8)
            elif FORMAT == "q4_0":
                for i in tl.static_range(2):
                    low, high = _two_x(x, k + two + i, 16, inside)
                    total += low + high
                    dots += _in_place(word, 8 * i, 4) * _for_place(low, 8 * i)
                    dots += _in_place(word, 8 * i + 4, 4) * _for_place(high, 8 * i + 4)
            else:
                for i in tl.static_range(2):
                    low, high = _two_x(x, k + two + i, 16, inside)
                    total += low + high
                    dots += _bits(word >> (8 * i), FORMAT) * _for_place(low, 0)
                    dots += _bits(word >> (8 * i + 4), FORMAT) * _for_place(high, 0)
        if FORMAT == "mxfp4":
            dots *= FROM_E2M1
        else:
            ZERO: tl.constexpr = 8.0 if FORMAT == "q4_0" else 128.0
            dots = FROM_PLACE * dots - ZERO * _of_lanes(total)
        sums += scale * dots
    return _sum_of_lanes(sums)


@triton.jit
def _dots_q4_k(x, base, row, COLS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """A lane's low nibbles are of one sub-block, its high ones of the next."""
    PARTS: tl.constexpr = 32 // CODE_BYTES  # of a pair of sub-blocks
    NUM_LANES: tl.constexpr = COLS // (2 * CODE_BYTES)
    rows = _of_rows(base + row.to(tl.int64) * (COLS // 256 * 144))
    sums = _zeros(LANES, ROWS)
    for start in range(0, NUM_LANES, LANES):
        lane = start + tl.arange(0, LANES)
        inside = lane < NUM_LANES
        all_inside = _of_lanes(inside)
        pair, part = lane // PARTS % 4, lane % PARTS
        at = rows + _of_lanes(lane // (4 * PARTS) * 144)
        codes = at + _of_lanes(16 + pair * 32 + part * CODE_BYTES)
        d_and_dmin = _four_bytes(at, all_inside, 4)
        packed = (at + _of_lanes(4 + pair % 2 * 2)).to(tl.pointer_type(tl.uint16), bitcast=True)  # two sub-blocks
        a = tl.load(packed, mask=all_inside, other=0).to(tl.uint32)
        b = tl.load(packed + 2, mask=all_inside, other=0).to(tl.uint32)
        c = tl.load(packed + 4, mask=all_inside, other=0).to(tl.uint32)
        scales, mins = _six_bits(a, b, c, _of_lanes(pair >= 2))
        low_dots = _zeros(LANES, ROWS)
        high_dots = _zeros(LANES, ROWS)
        low_x = tl.zeros([LANES], tl.float32)  # sums of activations, which the minima are times
        high_x = tl.zeros([LANES], tl.float32)
        k = lane // (4 * PARTS) * 256 + pair * 64 + part * CODE_BYTES
        for four in tl.static_range(0, CODE_BYTES, 4):
            quad = _four_bytes(codes + four, all_inside, 4)
            for half in tl.static_range(2):
                for i in tl.static_range(2):
                    x_low, x_high = _two_x(x, k + four + 2 * half + i, 32, inside)
                    low_x += x_low
                    high_x += x_high
                    low_dots += _in_place(quad, 8 * i, 4) * _for_place(x_low, 8 * i)
                    high_dots += _in_place(quad, 8 * i + 4, 4) * _for_place(x_high, 8 * i + 4)
                quad = quad >> 16
        low, high = _small(scales & 255, 0), _small(scales >> 8, 0)
        products = FROM_PLACE * (low * low_dots + high * high_dots)
        offsets = _small(mins & 255, 0) * _of_lanes(low_x) + _small(mins >> 8, 0) * _of_lanes(high_x)
        sums += _half(d_and_dmin & 0xFFFF) * products - _half(d_and_dmin >> 16) * offsets
    return _sum_of_lanes(sums)


@triton.jit
def weights_at(base, row, start, FORMAT: tl.constexpr, COLS: tl.constexpr, STEP: tl.constexpr):
    """f32 [rows, STEP]: columns `start` (a multiple of 32, as STEP is) and on of rows `row` (all there) of the matrix
    at `base`; 0 behind the last column. Scales are loaded once a block, codes one by one."""
    rows = row.to(tl.int64)
    if (FORMAT == "f32" or FORMAT == "f16") or FORMAT == "bf16":  # Triton 3.3 wants the parentheses
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
