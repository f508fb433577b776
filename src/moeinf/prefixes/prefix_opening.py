"""Puts the tiers of a model's prefixes together, as its user wants them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Protocol

import moeinf._native as _native
from moeinf.config import RuntimeConfig
from moeinf.config.size import Bytes
from moeinf.prefixes.block import digest_of, token_array
from moeinf.prefixes.disk import DiskTier
from moeinf.prefixes.memory import MemoryTier
from moeinf.prefixes.sequence_cache import SequenceCache
from moeinf.prefixes.store import PrefixStore
from moeinf.store.model_folders import prefix_folder
from moeinf.types import JsonMapping

DEFAULT_DISK_BYTES: Final = 4_000_000_000
DISK_SHARE: Final = 10  # of the free bytes, what is taken unasked at most: a tenth
NUMBERS: Final = 3  # to be raised when Python gives the same tokens other keys or values than in the version before
STATE_STRIDE: Final = 4096  # tokens between two states that a long prompt leaves


class LaidOutCache(SequenceCache, Protocol):
    @property
    def layout(self) -> list[list[int]]:
        """What each layer keeps, and in which form."""
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """What decides which numbers a model keeps of tokens."""

    model: str  # its id
    kept: str  # the format of keys and values
    arithmetic: str  # of the device: what its rounding depends on
    room: int  # of the context, where that decides how positions are rotated; else 0
    approx: str = ""  # how far they may be from the exact ones, and on which text; "": they are exact

    def identity(self, cache: LaidOutCache) -> JsonMapping:
        exact = {
            "model": self.model,
            "dtype": self.kept,
            "layout": cache.layout,
            "arithmetic": self.arithmetic,
            "room": self.room,
            "numbers": NUMBERS,
            "engine": _engine(),
        }
        return {**exact, "approx": self.approx} if self.approx else exact


def open_prefixes(
    cache: LaidOutCache,
    kept: Kept,
    config: RuntimeConfig,
    memory_bytes: int,
    home: Path,
    turn_tokens: Callable[[], Collection[int]],
    notify: Callable[[str], None],
) -> PrefixStore | None:
    """memory_bytes: as planned; home: of the store; turn_tokens(): those that a turn of a chat begins or ends with.

    None where nothing is to be kept.
    """
    if memory_bytes <= 0:
        return None
    identity = kept.identity(cache)
    disk_bytes = _disk_bytes(config, home)
    folder = prefix_folder(home, kept.model)
    disk = DiskTier(folder, disk_bytes, identity, notify) if disk_bytes else None
    root = digest_of(repr(sorted(identity.items())).encode(), token_array([]))
    return PrefixStore(cache, root, MemoryTier(memory_bytes), disk, lambda prompt: turn_borders(prompt, turn_tokens()))


def turn_borders(prompt: Sequence[int], turn_tokens: Collection[int]) -> list[int]:
    """After how many tokens of a prompt a later one may go another way: at its first turn, at its last one, at its end,
    and now and then in a long prompt.

    The last turn is the one that the model is to answer: what its template writes behind it, the next prompt may lack.
    """
    turns = [at for at, token in enumerate(prompt) if at and token in turn_tokens]
    return sorted({*turns[:1], *turns[-1:], *range(STATE_STRIDE, len(prompt), STATE_STRIDE), len(prompt)})


def _disk_bytes(config: RuntimeConfig, home: Path) -> int:
    asked = config.memory.prefix_disk
    if asked == Bytes(0) or (asked is None and not config.many_conversations):
        return 0
    free = shutil.disk_usage(home).free
    if asked is None:
        return DEFAULT_DISK_BYTES if free >= DISK_SHARE * DEFAULT_DISK_BYTES else 0
    return asked.of(free)


@cache
def _engine() -> str:
    """Which moeinf this is: its version, and a digest of its compiled part, as another build may round otherwise."""
    try:
        known = version("moeinf")
    except PackageNotFoundError:  # run from a folder of sources
        known = ""
    library = Path(_native.__file__ or "").read_bytes()
    return f"{known} {hashlib.blake2b(library, digest_size=8).hexdigest()}"
