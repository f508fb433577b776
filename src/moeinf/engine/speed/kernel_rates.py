"""How fast products with weights of a format and width go through memory, beside a plain read of the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from moeinf._native import Kernels, Matrix, cached_product_rates, product_read_rates
from moeinf.engine.speed.rates import Kind, Reading
from moeinf.hardware import Machine
from moeinf.types import ByteArray, Format, block_of, format_bytes

MATRIX_BYTES: Final = 16 << 20  # of one call, between those of an expert and of a head
CACHED_BYTES: Final = 256 << 10  # of a thread: a quarter to a half of a second-level cache
SMALL_BYTE: Final = 0x2C  # of all weights: every format reads it as an ordinary small number
_ROWS_STEP: Final = 16
_READING_BYTES: Final = 128 << 20  # of memory that is gone through: more than caches hold
_CALL_BYTES: Final = 1 << 20  # of the weights of one call, as of a matrix of a small layer
_READING_REPEATS: Final = 3


class KernelRate(NamedTuple):
    """Bytes of weights a second that all threads reach: the best of the repeats, and their median."""

    plain: float  # a plain read of the same memory, by turns with the product
    plain_median: float
    product: float
    product_median: float
    share: float  # of the plain read just before, in the median: other work of the machine slows both


def has_width(format: Format, width: int) -> bool:
    """Whether a row of so many weights is a whole number of blocks."""
    return width % block_of(format)[0] == 0


def matrix_of(format: Format, width: int, num_bytes: int, pattern: ByteArray) -> Matrix:
    """A matrix of about so many bytes, in a multiple of 16 rows: the pattern, which is whole blocks, over and over."""
    row_bytes = format_bytes(format, (width,))
    rows = max(1, num_bytes // row_bytes // _ROWS_STEP) * _ROWS_STEP
    return Matrix(np.resize(pattern, rows * row_bytes), format, rows, width)


def memory_rate(kernels: Kernels, w: Matrix, num_x: int, span_bytes: int, repeats: int) -> KernelRate:
    """Of copies of w in so many bytes of fresh memory, several times what the last-level cache holds."""
    pairs = product_read_rates(kernels, w, num_x, span_bytes, repeats)
    plain, product = zip(*pairs, strict=True)
    share = median(after / before for before, after in pairs)
    return KernelRate(max(plain), median(plain), max(product), median(product), share)


def cached_rate(kernels: Kernels, w: Matrix, num_x: int, repeats: int) -> float:
    """Bytes a second of products with a matrix that each thread has in its cache."""
    return max(cached_product_rates(kernels, w, num_x, repeats))


def measure_reading(
    kernels: Kernels, here: Machine, kinds: Iterable[Kind], report: Callable[[str], None] = lambda line: None
) -> dict[Kind, Reading]:
    """How fast products of one row go through memory, beside a plain read: a tenth of a second for each kind.

    {} where too little memory is free to tell.
    """
    if here.available_bytes < 4 * _READING_BYTES:
        return {}
    found = {}
    for kind in kinds:
        report(f"measuring {kind.format} of {kind.width} from memory")
        pattern = np.full(block_of(kind.format)[1], SMALL_BYTE, np.uint8)
        w = matrix_of(kind.format, kind.width, _CALL_BYTES, pattern)
        rate = memory_rate(kernels, w, 1, _READING_BYTES, _READING_REPEATS)
        found[kind] = Reading(rate.plain_median, rate.product_median)
    return found
