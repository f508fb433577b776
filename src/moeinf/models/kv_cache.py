"""Keys and values of the tokens seen so far, in memory reserved for a whole context."""

from __future__ import annotations

import numpy as np

from moeinf.types import DTYPE_BYTES, ByteArray, DType


class KVCache:
    """Room for `capacity` tokens; pages are touched, and so counted as resident, only as tokens arrive.

    keys[layer], values[layer]: the bytes of [kv_heads, capacity, head_dim] in `format`.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, capacity: int, dtype: DType) -> None:
        size = num_kv_heads * capacity * head_dim * DTYPE_BYTES[dtype]
        self.keys: list[ByteArray] = list(np.empty((num_layers, size), np.uint8))
        self.values: list[ByteArray] = list(np.empty((num_layers, size), np.uint8))
        self.format = dtype
        self.capacity = capacity
        self.length = 0  # tokens that every layer has stored

    def advance(self, num_tokens: int) -> None:
        """Called when the last layer has stored its keys and values of the tokens behind `length`."""
        self.length += num_tokens
        assert self.length <= self.capacity, "the caller checks the context before a forward pass"

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` tokens."""
        assert 0 <= length <= self.length
        self.length = length
