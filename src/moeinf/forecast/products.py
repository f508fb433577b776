"""How fast this CPU multiplies with weights of each format: one row as in decoding, and many as in prefill."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from moeinf._native import Arena, ExpertKernel, Kernels, Matrix
from moeinf.engine.speed.kernel_rates import SMALL_BYTE
from moeinf.engine.speed.rates import Kind, Products
from moeinf.types import BLOCK_ALIGN_BYTES, Float32Array, Format, format_bytes

FORMATS: Final[tuple[Format, ...]] = ("bf16", "f16", "q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "iq4_nl", "mxfp4")
HIDDEN: Final = 2048
INTERMEDIATE: Final = 1024
MAIN_KINDS: Final = tuple(Kind(format, HIDDEN) for format in FORMATS if format not in ("f16", "q4_0", "iq4_nl"))
SPAN_BYTES: Final = 256 << 20  # of weights that take turns: more than caches hold
_TOP_K: Final = 4
_ROWS: Final = (1, 4, 16, 64)  # of an expert
_LINEAR_ROWS: Final = (1, 16, 128, 512)
_PASS_TOKENS: Final = 512  # of which many rows are a part
_LEAST_S: Final = 0.03

Clock = Callable[[], float]


class ProductBench:
    """Measures products in memory of its own: SPAN_BYTES, or as much as it is told to take."""

    def __init__(self, kernels: Kernels, span_bytes: int = SPAN_BYTES, clock: Clock = time.perf_counter) -> None:
        self._kernels, self._clock = kernels, clock
        self._arena = Arena(span_bytes)
        self._memory = self._arena.array()
        self._memory.fill(SMALL_BYTE)

    def experts(self, format: Format) -> Products:
        """Of experts of 6 million weights, as many as the memory holds."""
        matrix = format_bytes(format, (INTERMEDIATE, HIDDEN))
        parts = {
            "gate": (format, INTERMEDIATE, HIDDEN, 0),
            "up": (format, INTERMEDIATE, HIDDEN, matrix),
            "down": (format, HIDDEN, INTERMEDIATE, 2 * matrix),
        }
        stride = -(-3 * matrix // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES
        count = max(_TOP_K, len(self._memory) // stride)
        kernel = ExpertKernel(self._kernels, self._memory, parts)
        weights = 3 * INTERMEDIATE * HIDDEN
        seconds = []
        for rows in _ROWS:
            chosen = _TOP_K if rows == 1 else min(count, 2 * _TOP_K)
            layer = partial(self._layer, kernel, stride, count, rows, chosen)
            seconds.append(self._timed(layer) / (chosen * weights))
        return Products(_ROWS, tuple(seconds))

    def _layer(self, kernel: ExpertKernel, stride: int, count: int, rows: int, chosen: int, turn: int) -> None:
        """Each of `chosen` experts computes so many rows; the next call takes the next experts."""
        tokens = rows * chosen // _TOP_K if rows > 1 else 1
        hidden, out = np.ones((tokens, HIDDEN), np.float32), np.zeros((tokens, HIDDEN), np.float32)
        ids = (np.arange(tokens * _TOP_K, dtype=np.int64) % chosen).reshape(tokens, _TOP_K)
        self._kernels.begin_pass(1 if rows == 1 else _PASS_TOKENS)
        experts, _ = kernel.begin(hidden, ids, np.ones((tokens, _TOP_K), np.float32))
        kernel.compute(experts, (turn * chosen + experts) % count * stride)
        kernel.finish(out)

    def linear(self, format: Format) -> Products:
        """Of a square matrix of 4 million weights."""
        num_bytes = format_bytes(format, (HIDDEN, HIDDEN))
        places = range(0, len(self._memory) - num_bytes + 1, num_bytes)
        matrices = [Matrix(self._memory[at : at + num_bytes], format, HIDDEN, HIDDEN) for at in places]
        seconds = []
        for rows in _LINEAR_ROWS:
            x, y = np.ones((rows, HIDDEN), np.float32), np.zeros((rows, HIDDEN), np.float32)
            seconds.append(self._timed(partial(self._multiply, x, y, matrices)) / HIDDEN**2)
        return Products(_LINEAR_ROWS, tuple(seconds))

    def _multiply(self, x: Float32Array, y: Float32Array, matrices: Sequence[Matrix], turn: int) -> None:
        self._kernels.begin_pass(len(x))
        self._kernels.linear(x, matrices[turn % len(matrices)], y)

    def _timed(self, call: Callable[[int], None]) -> float:
        """Seconds of one call, of as many as 30 ms take. The caller asks again some seconds later."""
        call(0)
        started, calls = self._clock(), 0
        while (passed := self._clock() - started) < _LEAST_S or not calls:
            calls += 1
            call(calls)
        return passed / calls
