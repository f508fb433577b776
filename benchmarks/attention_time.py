"""Milliseconds that attention takes of a decode step in one layer, by kind, format of the cache and positions.

    python benchmarks/attention_time.py [--threads 2] [--positions 512,8000,32768,100000] [--isa avx2] [--prompt 128]

The projections of the layers are cut to a width of 256, so that next to nothing but attention is timed. The share is
that of the machine's memory rate, measured in the same process, that reading the keys and values reaches. --prompt
times so many tokens of a prompt instead, and gives the rate of products.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from moeinf import _native
from moeinf.types import ByteArray, Float32Array, KVFormat, format_bytes

HIDDEN, REPEATS = 256, 7


class Timed(NamedTuple):
    """A layer behind so many positions: run(x) computes a pass, which reads num_bytes of its cache."""

    run: Callable[[], None]
    num_bytes: int
    products: int  # of a pass, twice multiplications and additions


def random_cache(kept: KVFormat, numbers: int) -> ByteArray:
    """Numbers of a normal distribution, a stretch of them over and over."""
    wide = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
    if kept == "bf16":
        stretch = (wide.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    elif kept == "q8_0":
        stretch = np.empty(format_bytes("q8_0", (len(wide),)), np.uint8)
        _native.quantise("q8_0", wide.view(np.uint8), "f32", 1, len(wide), stretch)
    else:
        stretch = wide.astype(np.float16 if kept == "f16" else np.float32).view(np.uint8)
    cache: ByteArray = np.resize(stretch, format_bytes(kept, (numbers,)))
    return cache


def zeros(rows: int, cols: int) -> _native.Matrix:
    return _native.Matrix(np.zeros(rows * cols * 2, np.uint8), "bf16", rows, cols)


def heads(kernels: _native.Kernels, kept: KVFormat, positions: int, tokens: int, *sizes: int) -> Timed:
    """Attention of sizes (heads, key/value heads, head_dim, window or 0), with sinks where it has a window."""
    num_heads, kv_heads, head_dim, window = sizes
    queries, keys = num_heads * head_dim, kv_heads * head_dim
    tensors = _native.AttentionTensors(
        query=zeros(queries, HIDDEN),
        key=zeros(keys, HIDDEN),
        value=zeros(keys, HIDDEN),
        output=zeros(HIDDEN, queries),
        norm=np.ones(HIDDEN, np.float32),
        sinks=np.zeros(num_heads, np.float32) if window else None,
    )
    shape = _native.AttentionShape(head_dim=head_dim, norm_eps=1e-6, window=window)
    layer = _native.AttentionLayer(kernels, tensors, shape)
    capacity = positions + tokens
    cache = [random_cache(kept, keys * capacity) for _ in range(2)]
    angles = np.ones((tokens, head_dim // 2), np.float32)
    x = np.ones((tokens, HIDDEN), np.float32)
    seen = min(positions, window or positions)
    return Timed(
        lambda: layer.run(x, cache[0], cache[1], kept, capacity, positions, angles, angles),
        2 * format_bytes(kept, (kv_heads * seen * head_dim,)),
        4 * tokens * num_heads * seen * head_dim,
    )


def latent(kernels: _native.Kernels, kept: KVFormat, positions: int, tokens: int) -> Timed:
    """DeepSeek-V2-Lite's: 16 heads that share rows of 512 + 64 numbers."""
    num_heads, rank, plain, value, rotary = 16, 512, 128, 128, 64
    matrix = zeros(num_heads * (plain + value), rank)
    layer = _native.LatentLayer(
        kernels,
        matrix,
        num_heads=num_heads,
        qk_nope_head_dim=plain,
        value_dim=value,
        rotary_dim=rotary,
        interleaved=True,
        scale=0.1,
    )
    cache = random_cache(kept, (positions + tokens) * (rank + rotary))
    angles = np.ones((tokens, rotary // 2), np.float32)
    queries = np.ones((tokens, num_heads * (plain + rotary)), np.float32)
    out: Float32Array = np.empty((tokens, num_heads * value), np.float32)
    return Timed(
        lambda: layer.attend(queries, cache, kept, positions, angles, angles, out),
        format_bytes(kept, (positions, rank + rotary)),
        2 * tokens * num_heads * positions * (2 * rank + rotary),
    )


KINDS: dict[str, Callable[[_native.Kernels, KVFormat, int, int], Timed]] = {
    "Qwen3-30B-A3B, 32 heads of 128 at 4": lambda *given: heads(*given, 32, 4, 128, 0),
    "one key/value head, 8 of 128": lambda *given: heads(*given, 8, 1, 128, 0),
    "gpt-oss, 64 heads of 64 at 8, window of 128, sinks": lambda *given: heads(*given, 64, 8, 64, 128),
    "DeepSeek-V2-Lite, 16 heads of one latent of 576": latent,
}


def best_seconds(timed: Timed) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        timed.run()
        best = min(best, time.perf_counter() - started)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--positions", default="512,8000,32768,100000")
    parser.add_argument("--formats", default="bf16,q8_0")
    parser.add_argument("--isa", default="")
    parser.add_argument("--prompt", type=int, default=1)
    given = parser.parse_args()
    kernels = _native.Kernels(given.threads, given.isa)
    rate = _native.memory_read_rate(kernels, 1 << 30, 3)
    print(f"{given.threads} threads, {kernels.isa}, memory {rate / 1e9:.1f} GB/s, {given.prompt} tokens\n")
    print("| attention | cache | positions | ms | GB/s | of the memory's rate | GFLOP/s |")
    print("|---|---|---|---|---|---|---|")
    kernels.begin_pass(given.prompt)
    for name, kind in KINDS.items():
        for kept in given.formats.split(","):
            for positions in map(int, given.positions.split(",")):
                timed = kind(kernels, kept, positions, given.prompt)
                seconds = best_seconds(timed)
                read, computed = timed.num_bytes / seconds, timed.products / seconds
                print(
                    f"| {name} | {kept} | {positions} | {seconds * 1e3:.2f} | {read / 1e9:.1f} | {read / rate:.0%} | "
                    f"{computed / 1e9:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
