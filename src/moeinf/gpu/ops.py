"""The kernels of a device together."""

from __future__ import annotations

from typing import NamedTuple

from moeinf.gpu.matrix_ops import MatrixOps
from moeinf.gpu.vector_ops import VectorOps


class Ops(NamedTuple):
    """Triton's kernels, or the reference implementations of tests/oracles in plain torch."""

    vectors: VectorOps
    matrices: MatrixOps
