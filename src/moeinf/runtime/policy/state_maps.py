"""Hidden states as evidence of the routing to come."""

from __future__ import annotations

import numpy as np

from moeinf.types import Float32Array


def unit_state(x: Float32Array) -> Float32Array:
    """x [tokens, hidden], each row divided by its root mean square; what is 0 stays so.

    So float16 holds it, and a map need not know how states grow from layer to layer, as routers do not, either.
    """
    squares = np.einsum("th,th->t", x, x) / np.float32(x.shape[1])
    unit: Float32Array = x / np.sqrt(squares + np.float32(1e-20))[:, None]
    return unit
