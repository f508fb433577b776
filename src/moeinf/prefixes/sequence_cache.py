"""The cache of a sequence, as far as it is copied out and in."""

from __future__ import annotations

from typing import Protocol

from moeinf.types import ByteArray


class SequenceCache(Protocol):
    """moeinf.models.layers.kv_cache.Cache; what its methods do stands there."""

    length: int

    @property
    def positions(self) -> int: ...

    @property
    def rewinds(self) -> bool: ...

    @property
    def token_bytes(self) -> int: ...

    @property
    def state_bytes(self) -> int: ...

    def truncate(self, length: int) -> int: ...

    def save_rows(self, start: int, end: int) -> ByteArray: ...

    def load_rows(self, start: int, kept: ByteArray, num_tokens: int, first: int, last: int) -> None: ...

    def save_state(self) -> ByteArray: ...

    def resume(self, length: int, kept: ByteArray | None) -> None: ...
