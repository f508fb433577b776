"""Triton kernels for attention of a few tokens over a long cache, in a grid that does not depend on its length.

What a token sees is cut into shares, a whole number of blocks each, which `attend_split` takes side by side (there are
always SPLITS programs, those behind the end have nothing to do) and `attend_merge` puts together.
"""

# Triton's language has Python's syntax alone: its functions take pointers and blocks, which have no types to write.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from moeinf.gpu.triton_matrix import softcap


@triton.jit
def _seen(position, token, WINDOW: tl.constexpr, CHUNKED: tl.constexpr, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr):
    """The positions that a token sees, first and last + 1, and how many of them are one share."""
    last = tl.load(position) + token + 1
    num_seen = last
    if CHUNKED:
        num_seen = (last - 1) % WINDOW + 1
    elif WINDOW > 0:
        num_seen = tl.minimum(last, WINDOW)
    share = tl.cdiv(num_seen, SPLITS)
    return last - num_seen, last, tl.cdiv(share, BLOCK_N) * BLOCK_N


@triton.jit
def _query(q, head, in_group, d, HEAD_DIM: tl.constexpr, stored: tl.constexpr, kind: tl.constexpr):
    """The numbers `d` of heads, rounded as what is in the cache."""
    at = q + head[:, None] * HEAD_DIM + d[None, :]
    return tl.load(at, mask=in_group[:, None] & (d < HEAD_DIM)[None, :], other=0.0).to(stored).to(kind)


@triton.jit
def attend_split(
    q, keys, values, bias, position, mixed, maxima, sums, capacity, extent, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WINDOW: tl.constexpr, CHUNKED: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BIASES: tl.constexpr,
    STEP_D: tl.constexpr, CAP: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Programs [tokens * KV_HEADS * PIECES, SPLITS]: BLOCK_G query heads of one key/value head, or fewer, over a share.

    Writes unnormalised sums mixed [tokens * HEADS, SPLITS, HEAD_DIM], and maxima and sums [tokens * HEADS, SPLITS].
    bias [BIASES, extent] or None: by how far back a position lies; of head h of token t row (t * HEADS + h) % BIASES.
    Scores are summed over STEP_D numbers of the heads at a time: of 1024 floats, 16 heads and 16 positions do not fit
    into shared memory together. CAP: scores s become CAP * tanh(s / CAP); 0: they stay. WIDEN: multiplies as f32, which
    gives the same: Triton's interpreter takes bf16 for integers in products.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    PIECES: tl.constexpr = (GROUP + BLOCK_G - 1) // BLOCK_G
    kind: tl.constexpr = tl.float32 if WIDEN else keys.dtype.element_ty
    token, split = tl.program_id(0) // (KV_HEADS * PIECES), tl.program_id(1)
    kv_head = tl.program_id(0) // PIECES % KV_HEADS
    first, last, share = _seen(position, token, WINDOW, CHUNKED, SPLITS, BLOCK_N)
    begin = first + split * share
    end = tl.minimum(begin + share, last)
    if begin < end:
        g, d = tl.program_id(0) % PIECES * BLOCK_G + tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
        head = token * HEADS + kv_head * GROUP + g
        in_group, in_head = g < GROUP, d < HEAD_DIM
        if STEP_D == BLOCK_D:
            query = _query(q, head, in_group, d, HEAD_DIM, keys.dtype.element_ty, kind)
        base = kv_head.to(tl.int64) * capacity * HEAD_DIM
        top = tl.full([BLOCK_G], -float("inf"), tl.float32)
        total = tl.zeros([BLOCK_G], tl.float32)
        sum_of_values = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        for start in range(begin, end, BLOCK_N):
            n = start + tl.arange(0, BLOCK_N)
            cells = base + n[:, None].to(tl.int64) * HEAD_DIM + d[None, :]
            here = (n < end)[:, None] & in_head[None, :]
            if STEP_D == BLOCK_D:
                key = tl.load(keys + cells, mask=here, other=0.0).to(kind)
                score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            else:
                score = tl.zeros([BLOCK_G, BLOCK_N], tl.float32)
                for first_d in tl.static_range(0, BLOCK_D, STEP_D):
                    some = first_d + tl.arange(0, STEP_D)
                    part = _query(q, head, in_group, some, HEAD_DIM, keys.dtype.element_ty, kind)
                    here_too = (n < end)[:, None] & (some < HEAD_DIM)[None, :]
                    at = keys + base + n[:, None].to(tl.int64) * HEAD_DIM + some[None, :]
                    key = tl.load(at, mask=here_too, other=0.0).to(kind)
                    score = tl.dot(part, tl.trans(key), score, input_precision="ieee")
                score *= scale
            if bias is not None:
                row, back = head % BIASES, last - 1 - n
                score += tl.load(
                    bias + row[:, None] * extent + back[None, :],
                    mask=in_group[:, None] & ((n < end) & (back < extent))[None, :],
                    other=0.0,
                )
            if CAP > 0:
                score = softcap(score, CAP)
            score = tl.where((n < end)[None, :], score, -float("inf"))
            higher = tl.maximum(top, tl.max(score, axis=1))
            power = tl.exp(score - higher[:, None])
            fade = tl.exp(top - higher)
            total = total * fade + tl.sum(power, axis=1)
            top = higher
            value = tl.load(values + cells, mask=here, other=0.0).to(kind)
            sum_of_values = sum_of_values * fade[:, None]
            if kind == tl.float32:
                sum_of_values += tl.dot(power, value, input_precision="ieee")
            else:  # a power as the sum of two numbers of 16 bits, which keeps 16 of its bits or more: tensor cores
                high = power.to(kind)
                low = (power - high.to(tl.float32)).to(kind)
                sum_of_values += tl.dot(high, value) + tl.dot(low, value)
        cell = head * SPLITS + split
        tl.store(
            mixed + cell[:, None] * HEAD_DIM + d[None, :], sum_of_values, mask=in_group[:, None] & in_head[None, :]
        )
        tl.store(maxima + cell, top, mask=in_group)
        tl.store(sums + cell, total, mask=in_group)


@triton.jit
def attend_merge(
    mixed, maxima, sums, position, sinks, out,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WINDOW: tl.constexpr, CHUNKED: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Programs [tokens * HEADS, pieces of BLOCK_D]: weighs the shares of one head; out [tokens * HEADS, HEAD_DIM].
    sinks [SINKS] or None, of all heads or of those of all tokens: scores that count as powers, and have no value."""
    row = tl.program_id(0)
    first, last, share = _seen(position, row // HEADS, WINDOW, CHUNKED, SPLITS, BLOCK_N)
    split = tl.arange(0, SPLITS)
    used = split * share < last - first
    top = tl.load(maxima + row * SPLITS + split, mask=used, other=-float("inf"))
    highest = tl.max(top, axis=0)
    if sinks is not None:
        sink = tl.load(sinks + row % SINKS)
        highest = tl.maximum(highest, sink)
    weight = tl.exp(top - highest)
    total = tl.sum(weight * tl.load(sums + row * SPLITS + split, mask=used, other=0.0), axis=0)
    if sinks is not None:
        total += tl.exp(sink - highest)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    cells = (row * SPLITS + split)[:, None] * HEAD_DIM + d[None, :]
    parts = tl.load(mixed + cells, mask=used[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
    tl.store(out + row * HEAD_DIM + d, tl.sum(parts * weight[:, None], axis=0) / total, mask=d < HEAD_DIM)


INTERPRETED = not isinstance(attend_split, triton.JITFunction)  # in Triton's interpreter, on the CPU
