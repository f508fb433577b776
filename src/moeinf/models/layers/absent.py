"""The halves of a layer that families leave out whose layers are one half each: attention, or a block."""

from __future__ import annotations

from collections.abc import Sequence

from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.kv_cache import Span
from moeinf.types import ByteArray


class NoState:
    """Keeps nothing of a sequence."""

    rewinds = True
    planes = row_bytes = 0

    def truncate(self, length: int) -> None:
        pass

    def save_rows(self, start: int, into: ByteArray) -> None:
        pass

    def load_rows(self, start: int, rows: ByteArray) -> None:
        pass


class NoAttention:
    def new_state(self, capacity: int) -> NoState:
        return NoState()

    def add_rows(self, x: Hidden, spans: Sequence[Span[object]]) -> None:
        pass


class NoBlock:
    def add_to(self, x: Hidden) -> None:
        pass
