"""Keys and values of the tokens seen so far, in memory reserved for a whole context."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Room for `capacity` tokens; pages are touched, and so counted as resident, only as tokens arrive."""

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, capacity: int, dtype: torch.dtype) -> None:
        shape = (num_layers, num_kv_heads, capacity, head_dim)
        self._keys = torch.empty(shape, dtype=dtype)
        self._values = torch.empty(shape, dtype=dtype)
        self.capacity = capacity
        self.length = 0  # tokens that every layer has stored

    def append(self, layer: int, keys: Tensor, values: Tensor, at: int = 0) -> tuple[Tensor, Tensor]:
        """Stores [kv_heads, tokens, head_dim], `at` tokens behind those seen; returns views of the layer's up to there.

        `length` moves only when the last layer is through: see `advance`.
        """
        start = self.length + at
        end = start + keys.shape[1]
        assert end <= self.capacity, "the caller checks the context before a forward pass"
        self._keys[layer, :, start:end] = keys
        self._values[layer, :, start:end] = values
        return self._keys[layer, :, :end], self._values[layer, :, :end]

    def advance(self, num_tokens: int) -> None:
        self.length += num_tokens

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` tokens."""
        assert 0 <= length <= self.length
        self.length = length
