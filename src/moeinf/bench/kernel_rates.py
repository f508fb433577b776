"""How fast products with weights of a format and width go through memory, beside a plain read of the same memory."""

from __future__ import annotations

from statistics import median
from typing import Final, NamedTuple

import numpy as np

from moeinf._native import Kernels, Matrix, cached_product_rates, product_read_rates
from moeinf.types import ByteArray, Format, block_of, format_bytes

MATRIX_BYTES: Final = 16 << 20  # of one call, between those of an expert and of a head
CACHED_BYTES: Final = 256 << 10  # of a thread: a quarter to a half of a second-level cache
_ROWS_STEP: Final = 16


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
