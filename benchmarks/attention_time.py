"""Milliseconds that attention takes of a decode step in one layer, by kind, format of the cache and positions.

    python benchmarks/attention_time.py [--threads 2] [--positions 512,8000,32768,100000] [--isa avx2] [--prompt 128]

The projections of the layers are cut to a width of 256, so that next to nothing but attention is timed. The share is
that of the machine's memory rate, measured in the same process, that reading the keys and values reaches. --prompt
times so many tokens of a prompt instead, and gives the rate of products. Recurrent layers, whose cache is one state,
take in so many tokens before they are timed; --kinds delta chooses the kinds whose name has this in it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from moeinf import _native
from moeinf.types import ByteArray, Float32Array, KVFormat, format_bytes

HIDDEN, REPEATS, CHUNK = 256, 7, 2048


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


def latent(kernels: _native.Kernels, kept: KVFormat, positions: int, tokens: int, num_heads: int) -> Timed:
    """DeepSeek's: heads that share rows of 512 + 64 numbers."""
    rank, plain, value, rotary = 512, 128, 128, 64
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


def some(*shape: int) -> Float32Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def delta_net(kernels: _native.Kernels, _: KVFormat, positions: int, tokens: int) -> Timed:
    """Qwen3-Next's: 32 heads of 128, of which two share queries and keys."""
    key_heads, num_heads, dim, kernel = 16, 32, 128, 4
    channels = (2 * key_heads + num_heads) * dim

    def projection(rows: int) -> _native.Matrix:
        bits = (some(rows, HIDDEN) / HIDDEN**0.5).view(np.uint32) >> 16
        return _native.Matrix(bits.astype(np.uint16).view(np.uint8).ravel(), "bf16", rows, HIDDEN)

    layer = _native.DeltaLayer(
        kernels,
        [projection(rows) for rows in (channels, num_heads * dim, num_heads, num_heads)],
        zeros(HIDDEN, num_heads * dim),
        norm=np.ones(HIDDEN, np.float32),
        taps=some(kernel, channels),
        decay=-np.ones(num_heads, np.float32),
        bias=np.full(num_heads, -3, np.float32),
        q_norm=np.full(dim, 1 / dim, np.float32),
        k_norm=np.full(dim, dim**-0.5, np.float32),
        head_norm=np.ones(dim, np.float32),
        num_key_heads=key_heads,
        norm_eps=1e-6,
        unit_eps=1e-6,
    )
    conv, state = np.zeros((kernel - 1, channels), np.float32), np.zeros((num_heads, dim, dim), np.float32)
    for start in range(0, positions, CHUNK):
        count = min(CHUNK, positions - start)
        layer.run(some(count, HIDDEN), [(conv, state, conv, state)], [count])
    x = some(tokens, HIDDEN)
    return Timed(lambda: layer.run(x, [(conv, state, conv, state)], [tokens]), state.nbytes, 6 * tokens * state.size)


def channel_delta(kernels: _native.Kernels, _: KVFormat, positions: int, tokens: int) -> Timed:
    """Kimi Linear's: 32 heads of 128, whose channels have decays of their own."""
    num_heads, dim = 32, 128
    state = np.zeros((num_heads, dim, dim), np.float32)

    def run(count: int) -> Callable[[], None]:
        q, k, v = some(3, count, num_heads, dim) / np.float32(dim**0.5)
        decay = np.full((count, num_heads, dim), 0.95, np.float32)
        rate = np.full((count, num_heads), 0.5, np.float32)
        out = np.empty((num_heads, count, dim), np.float32)
        return lambda: _native.channel_delta(kernels, q, k, v, decay, rate, state, state, out)

    for start in range(0, positions, CHUNK):
        run(min(CHUNK, positions - start))()
    return Timed(run(tokens), state.nbytes, 6 * tokens * state.size)


KINDS: dict[str, Callable[[_native.Kernels, KVFormat, int, int], Timed]] = {
    "Qwen3-30B-A3B, 32 heads of 128 at 4": lambda *given: heads(*given, 32, 4, 128, 0),
    "one key/value head, 8 of 128": lambda *given: heads(*given, 8, 1, 128, 0),
    "gpt-oss, 64 heads of 64 at 8, window of 128, sinks": lambda *given: heads(*given, 64, 8, 64, 128),
    "DeepSeek-V2-Lite, 16 heads of one latent of 576": partial(latent, num_heads=16),
    "DeepSeek-V3, 128 heads of one latent of 576": partial(latent, num_heads=128),
    "Qwen3-Next, gated DeltaNet, 32 heads of 128": delta_net,
    "Kimi Linear, KDA, 32 heads of 128": channel_delta,
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
    parser.add_argument("--kinds", default="")
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
        if given.kinds.lower() not in name.lower():
            continue
        recurrent = kind in (delta_net, channel_delta)
        formats: list[KVFormat] = ["f32"] if recurrent else given.formats.split(",")
        for kept in formats:
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
