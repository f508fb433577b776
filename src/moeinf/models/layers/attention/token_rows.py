"""What a layer keeps of each token of a sequence: rows in the memory of a device, which can be copied out and in."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import numpy as np

from moeinf.models.layers.array_math import Array
from moeinf.types import ByteArray

K = TypeVar("K")  # what holds keys and values: bytes in their format on the CPU, a tensor on a GPU
K_co = TypeVar("K_co", covariant=True)
A_co = TypeVar("A_co", bound=Array, covariant=True)


class RowsOf(Protocol[K_co]):
    """Rows of tokens [planes, room, row_bytes], in the memory of a device."""

    @property
    def data(self) -> K_co:
        """As the device computes with them."""
        ...

    @property
    def planes(self) -> int: ...

    @property
    def room(self) -> int:
        """Rows of a plane: the capacity or more."""
        ...

    @property
    def row_bytes(self) -> int: ...

    def save(self, start: int, into: ByteArray) -> None:
        """Fills into [planes, tokens, row_bytes], in host memory, with the rows of the tokens from `start`."""
        ...

    def load(self, start: int, rows: ByteArray) -> None:
        """Takes rows [planes, tokens, row_bytes], in host memory, as those of the tokens from `start`."""
        ...


class MemoryOf(Protocol[K_co, A_co]):
    """Where layers of a device keep rows. Those of tokens that were not stored have no meaning."""

    def rows(self, planes: int, capacity: int, width: int) -> RowsOf[K_co]:
        """In the format of keys and values."""
        ...

    def floats(self, capacity: int, width: int) -> RowsOf[A_co]:
        """float32 [capacity, width], in one plane."""
        ...


class TokenState:
    """A RowState (kv_cache.py): the planes of all its rows; or where they are `joined`, one plane, in which a token has
    its rows of all planes one behind the other."""

    rewinds = True

    def __init__(self, *kept: RowsOf[object], joined: bool = False) -> None:
        self._kept, self._joined = kept, joined
        planes, size = sum(each.planes for each in kept), sum(each.planes * each.row_bytes for each in kept)
        self.planes, self.row_bytes = (1, size) if joined else (planes, kept[0].row_bytes)

    def truncate(self, length: int) -> None:
        pass  # what lies behind the cache's length is never read

    def save_rows(self, start: int, into: ByteArray) -> None:
        tokens, at = into.shape[1], 0
        for kept in self._kept:
            if self._joined:
                rows, size = np.empty((kept.planes, tokens, kept.row_bytes), np.uint8), kept.planes * kept.row_bytes
                kept.save(start, rows)
                into[0, :, at : at + size] = rows.swapaxes(0, 1).reshape(tokens, size)
            else:
                size = kept.planes
                kept.save(start, into[at : at + size])
            at += size

    def load_rows(self, start: int, rows: ByteArray) -> None:
        tokens, at = rows.shape[1], 0
        for kept in self._kept:
            if self._joined:
                size = kept.planes * kept.row_bytes
                own = rows[0, :, at : at + size].reshape(tokens, kept.planes, kept.row_bytes)
                kept.load(start, own.swapaxes(0, 1).copy())
            else:
                size = kept.planes
                kept.load(start, rows[at : at + size])
            at += size


class KVState(TokenState, Generic[K]):
    """Keys and values of one layer: [heads, room, head_dim]."""

    def __init__(
        self, memory: MemoryOf[K, Array], heads: int, head_dim: int, capacity: int, *others: RowsOf[object]
    ) -> None:
        """others: what is kept of each token besides."""
        keys, values = (memory.rows(heads, capacity, head_dim) for _ in range(2))
        super().__init__(keys, values, *others, joined=bool(others))
        self.keys, self.values, self.room = keys.data, values.data, keys.room
