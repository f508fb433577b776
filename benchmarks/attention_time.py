"""Milliseconds of a decode step's attention in one layer of Qwen3-30B-A3B, by positions before it and threads.

    python benchmarks/attention_time.py

The projections are a part of the layer, and are timed as well: a step behind no position has hardly more.
"""

from __future__ import annotations

import time

import numpy as np

from moeinf import _native

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 2048, 32, 4, 128
REPEATS = 15


def layer(threads: int) -> _native.AttentionLayer:
    kernels = _native.Kernels(threads)
    kernels.begin_pass(1)
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = ((queries, HIDDEN), (keys, HIDDEN), (keys, HIDDEN), (HIDDEN, queries))
    q, k, v, o = (_native.Matrix(np.zeros(rows * cols * 2, np.uint8), "bf16", rows, cols) for rows, cols in shapes)
    tensors = _native.AttentionTensors(query=q, key=k, value=v, output=o, norm=np.ones(HIDDEN, np.float32))
    return _native.AttentionLayer(kernels, tensors, _native.AttentionShape(head_dim=HEAD_DIM, norm_eps=1e-6))


def main() -> None:
    angles = np.ones((1, HEAD_DIM // 2), np.float32)
    for threads in (1, 2, 8):
        timed = layer(threads)
        for positions in (0, 256, 4096, 32_768):
            cache = [np.zeros(KV_HEADS * (positions + 1) * HEAD_DIM * 2, np.uint8) for _ in range(2)]
            best = float("inf")
            for _ in range(REPEATS):
                x = np.ones((1, HIDDEN), np.float32)
                started = time.perf_counter()
                timed.run(x, cache[0], cache[1], "bf16", positions + 1, positions, angles, angles)
                best = min(best, time.perf_counter() - started)
            print(f"{threads} threads, {positions} positions: {best * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
