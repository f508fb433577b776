"""The kernels of a device together."""

from __future__ import annotations

from typing import NamedTuple

from moeinf.gpu.matrix_ops import MatrixOps
from moeinf.gpu.vector_ops import VectorOps


class Ops(NamedTuple):
    """Triton's, or their twins in plain torch."""

    vectors: VectorOps
    matrices: MatrixOps
